package control_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// The leader goes on with a rotation when every node that is there has done the step;
// all control nodes give the same key, and that of no other step.
func TestGossipKeyIsRotated(t *testing.T) {
	t.Parallel()
	// A worker that is lost is not waited for: on a busy machine it may be late.
	c := controltest.New(t, 3, controltest.NeverLost)
	w := node("w", cluster.Worker)
	w.Gossip, w.Protocol = "127.0.0.1:1", 2
	c.Propose(c.Leader(), cluster.KindPutNode, w)
	worker := c.Client(cluster.Worker, "w")
	ring := func() []uint64 {
		own, _ := c.Leader().State().Cluster()
		return own.GossipRing()
	}
	c.Propose(c.Leader(), cluster.KindRotateGossip, cluster.RotateGossip{})
	for _, want := range [][]uint64{{0, 1}, {1, 0}, {1}} {
		c.Await(fmt.Sprint(want), func(s *state.State) bool {
			own, _ := s.Cluster()
			return slices.Equal(own.GossipRing(), want)
		})
		// The worker's word about the step before does not count.
		for range 5 {
			c.Poll("a heartbeat", func() bool {
				_, err := worker.Heartbeat(t.Context(), cluster.Beat{Node: "w", Gossip: []uint64{7}})
				if err != nil && !errors.Is(err, client.ErrNoLeader) {
					t.Fatal(err)
				}
				return err == nil
			})
		}
		if !slices.Equal(ring(), want) {
			t.Fatalf("nodes hold %v before the worker does", ring())
		}
		if len(want) == 2 {
			c.Poll("the next step", func() bool {
				_, err := worker.Heartbeat(t.Context(), cluster.Beat{Node: "w", Gossip: want})
				return err == nil && !slices.Equal(ring(), want)
			})
		}
	}
	var first []byte
	for _, n := range c.Nodes() {
		key, err := n.GossipKey(1)
		if err != nil || len(key) != 32 || bytes.Equal(key, c.GossipKey) || first != nil && !bytes.Equal(key, first) {
			t.Errorf("%s: %d bytes, %v", n.ID, len(key), err)
		}
		first = key
	}
	if key, err := worker.GossipKey(t.Context(), 1); err != nil || !bytes.Equal(key, first) {
		t.Errorf("the worker gets %d bytes, %v", len(key), err)
	}
	for _, other := range []uint64{0, 2} {
		if _, err := worker.GossipKey(t.Context(), other); !errors.Is(err, state.ErrNotFound) {
			t.Errorf("key %d: %v", other, err)
		}
	}
	saved, err := client.Join(t.Context(), c.Leader().Addr, token(t, c, cluster.Worker, 1, time.Hour), joiner(cluster.Worker, "new"))
	if err != nil || saved.GossipGeneration != 1 || !bytes.Equal(saved.GossipKey, first) {
		t.Errorf("who joins gets key %d, %v", saved.GossipGeneration, err)
	}
}
