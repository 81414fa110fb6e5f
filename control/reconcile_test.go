package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
)

func pinned(id string, models ...string) cluster.Node {
	n := node(id, cluster.Worker)
	for _, m := range models {
		n.Pins = append(n.Pins, cluster.Pin{Model: m, Source: m, TP: 1})
	}
	return n
}

// Workers that join with models get their replicas, the pair its deployment, and
// operators and losses are followed, across a change of leader.
func TestReconcile(t *testing.T) {
	t.Parallel()
	// Long enough that a busy machine does not look like a node that is gone.
	const lostAfter = 5 * time.Second
	c := controltest.New(t, 3, func(cfg *control.Config) { cfg.LostAfter, cfg.SuspectAfter = lostAfter, lostAfter })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	beats := map[string]context.CancelFunc{}
	for id, model := range map[string]string{"w1": "tiny-s", "w2": "tiny-l"} {
		w := c.Client(cluster.Worker, id)
		if _, err := w.Propose(ctx, command(t, cluster.KindPutNode, pinned(id, model))); err != nil {
			t.Fatal(err)
		}
		beating, end := context.WithCancel(ctx)
		beats[id] = end
		go func() {
			ended <- w.Beat(beating, 100*time.Millisecond, func() cluster.Beat {
				return cluster.Beat{Node: id, Loads: map[string]cluster.Load{model + "-" + id: {Live: 3}}}
			}, nil)
		}()
	}
	c.Await("the replicas and their deployment", func(s *state.State) bool {
		r, ok := s.Replica("tiny-s-w1")
		_, other := s.Replica("tiny-l-w2")
		d, deployed := s.Deployment("tiny")
		return ok && other && deployed && r.Pinned && d.Default
	})
	lost := func(id string, want bool) {
		t.Helper()
		c.Await(id+" lost or back", func(s *state.State) bool { n, _ := s.Node(id); return n.Lost == want })
	}
	beats["w2"]()
	lost("w2", true)
	if n, _ := c.Leader().State().Node("w1"); n.Lost {
		t.Error("w1, which is heard, is lost")
	}
	admin := c.Client(cluster.Admin, "a")
	var loads map[string]cluster.NodeLoad
	var err error
	c.Poll("the loads", func() bool { loads, err = admin.Loads(t.Context()); return !errors.Is(err, client.ErrNoLeader) })
	if err != nil || loads["w1"].Beat.Loads["tiny-s-w1"].Live != 3 || loads["w1"].Age >= lostAfter {
		t.Errorf("loads %v, %v", loads, err)
	}

	old := c.Leader()
	old.Crash()
	c.Forget(old)
	w := c.Client(cluster.Worker, "w2")
	go func() {
		ended <- w.Beat(ctx, 100*time.Millisecond, func() cluster.Beat { return cluster.Beat{Node: "w2"} }, nil)
	}()
	lost("w2", false)
	lost(old.ID, true)
	if n, _ := c.Leader().State().Node("w1"); n.Lost {
		t.Error("w1 was lost in the change of leader")
	}
	stop()
	for range 3 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Beat: %v", err)
		}
	}
}

// The gossip alone makes no node lost; with silence it is quicker.
func TestGossipIsAHint(t *testing.T) {
	t.Parallel()
	var dead atomic.Bool
	c := controltest.New(t, 1, func(cfg *control.Config) {
		cfg.Dead = func(string) bool { return dead.Load() }
		cfg.LostAfter, cfg.SuspectAfter = time.Hour, 5*time.Second // so long that a busy machine is not silent
	})
	dead.Store(true)
	w := c.Client(cluster.Gateway, "g1")
	if _, err := w.Propose(t.Context(), command(t, cluster.KindPutNode, node("g1", cluster.Gateway))); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		if _, err := w.Heartbeat(t.Context(), cluster.Beat{Node: "g1"}); err != nil {
			t.Fatal(err)
		}
		if n, _ := c.Leader().State().Node("g1"); n.Lost {
			t.Fatal("lost while it is heard")
		}
	}
	c.Await("the loss", func(s *state.State) bool { n, _ := s.Node("g1"); return n.Lost })
	if reply, err := w.Heartbeat(t.Context(), cluster.Beat{Node: "g1"}); err != nil || !reply.Known || reply.Leader != "c1" {
		t.Errorf("reply %+v, %v", reply, err)
	}
	c.Await("its return", func(s *state.State) bool { n, _ := s.Node("g1"); return !n.Lost })
	if reply, err := c.Client(cluster.Gateway, "g9").Heartbeat(t.Context(), cluster.Beat{Node: "g9"}); err != nil || reply.Known {
		t.Errorf("reply to a stranger %+v, %v", reply, err)
	}
}

