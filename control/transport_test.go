package control_test

import (
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// What a control node's certificate lets in may still be garbage. The connection
// goes, the memory comes back, the leader stays.
func TestHostileRaft(t *testing.T) {
	c := controltest.New(t, 3, func(cfg *control.Config) {
		// Long enough that a busy machine does not look like a leader that is gone.
		cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, 1800*time.Millisecond
	})
	leader := c.Leader()
	term := leader.Status().Term
	credentials := c.Credentials(cluster.Control, "c9", nil)
	dial := func() net.Conn {
		conn, err := tls.Dial("tcp", leader.Addr, credentials.Client(identity.ProtocolRaft, leader.ID, cluster.Control))
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	random := make([]byte, 64<<10)
	seed := rand.NewChaCha8([32]byte{1})
	for range 16 {
		conn := dial()
		_, _ = seed.Read(random)
		_, _ = conn.Write(random) // it may be closed in the middle
		_ = conn.Close()
	}
	if !raceEnabled { // the library copies what it has read so often that the race detector takes minutes
		claimTwoGigabytes(t, dial())
	}
	c.Poll("the memory back", func() bool {
		runtime.GC()
		runtime.ReadMemStats(&after)
		return after.HeapAlloc < before.HeapAlloc+32<<20
	})
	if now := leader.Status(); now.Leader != leader.ID || now.Term != term {
		t.Errorf("leader %s in term %d, was %s in %d", now.Leader, now.Term, leader.ID, term)
	}
	c.Propose(leader, cluster.KindPutDeployment, deployment("after"))
}

// claimTwoGigabytes sends an AppendEntries whose one field claims 2 GB.
func claimTwoGigabytes(t *testing.T, conn net.Conn) {
	t.Helper()
	defer func() { _ = conn.Close() }()
	claim := append([]byte{0, 0x81, 0xa6}, "Leader"...)
	claim = append(claim, 0xc6, 0x7f, 0xff, 0xff, 0xff)
	if _, err := conn.Write(claim); err != nil {
		t.Fatal(err)
	}
	chunk := make([]byte, 1<<20)
	sent := 0
	if err := conn.SetWriteDeadline(time.Now().Add(controltest.Patience)); err != nil {
		t.Fatal(err)
	}
	var err error
	for ; err == nil && sent < 256<<20; sent += len(chunk) {
		_, err = conn.Write(chunk)
	}
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after %d MiB: %v, want the connection closed", sent>>20, err)
	}
	if sent > 64<<20 {
		t.Errorf("%d MiB were taken", sent>>20)
	}
}
