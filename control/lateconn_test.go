package control_test

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// slow is a listener that keeps a connection, once hold is set, until release.
type slow struct {
	net.Listener
	hold          atomic.Bool
	held, release chan struct{}
}

func (s *slow) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err == nil && s.hold.CompareAndSwap(true, false) {
		close(s.held)
		<-s.release
	}
	return conn, err
}

// A connection that is being accepted while the node ends is closed: nobody would serve it,
// or end it, afterwards.
func TestConnectionAtTheEnd(t *testing.T) {
	t.Parallel()
	l := &slow{held: make(chan struct{}), release: make(chan struct{})}
	c := controltest.New(t, 1, func(cfg *control.Config) { l.Listener, cfg.Raft = cfg.Raft, l })
	n := c.Leader()
	l.hold.Store(true)
	credentials := c.Credentials(cluster.Control, "c9", nil)
	conn, err := tls.Dial("tcp", n.Addr, credentials.Client(identity.ProtocolRaft, n.ID, cluster.Control))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	<-l.held
	n.Stop()
	c.Forget(n)
	close(l.release)
	if err := conn.SetReadDeadline(time.Now().Add(controltest.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is open: %v", err)
	}
}
