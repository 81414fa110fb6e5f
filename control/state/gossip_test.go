package state_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// A rotation goes through its three steps in order, and there is one at a time.
func TestRotateGossip(t *testing.T) {
	t.Parallel()
	h := begin(t)
	ring := func() []uint64 {
		own, _ := h.s.Cluster()
		return own.GossipRing()
	}
	old := []uint64{0}
	for turn := range uint64(2) {
		h.must(cluster.KindRotateGossip, cluster.RotateGossip{})
		if err := h.apply(cluster.KindRotateGossip, cluster.RotateGossip{}); !errors.Is(err, state.ErrConflict) {
			t.Errorf("two at once: %v", err)
		}
		for _, want := range [][]uint64{{turn, turn + 1}, {turn + 1, turn}, {turn + 1}} {
			if !slices.Equal(ring(), want) {
				t.Fatalf("nodes hold %v, want %v", ring(), want)
			}
			next := state.NextGossip(want)
			if err := h.apply(cluster.KindSetGossip, cluster.SetGossip{From: old, To: next}); !slices.Equal(old, want) && !errors.Is(err, state.ErrConflict) {
				t.Errorf("from another step: %v", err)
			}
			if err := h.apply(cluster.KindSetGossip, cluster.SetGossip{From: want, To: []uint64{9}}); !errors.Is(err, state.ErrInvalid) {
				t.Errorf("another step: %v", err)
			}
			if len(want) == 2 {
				h.must(cluster.KindSetGossip, cluster.SetGossip{From: want, To: next})
			} else if next != nil {
				t.Errorf("after the end comes %v", next)
			}
		}
		old = ring()
	}
	if h.s.Written != 2 {
		t.Errorf("written is %d", h.s.Written)
	}
}
