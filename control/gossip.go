package control

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// gossipKeyBytes is the size of a key of the gossip.
const gossipKeyBytes = 32

// GossipKey is the gossip's key of a generation. The first one is random and in the
// nodes' files; the others follow from the CA's key, so that all control nodes know them
// and the state has none.
func (n *Node) GossipKey(generation uint64) ([]byte, error) {
	if generation == n.cfg.GossipGeneration {
		return n.cfg.GossipKey, nil
	}
	if generation == 0 {
		return nil, fmt.Errorf("gossip key 0 %w: it was replaced", state.ErrNotFound)
	}
	return n.cfg.Authority.Derive(fmt.Sprintf("gossip key %d of %s", generation, n.cfg.Credentials.Name().Cluster), gossipKeyBytes)
}

// gossipRing are the generations that nodes are to hold.
func (n *Node) gossipRing() []uint64 {
	own, _ := n.State().Cluster()
	return own.GossipRing()
}

func (n *Node) serveGossip(_ context.Context, c *call) (any, error) {
	var request cluster.GossipRequest
	if err := c.read(&request); err != nil {
		return nil, err
	}
	if !slices.Contains(n.gossipRing(), request.Generation) {
		return nil, fmt.Errorf("gossip key %d %w", request.Generation, state.ErrNotFound)
	}
	key, err := n.GossipKey(request.Generation)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	return cluster.GossipReply{Key: key}, nil
}

// rotate goes on with a rotation of the gossip's key when all nodes that are there have
// said that they hold what they are to hold. Nodes that are lost get the key when they
// are back, from a control node.
func (n *Node) rotate(_ context.Context, _ time.Time) error {
	ring := n.gossipRing()
	next := state.NextGossip(ring)
	if next == nil {
		return nil
	}
	for id, node := range n.State().AllNodes() {
		if node.Lost || node.Gossip == "" {
			continue
		}
		beat, heard := n.heard.last(id)
		if !heard || !slices.Equal(beat.Gossip, ring) {
			return nil
		}
	}
	err := n.command(cluster.KindSetGossip, "", cluster.SetGossip{From: ring, To: next})
	if err == nil {
		n.log.Info("the gossip's keys change", "from", ring, "to", next)
	}
	return err
}
