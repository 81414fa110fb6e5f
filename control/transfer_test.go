package control

import (
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// held is a log whose writes wait for release once it is armed.
type held struct {
	raft.LogStore
	armed   atomic.Bool
	release chan struct{}
}

func (h *held) StoreLogs(logs []*raft.Log) error {
	if h.armed.Load() {
		<-h.release
	}
	return h.LogStore.StoreLogs(logs)
}

// A call that hands leadership over has its answer before the consensus ends. The library
// forgets one that it has taken in and not begun when it shuts down: its caller, and with
// it the port, would wait for ever.
func TestTransferAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{
			cfg: Config{Self: cluster.Node{ID: "c1"}}, log: slog.New(slog.DiscardHandler),
			leader: newLeadership(), view: client.NewView(),
		}
		cfg := raft.DefaultConfig()
		cfg.LocalID, cfg.Logger = "c1", &logAdapter{to: n.log}
		under := raft.NewInmemStore()
		log := &held{LogStore: under, release: make(chan struct{})}
		addr, transport := raft.NewInmemTransport("")
		snapshots := raft.NewInmemSnapshotStore()
		members := raft.Configuration{Servers: []raft.Server{{ID: "c1", Address: addr}}}
		if err := raft.BootstrapCluster(cfg, log, under, snapshots, transport, members); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(cfg, newFSM(n.view), log, under, snapshots, transport)
		if err != nil {
			t.Fatal(err)
		}
		n.raft.Store(r)
		<-r.LeaderCh()
		if err := r.Barrier(0).Error(); err != nil {
			t.Fatal(err)
		}

		// The library's loop is held up in the middle of a write.
		log.armed.Store(true)
		pending := r.Apply([]byte("{}"), 0)
		synctest.Wait()
		var calls conc.WaitGroup
		calls.Go(func() {
			if err := n.transfer(""); err == nil {
				t.Error("the only node has handed over")
			}
		})
		synctest.Wait()
		calls.Go(func() { n.stop(r, newStream(&n.cfg, newBook(n.view))) })
		waits := func() bool { // stop waits for the call
			if n.raft.Load() == nil || !n.calls.TryRLock() {
				return n.raft.Load() != nil
			}
			n.calls.RUnlock()
			return false
		}
		for r.State() != raft.Shutdown && !waits() {
			runtime.Gosched()
		}
		close(log.release)
		calls.Wait()
		_ = pending.Error() // done or not: the node has ended
	})
}