// Control nodes come, move, hand over and go without a stop of the others.
func TestMembers(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	first := c.Leader()
	c.Start("c2")
	c.Start("c3")
	c.AwaitVoters(3)

	// A drained leader hands over.
	yes := true
	c.Propose(first, cluster.KindNodeState, cluster.NodeState{ID: first.ID, Draining: &yes})
	c.Poll("another leader", func() bool { leader, _ := first.Leader(); return leader != "" && leader != first.ID })

	// An operator moves it on.
	admin := c.Client(cluster.Admin, "a")
	to := "c2"
	if leader, _ := first.Leader(); leader == to {
		to = "c3"
	}
	c.Poll("the transfer", func() bool {
		_ = admin.Transfer(t.Context(), to) // it fails while that node is behind
		leader, _ := first.Leader()
		return leader == to
	})
	var err error
	c.Poll("a leader's word", func() bool { err = admin.Transfer(t.Context(), "c9"); return !errors.Is(err, client.ErrNoLeader) })
	if !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("transfer to nobody: %v", err)
	}
	var status cluster.Status
	c.Poll("the leader's status", func() bool {
		status, err = admin.Status(t.Context())
		return err == nil && status.Leader != "" && status.Node == status.Leader
	})
	if len(status.Servers) != 3 || status.Term < 2 {
		t.Errorf("status %+v", status)
	}
	for _, s := range status.Servers {
		if s.Addr != c.Node(s.Node).Addr {
			t.Errorf("%s is at %s, want %s", s.Node, s.Addr, c.Node(s.Node).Addr)
		}
	}

	// A removed leader goes, and does not come back.
	gone := c.Node(to)
	c.Propose(gone, cluster.KindRemoveNode, cluster.Name{Name: to})
	if err := gone.Err(); !errors.Is(err, control.ErrRemoved) {
		t.Errorf("Run of the removed node: %v", err)
	}
	c.Forget(gone)
	c.AwaitVoters(2)
	c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("after"))

	// Of two, the other one leads afterwards, and needs nobody's vote.
	gone = c.Leader()
	stays := c.Follower()
	c.Propose(stays, cluster.KindRemoveNode, cluster.Name{Name: gone.ID})
	if err := gone.Err(); !errors.Is(err, control.ErrRemoved) {
		t.Errorf("Run of the removed node: %v", err)
	}
	c.Forget(gone)
	c.AwaitVoters(1)
	c.Propose(stays, cluster.KindPutDeployment, deployment("alone"))
	if _, err := stays.Propose(t.Context(), command(t, cluster.KindRemoveNode, cluster.Name{Name: stays.ID})); !errors.Is(err, state.ErrInvalid) {
		t.Errorf("the only control node is removed: %v", err)
	}
	for role, text := range map[cluster.Role]string{cluster.Admin: "a node has that name", cluster.Worker: "it is a control"} {
		_, err := stays.Propose(t.Context(), command(t, cluster.KindRemoveNode, cluster.RemoveNode{Name: stays.ID, Role: role}))
		if !errors.Is(err, state.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("it is removed as %s: %v", role, err)
		}
	}
}

