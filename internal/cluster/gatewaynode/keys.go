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
	ring atomic.Pointer[apikey.Ring]
}

// follow takes a state's keys. Requests find them from now on.
func (k *keys) follow(s *state.State) { k.ring.Store(apikey.NewRing(k.pepper, s.AllKeys())) }

// Find implements gateway.Keys.
func (k *keys) Find(text string) (*gateway.Holder, error) {
	ring := k.ring.Load()
	if ring == nil {
		return nil, gateway.ErrKeysUnknown
	}
	key, err := ring.Find(text, time.Now())
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
