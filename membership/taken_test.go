package membership

import (
	"bytes"
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Callers tell a port that is taken from other faults.
func TestTakenPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := Config{Node: "a", Role: cluster.Worker, Cluster: "c", Key: bytes.Repeat([]byte{7}, KeySize), Bind: l.Addr().String()}
	if _, err := Open(cfg); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("error %v, want EADDRINUSE in it", err)
	}
}
