package control

import (
	"context"
	"time"
)

// syncPause lies between tries to catch up with a leader.
const syncPause = 50 * time.Millisecond

// keepCurrent has this node catch up with each leader once. A node that has started, or
// has a new leader, knows who leads before it has applied what that one has committed: it
// would show callers a state that is older than the one they have, without keys and
// deployments that exist. Until it has caught up it says that it knows of no leader.
func (n *Node) keepCurrent(ctx context.Context) error {
	for {
		r, changed := n.leader.now()
		if r.leader != "" {
			n.catchUp(ctx, &r)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// catchUp returns when this node is current, or the reign or ctx has ended.
func (n *Node) catchUp(ctx context.Context, r *reign) {
	ctx, cancel := r.within(ctx)
	defer cancel()
	for ctx.Err() == nil {
		err := n.Sync(ctx)
		if err == nil && ctx.Err() == nil {
			close(r.synced)
			return
		}
		pause(ctx, syncPause)
	}
}
