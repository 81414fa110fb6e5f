//go:build !linux

package workernode

import (
	"net"
	"testing"
)

// hopListener listens on loopback.
func hopListener(b *testing.B) net.Listener {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	return l
}
