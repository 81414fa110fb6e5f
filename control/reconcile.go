package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/planner"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Times of the leader's loop.
const (
	// reconcileEvery is how often the leader looks at facts that no command tells of.
	reconcileEvery = 100 * time.Millisecond
	// lateBy is how late the loop may be before it forgives silences: then this
	// process was held up, and has not read what others have sent.
	lateBy = 200 * time.Millisecond
	// caughtUp is how many entries a new control node may be behind when it gets its
	// vote, fresh how old its word about that may be.
	caughtUp = 64
	fresh    = time.Second
)

// govern reconciles facts and wishes whenever this node leads.
func (n *Node) govern(ctx context.Context) error {
	for {
		r, changed := n.leader.now()
		if r.self {
			reign, cancel := r.within(ctx)
			n.tuner.Reset()
			var work conc.WaitGroup
			work.Go(func() { n.tune(reign) })
			n.reconcile(reign)
			work.Wait()
			cancel()
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// reconcile works until the reign ends. What fails is tried again with the next tick.
func (n *Node) reconcile(ctx context.Context) {
	r := n.raft.Load()
	if r == nil {
		return
	}
	// Everything that was committed before this reign must be in the state first.
	for r.Barrier(n.cfg.Election).Error() != nil {
		if ctx.Err() != nil {
			return
		}
	}
	ticker := time.NewTicker(reconcileEvery)
	defer ticker.Stop()
	for expected := time.Now(); ctx.Err() == nil; {
		changed := n.view.Changed()
		now := time.Now()
		if late := now.Sub(expected); late > lateBy {
			n.log.Debug("the leader's loop was held up", "by", late)
			n.heard.forgive(late)
		}
		for _, f := range []func(context.Context, time.Time) error{n.begin, n.losses, n.voters, n.place, n.forget, n.rotate} {
			if err := f(ctx, now); err != nil && ctx.Err() == nil && !errors.Is(err, state.ErrConflict) {
				n.log.Debug("not reconciled yet", "err", err)
			}
		}
		expected = time.Now().Add(reconcileEvery)
		select {
		case <-changed:
			expected = time.Now()
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
}

// command applies a command of the leader's own.
func (n *Node) command(kind cluster.Kind, request string, body any) error {
	c, err := cluster.NewCommand(kind, request, time.Now(), body)
	if err != nil {
		return err
	}
	_, err = n.apply(c)
	return err
}

// begin names the cluster when it is new.
func (n *Node) begin(_ context.Context, _ time.Time) error {
	if _, exists := n.State().Cluster(); exists || n.cfg.Bootstrap == nil {
		return nil
	}
	return n.command(cluster.KindInit, "init/"+n.cfg.Bootstrap.ID, *n.cfg.Bootstrap)
}

// losses notes which nodes are lost, and which are back. The gossip's word alone
// makes no node lost: it must have been silent too.
func (n *Node) losses(_ context.Context, now time.Time) error {
	var errs []error
	for id, node := range n.State().AllNodes() {
		silence, heard := n.heard.silence(now, id, node.Incarnation)
		lost := silence >= n.cfg.LostAfter || silence >= n.cfg.SuspectAfter && n.cfg.Dead(id)
		switch {
		case id == n.cfg.Self.ID:
			lost = false
		case node.Lost && !(heard && silence < n.cfg.SuspectAfter):
			continue // not heard yet
		}
		if lost == node.Lost {
			continue
		}
		err := n.command(cluster.KindNodeState, "", cluster.NodeState{ID: id, Lost: &lost})
		if err == nil {
			n.log.Info("node changed", "node", id, "role", string(node.Role), "lost", lost, "silent", silence)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// voters brings the members of the consensus in line with the state's control nodes,
// one step at a time.
func (n *Node) voters(ctx context.Context, now time.Time) error {
	r := n.raft.Load()
	if r == nil {
		return nil
	}
	s := n.State()
	servers := map[string]raft.Server{}
	for _, server := range n.servers(r) {
		id := string(server.ID)
		servers[id] = server
		node, ok := s.Node(id)
		if !ok && s.IsRemoved(id) {
			return n.dismiss(r, id)
		}
		if !ok {
			continue // it has not announced itself yet
		}
		if err := n.promote(r, server, node, now); err != nil {
			return err
		}
	}
	for id, node := range s.AllNodes() {
		if _, ok := servers[id]; ok || node.Role != cluster.Control || node.Lost {
			continue
		}
		n.log.Info("control node taken in, without a vote yet", "node", id)
		return r.AddNonvoter(raft.ServerID(id), target(id, node.Addr), 0, n.cfg.Patience).Error()
	}
	if own, ok := s.Node(n.cfg.Self.ID); ok && own.Draining && ctx.Err() == nil {
		return n.handOver(s, servers)
	}
	return nil
}

// handOver gives leadership to a node that is not drained itself, if there is one.
func (n *Node) handOver(s *state.State, servers map[string]raft.Server) error {
	for id, node := range s.AllNodes() {
		if server, ok := servers[id]; ok && server.Suffrage == raft.Voter && node.Serves() {
			return n.transfer(id)
		}
	}
	return nil
}

// promote gives a server its vote when it has caught up.
//
// Invariant: a server's address in the consensus stays the one at which it was taken in,
// wherever the node moves. The library's replication reads it without the lock under which
// it would be changed (hashicorp/raft issue 681, open in v1.8.0). The book has the address
// that is dialled (stream.ServerAddr).
func (n *Node) promote(r *raft.Raft, server raft.Server, node cluster.Node, now time.Time) error {
	if server.Suffrage == raft.Voter {
		return nil
	}
	lag := n.lag(node.ID)
	silence, heard := n.heard.silence(now, node.ID, node.Incarnation)
	if !heard || silence >= fresh || lag < 0 || lag > caughtUp {
		return nil
	}
	n.log.Info("control node votes", "node", node.ID, "addr", node.Addr)
	return r.AddVoter(server.ID, server.Address, 0, n.cfg.Patience).Error()
}

// dismiss takes a removed node out of the consensus. A leader that was removed hands
// over first.
func (n *Node) dismiss(r *raft.Raft, id string) error {
	if id == n.cfg.Self.ID {
		if err := n.handTo(r); err == nil {
			return nil
		}
	}
	n.log.Info("control node taken out", "node", id)
	return r.RemoveServer(raft.ServerID(id), 0, n.cfg.Patience).Error()
}

// place decides what runs where.
func (n *Node) place(_ context.Context, now time.Time) error {
	plan := planner.Plan(n.State(), now)
	if plan == nil {
		return nil
	}
	// A conflict says that the state has changed meanwhile; the next round plans anew.
	err := n.command(cluster.KindPlace, "", *plan)
	if err == nil {
		n.log.Info("placements changed", "put", len(plan.Put), "drained", len(plan.Drain), "deleted", len(plan.Delete), "deployments", len(plan.Deployments))
	}
	return err
}

func errNoVoter(node string) error {
	return fmt.Errorf("%w: %q is no voter", client.ErrBadRequest, node)
}
