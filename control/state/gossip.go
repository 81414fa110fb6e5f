package state

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// A rotation of the gossip's key has three steps, each of which follows when all nodes
// have done the one before:
//
//	[old] → [old new]: they can read what the new key encrypts
//	      → [new old]: they encrypt by it
//	      → [new]:     they read nothing else
func (s *State) rotateGossip(*cluster.RotateGossip) error {
	own, _ := s.Cluster()
	ring := own.GossipRing()
	if len(ring) > 1 {
		return fmt.Errorf("gossip key: %w: a rotation is under way", ErrConflict)
	}
	own.Gossip = []uint64{ring[0], ring[0] + 1}
	s.Clusters = s.Clusters.with(clusterName, own, s.Index)
	return nil
}

func (s *State) setGossip(c *cluster.SetGossip) error {
	own, _ := s.Cluster()
	ring := own.GossipRing()
	if !slices.Equal(ring, c.From) {
		return fmt.Errorf("gossip key: %w: nodes are to hold %v", ErrConflict, ring)
	}
	if !slices.Equal(c.To, NextGossip(ring)) {
		return fmt.Errorf("gossip key %w: %v does not come after %v", ErrInvalid, c.To, ring)
	}
	own.Gossip = c.To
	s.Clusters = s.Clusters.with(clusterName, own, s.Index)
	return nil
}

// NextGossip is the step of a rotation after a ring; nil if none is under way.
func NextGossip(ring []uint64) []uint64 {
	switch {
	case len(ring) != 2:
		return nil
	case ring[0] < ring[1]:
		return []uint64{ring[1], ring[0]}
	}
	return ring[:1:1]
}
