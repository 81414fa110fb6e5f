package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// yield hands leadership over before this node is removed: its successor takes it out of
// the consensus. Once the removal is applied nobody takes this node's certificate, so that
// it could not lead, and the others would have no leader before they miss it. Without an
// error the command is to be applied here.
func (n *Node) yield(r *raft.Raft, c *cluster.Command) error {
	if !n.removes(c) {
		return nil
	}
	if n.voterCount(r) == 1 {
		return fmt.Errorf("node %q %w: it is the only control node that votes", n.cfg.Self.ID, state.ErrInvalid)
	}
	n.log.Info("leadership is handed over, as this node is to be removed")
	if err := n.handTo(r); err != nil {
		return fmt.Errorf("%w: leadership was not handed over: %w", errAgain, errors.Join(client.ErrNotLeader, err))
	}
	return fmt.Errorf("%w: %w", errAgain, client.ErrNotLeader)
}

// removes says that a command removes this node. One for another role is refused when it is applied, and why.
func (n *Node) removes(c *cluster.Command) bool {
	var remove cluster.RemoveNode
	return c.Kind == cluster.KindRemoveNode && c.Decode(&remove) == nil && remove.Name == n.cfg.Self.ID &&
		(remove.Role == "" || remove.Role == cluster.Control)
}

// removed ends the node when it was removed and leads no more.
func (n *Node) removed(ctx context.Context) error {
	if _, err := n.view.WaitFor(ctx, func(s *state.State) bool { return s.IsRemoved(n.cfg.Self.ID) }); err != nil {
		return err
	}
	for {
		r, changed := n.leader.now()
		if !r.self {
			return n.leave(ctx)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

const (
	// lingerTime is how long a removed node waits at most to be taken out of the consensus, and
	// lingerOfTwo if the other one depends on it; lingerEvery is how often it looks.
	lingerTime, lingerOfTwo, lingerEvery = 2 * time.Second, time.Minute, 10 * time.Millisecond
)

// leave says that this node was removed; its loop ends with what it returns. The node stays
// until the leader has taken it out of the consensus: of two control nodes the other one is
// no majority before that, and if its lease ends first, it leads again only by this node's
// vote, for which it asks (stream.Dial). It would have no leader for ever without it.
func (n *Node) leave(ctx context.Context) error {
	n.goneOnce.Do(func() { close(n.gone) })
	most := lingerTime
	if r := n.raft.Load(); r != nil && n.voterCount(r) == 2 {
		most = lingerOfTwo
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for n.belongs() && pause(ctx, lingerEvery) {
	}
	return ErrRemoved
}

// voterCount is how many members of the consensus vote, as far as this node knows.
func (n *Node) voterCount(r *raft.Raft) (voters int) {
	for _, server := range n.servers(r) {
		if server.Suffrage == raft.Voter {
			voters++
		}
	}
	return voters
}

// belongs says that this node is a member of the consensus, as far as it knows.
func (n *Node) belongs() bool {
	r := n.raft.Load()
	return r != nil && slices.ContainsFunc(n.servers(r), func(s raft.Server) bool { return string(s.ID) == n.cfg.Self.ID })
}

// expel closes the connections of removed control nodes.
func (n *Node) expel(ctx context.Context, stream *stream) error {
	for {
		changed := n.view.Changed()
		stream.closeAll(n.view.Removed)
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
