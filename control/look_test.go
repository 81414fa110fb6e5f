package control

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// A new leader has forgotten what it gave, and whom it heard, when it led before: others have
// given since, and nobody may ask it before it knows that.
func TestLeaderBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{
			cfg: Config{Self: cluster.Node{ID: "c1"}}, log: slog.New(slog.DiscardHandler),
			leader: newLeadership(), view: client.NewView(), heard: newBeats(), rates: newRates(),
		}
		cfg := raft.DefaultConfig()
		cfg.LocalID, cfg.Logger = "c1", &logAdapter{to: n.log}
		log := raft.NewInmemStore()
		addr, transport := raft.NewInmemTransport("")
		snapshots := raft.NewInmemSnapshotStore()
		members := raft.Configuration{Servers: []raft.Server{{ID: "c1", Address: addr}}}
		if err := raft.BootstrapCluster(cfg, log, log, snapshots, transport, members); err != nil {
			t.Fatal(err)
		}
		r, err := raft.NewRaft(cfg, newFSM(n.view), log, log, snapshots, transport)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := r.Shutdown().Error(); err != nil {
				t.Error(err)
			}
		}()
		<-r.LeaderCh()
		limit := cluster.Amount{Requests: 1000}
		ask := func(gateway string) cluster.Slice {
			s, err := n.rates.ask(time.Now(), limit, &cluster.SliceAsk{Gateway: gateway, Key: "k", Want: limit})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		for range 2 {
			n.look(r)
			if _, self := n.Leader(); !self {
				t.Fatal("it does not lead")
			}
			if s := ask("g1"); s.Given.Requests != limit.Requests/earlyShare || s.Leader != "c1" || s.Term != r.CurrentTerm() {
				t.Errorf("slice %+v", s)
			}
			if _, heard := n.heard.silence(time.Now(), "w", 1); heard {
				t.Error("it has heard a node when it led before")
			}
			n.heard.note(time.Now(), cluster.Beat{Node: "w"})
			n.look(r) // it is the same leader still
			if s := ask("g2"); s.Given.Requests != 0 {
				t.Errorf("slice %+v", s)
			}
			if _, heard := n.heard.silence(time.Now(), "w", 1); !heard {
				t.Error("it has forgotten whom it heard")
			}
			<-time.After(2 * counted) // what it gave is so old that it would count no more
			n.leader.set("c2", "", false)
		}
	})
}
