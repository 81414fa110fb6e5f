package workernode

import (
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// hopListener listens on loopback, or at TRCTL_HOP_ADDR in the network namespace whose file TRCTL_HOP_NETNS names. A
// socket stays in the namespace that its thread was in when it was made.
func hopListener(b *testing.B) net.Listener {
	b.Helper()
	addr, namespace := "127.0.0.1:0", os.Getenv("TRCTL_HOP_NETNS")
	if namespace != "" {
		addr = os.Getenv("TRCTL_HOP_ADDR")
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for _, path := range []string{"/proc/thread-self/ns/net", namespace} {
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if path == namespace {
				if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
					b.Fatal(err)
				}
				continue
			}
			defer func() {
				if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
					b.Fatal(err)
				}
			}()
		}
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		b.Fatal(err)
	}
	return l
}
