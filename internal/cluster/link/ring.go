package link

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/membership"
)

// Ring keeps the keys of a node's gossip as the state wants them. Its methods are safe
// for concurrent use.
type Ring struct {
	cfg RingConfig
	// keys are by generation, saved is the one in the node's files. Both belong to Run.
	keys  map[uint64][]byte
	saved uint64
	held  atomic.Pointer[[]uint64]
}

// RingConfig is what a Ring needs.
type RingConfig struct {
	// Saved has the key with which the gossip was opened.
	Saved *identity.Saved
	// Gossip may be nil: then the newest key is only kept for the next start.
	Gossip *membership.Membership
	// Fetch gets the key of a generation, Keep writes the one to begin with.
	Fetch func(ctx context.Context, generation uint64) ([]byte, error)
	Keep  func(key []byte, generation uint64) error
	Log   *slog.Logger
}

// NewRing returns a Ring that holds the saved key.
func NewRing(cfg RingConfig) *Ring {
	first := cfg.Saved.GossipGeneration
	r := &Ring{cfg: cfg, keys: map[uint64][]byte{first: cfg.Saved.GossipKey}, saved: first}
	r.held.Store(&[]uint64{first})
	return r
}

// Held are the generations that the node holds, the one that it encrypts by first.
func (r *Ring) Held() []uint64 { return *r.held.Load() }

// ringPause is how long to wait after keys could not be had.
const ringPause = time.Second

// Run follows the state until ctx ends, and returns its cause. What fails is tried again.
func (r *Ring) Run(ctx context.Context, view *client.View) error {
	failing := false
	for {
		changed := view.Changed()
		var again <-chan time.Time // never, unless something failed
		if own, ok := view.State().Cluster(); ok && !slices.Equal(own.GossipRing(), r.Held()) {
			err := r.take(ctx, own.GossipRing())
			switch {
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case err != nil:
				if !failing {
					r.cfg.Log.Warn("the gossip's keys are not replaced yet", "err", err)
				}
				again = time.After(ringPause)
			default:
				r.cfg.Log.Info("the gossip's keys were replaced", "generations", r.Held())
			}
			failing = err != nil
		}
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take makes the keys of some generations those of the gossip. The first is written
// before others may rely on it.
func (r *Ring) take(ctx context.Context, ring []uint64) error {
	keys := make([][]byte, len(ring))
	for i, generation := range ring {
		key, ok := r.keys[generation]
		if !ok {
			var err error
			if key, err = r.cfg.Fetch(ctx, generation); err != nil {
				return fmt.Errorf("get the gossip's key %d: %w", generation, err)
			}
			r.keys[generation] = key
		}
		keys[i] = key
	}
	if ring[0] != r.saved {
		if err := r.cfg.Keep(keys[0], ring[0]); err != nil {
			return err
		}
		r.saved = ring[0]
	}
	if r.cfg.Gossip != nil {
		if err := r.cfg.Gossip.SetKeys(keys); err != nil {
			return err
		}
	}
	for generation := range r.keys {
		if !slices.Contains(ring, generation) {
			delete(r.keys, generation)
		}
	}
	held := slices.Clone(ring)
	r.held.Store(&held)
	return nil
}
