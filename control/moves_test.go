package control_test

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Where a node moves changes nothing in the consensus: the library reads a server's address
// there, while it replicates to it, without the lock under which it changes.
func TestMovesAreNotForTheConsensus(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, controltest.Impatient)
	before := control.Members(c.Leader().Node)
	old := c.Follower()
	old.Crash()
	c.Forget(old)
	back := c.Start(old.ID)
	if back.Addr == old.Addr {
		t.Fatal("it did not move")
	}
	c.Await("its new address", func(s *state.State) bool { n, _ := s.Node(back.ID); return n.Addr == back.Addr })
	// The leader brings one server after another in line with the state. When it has come to
	// a new node it has been at those that it knew.
	c.Start("c4")
	c.AwaitVoters(4)
	c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("after"))
	c.Await("deployment after", has("after"))
	now := control.Members(c.Leader().Node)
	delete(now, "c4")
	if !maps.Equal(now, before) {
		t.Errorf("members %v, were %v", now, before)
	}
}

// names are nodes' addresses that outlive their ports: each start of a node is at a port of
// its own.
type names struct {
	mu sync.Mutex
	at map[string]string
}

// name has a node reached by a name alone, which another port may have later.
func (n *names) name(cfg *control.Config, name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[name] = cfg.Self.Addr
	cfg.Self.Addr = name
	dial := cfg.Dial
	cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
		n.mu.Lock()
		port, ok := n.at[addr]
		n.mu.Unlock()
		if !ok {
			port = addr // a contact
		}
		return dial(ctx, network, port)
	}
}

// drop makes a name lead nowhere.
func (n *names) drop(name string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.at[name] = "127.0.0.1:1"
}

// Nodes that have moved find each other after all of them were stopped, though nobody tells
// them and none can know what is committed: each has in its log where the others are.
func TestMovedNodesFindEachOtherByTheirLogs(t *testing.T) {
	t.Parallel()
	net := names{at: map[string]string{}}
	own := map[string]string{"c1": "c1.first:7000", "c2": "c2.first:7000", "c3": "c3.first:7000"}
	c := controltest.New(t, 3, func(cfg *control.Config) {
		controltest.Impatient(cfg)
		net.name(cfg, own[cfg.Self.ID])
	})
	for _, id := range []string{"c2", "c3"} {
		n := c.Node(id)
		n.Crash()
		c.Forget(n)
		net.drop(own[id])
		own[id] = id + ".second:7000"
		c.Start(id)
		c.Await(id+" at its new address", func(s *state.State) bool { n, _ := s.Node(id); return n.Addr == own[id] })
	}
	for _, n := range append([]*controltest.Node(nil), c.Nodes()...) {
		n.Stop()
		c.Forget(n)
	}
	net.drop(own["c1"])
	c.Change = func(cfg *control.Config) {
		controltest.Impatient(cfg)
		net.name(cfg, own[cfg.Self.ID])
		cfg.Bootstrap, cfg.Contacts = nil, nil
	}
	c.Start("c2")
	c.Start("c3")
	c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("after"))
	c.Await("deployment after", has("after"))
}
