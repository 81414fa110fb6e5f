package workernode

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// renew gives a worker another certificate, as a renewal does.
func (x *worker) renew() {
	w := x.town
	w.t.Helper()
	signer, request, err := identity.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := identity.EncodeKey(signer)
	if err != nil {
		w.t.Fatal(err)
	}
	certificate, err := w.authority.Issue(request, x.tie.credentials.Name(), time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	if err := x.tie.credentials.Replace(certificate, key, [][]byte{w.ca}); err != nil {
		w.t.Fatal(err)
	}
}

// shown connects to a worker and returns the certificate that it shows.
func (x *worker) shown() *x509.Certificate {
	w := x.town
	w.t.Helper()
	conn, err := net.Dial("tcp", x.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	c := tls.Client(conn, w.credentials(cluster.Gateway, "g9", nil).Client(identity.ProtocolHTTP, x.name, cluster.Worker))
	if err := c.HandshakeContext(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0]
}

// Certificates of two workers are renewed while requests run, and then the link between
// them breaks: nothing is lost, and new connections have the new certificates.
func TestCertificatesAreRenewed(t *testing.T) {
	list := questions(6, 80, "tiny")
	want := alone(t, list, nil)
	w := newTown(t)
	entry, other := w.worker("w1", "tiny-s"), w.worker("w2", "tiny-l")
	w.awaitReady(2)
	before := entry.shown()
	g := w.gate()
	var once sync.Once
	compare(t, "renewed", g.all(list, 3, func(n int) {
		if n < 40 {
			return
		}
		once.Do(func() {
			entry.renew()
			other.renew()
			other.wires.reset()
		})
	}), want)
	if after := entry.shown(); after.SerialNumber.Cmp(before.SerialNumber) == 0 {
		t.Error("the old certificate is shown")
	}
}

// A node that is removed loses its calls in flight at once: its streams, and its links.
func TestRemovedWhileItCalls(t *testing.T) {
	w := newTown(t)
	x := w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.awaitReady(2)
	w.must(cluster.KindPutNode, cluster.Node{ID: "g2", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: cluster.Protocol})
	g := w.gate()
	g.credentials = w.credentials(cluster.Gateway, "g2", nil)
	g.cfg.MaxAttempts, g.cfg.Backoff = 1, time.Millisecond
	request := questions(1, 4000, "tiny")[0]
	request.IgnoreEOS = true // so that it does not end before
	ended := make(chan error, 1)
	begun := make(chan struct{})
	var once sync.Once
	go func() {
		_, err := g.ask(request, func(n int) {
			if n > 5 {
				once.Do(func() { close(begun) })
			}
		})
		ended <- err
	}()
	<-begun
	removed := time.Now()
	w.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "g2"})
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a removed gateway's stream has ended well")
		}
	case <-time.After(patience):
		t.Fatal("a removed gateway's stream goes on")
	}
	t.Logf("cut after %v", time.Since(removed))

	// The link that another worker has opened is cut too.
	calls := func(node string) int {
		x.net.mu.Lock()
		seat := x.net.seats["tiny-s-w1"]
		x.net.mu.Unlock()
		seat.mu.Lock()
		defer seat.mu.Unlock()
		n := 0
		for c := range seat.calls {
			if c.node == node {
				n++
			}
		}
		return n
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.After(patience); !ok(); {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatal(what)
			}
		}
	}
	until("the workers have no link", func() bool { return calls("w2") == 1 })
	w.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "w2"})
	until("a removed worker's link goes on", func() bool { return calls("w2") == 0 })
}
