package control_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// gate holds up a leader's loop where it asks who is dead, before it looks at who votes.
type gate struct {
	armed atomic.Bool
	// held is closed when the loop is held up, open when it goes on.
	held, open     chan struct{}
	holds, release sync.Once
}

func newGate() *gate { return &gate{held: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) dead(string) bool {
	if g.armed.Load() {
		g.holds.Do(func() { close(g.held) })
		<-g.open
	}
	return false
}

func (g *gate) let() { g.release.Do(func() { close(g.open) }) }

// holdLeader holds up the loop of a leader of two nodes, and returns that and the other node.
func holdLeader(c *controltest.Cluster, gates map[string]*gate) (leads, other *controltest.Node) {
	c.TB.Helper()
	c.Poll("a leader that is held up", func() bool {
		leads = c.Leader() // another one is held up if it leads by now
		gates[leads.ID].armed.Store(true)
		select {
		case <-gates[leads.ID].held:
			return true
		default:
			return false
		}
	})
	for _, n := range c.Nodes() {
		if n != leads {
			gates[n.ID].let()
			other = n
		}
	}
	return leads, other
}

// Of two control nodes one that was removed stays until the other one has taken it out of the
// consensus, and has a vote until then. Here that is long after the removal: the other one, cut
// off, has lost its reign meanwhile, and gets it back only by that vote.
func TestRemovedOfTwoVotesUntilItIsOut(t *testing.T) {
	t.Parallel()
	for name, moves := range map[string]bool{"where it was taken in": false, "at another address": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			removeOneOfTwo(t, moves)
		})
	}
}

func removeOneOfTwo(t *testing.T, moves bool) {
	gates := map[string]*gate{}
	c := controltest.New(t, 2, func(cfg *control.Config) {
		g := newGate()
		gates[cfg.Self.ID] = g
		controltest.Impatient(cfg)
		cfg.Dead = g.dead
		cfg.LostAfter, cfg.SuspectAfter = time.Hour, time.Nanosecond // it asks in each round, and nobody is lost
	})
	for _, id := range []string{"c1", "c2"} {
		if !moves {
			break
		}
		c.Node(id).Stop()
		c.Forget(c.Node(id))
		back := c.Start(id)
		c.Await("its new address", func(s *state.State) bool { n, _ := s.Node(id); return n.Addr == back.Addr })
		c.AwaitVoters(2)
	}
	t.Cleanup(func() { // whoever is held up could not end
		for _, g := range gates {
			g.let()
		}
	})
	stays, gone := holdLeader(c, gates)
	c.Propose(stays, cluster.KindRemoveNode, cluster.Name{Name: gone.ID})
	c.Await("the removal", func(s *state.State) bool { return s.IsRemoved(gone.ID) })

	stays.Isolate(true)
	cut := time.After(3 * time.Second) // longer than a removed node stays if nobody depends on it
	c.Poll("the end of the reign", func() bool { who, _ := stays.Leader(); return who == "" })
	<-cut
	stays.Isolate(false)
	c.Poll("a leader again", func() bool { _, self := stays.Leader(); return self })
	if n := len(stays.Status().Servers); n != 2 {
		t.Errorf("%d members, want 2: the test is void", n)
	}
	gates[stays.ID].let()
	if err := gone.Err(); !errors.Is(err, control.ErrRemoved) {
		t.Errorf("Run of the removed node: %v", err)
	}
	c.Forget(gone)
	c.AwaitVoters(1)
	c.Propose(stays, cluster.KindPutDeployment, deployment("alone"))
}
