package control

import (
	"context"
	"errors"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// serveIndex says how far a caller's state must have come to have every change that was
// acknowledged before the call.
func (n *Node) serveIndex(ctx context.Context, c *call) (any, error) {
	var out cluster.IndexReply
	err := n.onLeader(ctx, c, cluster.PathIndex, struct{}{}, &out, func() (err error) {
		out.Index, err = n.acknowledged(ctx)
		return err
	})
	return out, err
}

// acknowledged is the index of a state that has every change that was acknowledged before
// the call, by this node as the leader or by the leaders before it.
func (n *Node) acknowledged(ctx context.Context) (uint64, error) {
	reign, _ := n.leader.now()
	if err := n.leads(); err != nil {
		return 0, errors.Join(client.ErrNotLeader, err)
	}
	// What leaders before it have acknowledged is in its log, but perhaps not applied yet.
	if err := reign.settled(ctx); err != nil {
		return 0, err
	}
	return n.State().Index, nil // its own are applied before they are acknowledged
}

// leads has a majority confirm that this node leads: another one may by now, and acknowledge.
// The library answers at the latest when the lease is over.
func (n *Node) leads() error {
	r, end := n.consensus()
	defer end()
	if r == nil {
		return ErrNoLeader
	}
	return r.VerifyLeader().Error()
}