// A node that is cut off and comes back does not depose the leader, and one with the
// minority of the votes does nothing on its own.
func TestCutOff(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, func(cfg *control.Config) {
		controltest.Impatient(cfg)
		// Long enough that a busy machine does not look like a leader that is gone.
		cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, 1800*time.Millisecond
	})
	leader := c.Leader()
	follower := c.Follower()
	term := leader.Status().Term
	follower.Isolate(true)
	c.Poll("a node without a leader", func() bool { who, _ := follower.Leader(); return who == "" })
	if _, err := follower.Propose(t.Context(), command(t, cluster.KindPutDeployment, deployment("minority"))); !errors.Is(err, control.ErrNoLeader) {
		t.Errorf("error %v, want ErrNoLeader", err)
	}
	c.Propose(leader, cluster.KindPutDeployment, deployment("majority"))
	follower.Isolate(false)
	c.Await("the majority's word", has("majority"))
	if now := leader.Status(); now.Term != term || now.Leader != leader.ID {
		t.Errorf("leader %s in term %d, was %s in %d", now.Leader, now.Term, leader.ID, term)
	}

	// A leader that is cut off leads no more, and what it could not commit is not done.
	leader.Isolate(true)
	began := time.Now()
	if _, err := leader.Propose(t.Context(), command(t, cluster.KindPutDeployment, deployment("minority"))); !errors.Is(err, control.ErrNoLeader) {
		t.Errorf("error %v, want ErrNoLeader", err)
	}
	t.Logf("a leader that is cut off says so after %s", time.Since(began))
	c.Propose(follower, cluster.KindPutDeployment, deployment("new"))
	leader.Isolate(false)
	c.Await("the new leader's word", has("new"))
	if has("minority")(leader.State()) {
		t.Error("what the minority wanted was done")
	}
}

// A leader whose connections have ended, and which is there, leads on.
func TestHangUp(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, func(cfg *control.Config) {
		// Long enough that a busy machine does not look like a leader that is gone.
		cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, 1800*time.Millisecond
	})
	leader := c.Leader()
	term := leader.Status().Term
	for i := range 5 {
		leader.Drop()
		c.Propose(c.Follower(), cluster.KindPutDeployment, deployment(fmt.Sprint("d", i)))
	}
	c.Await("the last word", has("d4"))
	if now := leader.Status(); now.Term != term || now.Leader != leader.ID {
		t.Errorf("leader %s in term %d, was %s in %d", now.Leader, now.Term, leader.ID, term)
	}
	// Without waiting for its silence, once it is gone.
	leader.Crash()
	c.Forget(leader)
	c.Propose(c.Nodes()[0], cluster.KindPutDeployment, deployment("after"))
}

// BenchmarkFailover is the time from the leader's death to the next commit.
func BenchmarkFailover(b *testing.B) {
	c := controltest.New(b, 3, func(cfg *control.Config) {
		cfg.Heartbeat, cfg.Election, cfg.Lease = 500*time.Millisecond, 500*time.Millisecond, 250*time.Millisecond
		cfg.NoSync = false
	})
	var times []time.Duration
	for b.Loop() {
		b.StopTimer()
		old := c.Leader()
		c.AwaitVoters(3)
		began := time.Now()
		old.Isolate(true)
		c.Forget(old)
		b.StartTimer()
		c.Propose(c.Nodes()[0], cluster.KindPutDeployment, deployment("d"))
		b.StopTimer()
		times = append(times, time.Since(began))
		old.Stop()
		back := c.Start(old.ID)
		c.Await("its return", func(s *state.State) bool { n, _ := s.Node(back.ID); return n.Addr == back.Addr && !n.Lost })
		b.StartTimer()
	}
	slices.Sort(times)
	b.ReportMetric(times[len(times)/2].Seconds(), "p50-s")
	b.ReportMetric(times[len(times)-1].Seconds(), "max-s")
}

// BenchmarkPropose is a commit by three nodes, on disk.
func BenchmarkPropose(b *testing.B) {
	c := controltest.New(b, 3, func(cfg *control.Config) {
		cfg.Heartbeat, cfg.Election, cfg.Lease = time.Second, time.Second, time.Second
		cfg.NoSync = false
	})
	for _, where := range []struct {
		name string
		n    *controltest.Node
	}{{"leader", c.Leader()}, {"follower", c.Follower()}} {
		b.Run(where.name, func(b *testing.B) {
			for b.Loop() {
				c.Propose(where.n, cluster.KindPutDeployment, deployment("d"))
			}
		})
	}
}
