package control_test

import (
	"context"
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// Whoever asks how far the state has come, and whomever, hears of everything that was
// acknowledged before; also from the next leader, and never from one that is cut off.
func TestIndex(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	g := c.Client(cluster.Gateway, "g1")
	check := func(addrs []string, least uint64) {
		t.Helper()
		for _, addr := range addrs {
			one, err := client.New(client.Config{Credentials: c.Credentials(cluster.Gateway, "g1", nil), Control: []string{addr}})
			if err != nil {
				t.Fatal(err)
			}
			index := uint64(0)
			c.Poll("an answer of "+addr, func() bool { index, err = one.Index(t.Context()); return err == nil })
			if index < least {
				t.Errorf("%s says %d, and %d was acknowledged", addr, index, least)
			}
			_ = one.Close()
		}
	}
	for i, n := range c.Nodes() {
		check(c.Addrs(), c.Propose(n, cluster.KindPutNode, node(string(rune('a'+i)), cluster.Worker)))
	}
	leader := c.Leader()
	least := c.Propose(leader, cluster.KindPutNode, node("z", cluster.Worker))
	leader.Isolate(true)
	c.Forget(leader)
	check(c.Addrs(), max(least, c.Propose(c.Leader(), cluster.KindPutNode, node("y", cluster.Worker))))
	// A client of all of them goes on at those that are left.
	c.Poll("an answer to a client of all", func() bool { _, err := g.Index(t.Context()); return err == nil })
	leader.Stop()
}

// Without a majority nobody says that nothing is newer.
func TestIndexWithoutQuorum(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 2, nil)
	leader, other := c.Leader(), c.Follower()
	g := c.Client(cluster.Gateway, "g1")
	c.Poll("an answer", func() bool { _, err := g.Index(t.Context()); return err == nil })
	other.Isolate(true)
	c.Poll("the end of the lease", func() bool { _, self := leader.Leader(); return !self })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if index, err := g.Index(ctx); !errors.Is(err, client.ErrNoLeader) {
		t.Errorf("%d, %v", index, err)
	}
}
