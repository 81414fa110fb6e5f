package gatewaynode

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
)

// keys is gateway.Keys over the newest state.
type keys struct {
	pepper []byte
	book   *quota.Book
	// ring is nil until a state was seen.
	ring atomic.Pointer[ring]
}

// ring is a state's keys.
type ring struct {
	*apikey.Ring
	newer chan struct{} // closed once there is another one
}

// follow takes a state's keys. Requests find them from now on. One goroutine calls it.
func (k *keys) follow(s *state.State) {
	last := k.ring.Swap(&ring{apikey.NewRing(k.pepper, s.AllKeys()), make(chan struct{})})
	if last != nil {
		close(last.newer)
	}
}

// freshWithin is how long after it was made a key may still be unknown here: the control
// node that this gateway watches hears of it a little later than the operator.
const freshWithin = 100 * time.Millisecond

// find looks for a key, for a moment also in the states that are to come.
func (k *keys) find(text string) (cluster.Key, error) {
	r := k.ring.Load()
	if r == nil {
		return cluster.Key{}, gateway.ErrKeysUnknown
	}
	key, err := r.Find(text, time.Now())
	if _, ok := apikey.IDOf(text); !ok || !errors.Is(err, apikey.ErrUnknown) {
		return key, err
	}
	patience := time.NewTimer(freshWithin)
	defer patience.Stop()
	for errors.Is(err, apikey.ErrUnknown) {
		select {
		case <-r.newer:
			r = k.ring.Load()
			key, err = r.Find(text, time.Now())
		case <-patience.C:
			return key, err
		}
	}
	return key, err
}

// Find implements gateway.Keys.
func (k *keys) Find(text string) (*gateway.Holder, error) {
	key, err := k.find(text)
	if errors.Is(err, gateway.ErrKeysUnknown) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", gateway.ErrKey, err)
	}
	h := &gateway.Holder{
		ID: key.ID, Models: key.Models, Policies: key.Policies, Concurrency: key.Concurrency,
		// The same at every gateway, and known to none but control nodes and gateways.
		Salt: gateway.SaltOf(key.MAC),
	}
	if rates := (quota.Rates{Requests: key.RequestsPerMinute, Tokens: key.TokensPerMinute}); rates != (quota.Rates{}) {
		h.Quota = k.book.Account(key.ID, rates)
	}
	return h, nil
}

// lessor asks the leader for slices.
type lessor struct{ client *client.Client }

// Slice implements quota.Lessor.
func (l lessor) Slice(ctx context.Context, ask cluster.SliceAsk) (cluster.Slice, error) {
	s, err := l.client.Slice(ctx, ask)
	if errors.Is(err, state.ErrNotFound) {
		err = fmt.Errorf("%w: %w", quota.ErrRefused, err)
	}
	return s, err
}

// gateways counts the gateways that a state has and that are not lost.
func gateways(s *state.State) (n int) {
	for _, node := range s.AllNodes() {
		if node.Role == cluster.Gateway && !node.Lost {
			n++
		}
	}
	return n
}

// returnEvery is how often unused slices are given back.
const returnEvery = 500 * time.Millisecond

// lease keeps the leader's ledger right until ctx ends: what is not used goes back, and
// a new leader is told what was given before it.
func (n *Node) lease(ctx context.Context) error {
	ticker := time.NewTicker(returnEvery)
	defer ticker.Stop()
	for {
		select {
		case <-n.newLeader:
			n.keys.book.Tell(ctx)
		case <-ticker.C:
			n.keys.book.Return(ctx)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// leavePatience is for how long a gateway that stops tries to give back what it has.
const leavePatience = time.Second

// leave gives back what requests that have ended did not use, so that others need not
// wait for it until it leaves the window.
func (n *Node) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leavePatience)
	defer cancel()
	n.keys.book.Leave(ctx)
}

// heard notes a change of leader.
func (n *Node) heard(r cluster.BeatReply) {
	if last := n.leader.Swap(&r.Leader); last == nil || *last == r.Leader {
		return
	}
	select {
	case n.newLeader <- struct{}{}:
	default: // the next round tells all of it
	}
}
