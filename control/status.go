package control

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Status is this node's view of the consensus.
func (n *Node) Status() cluster.Status {
	leader, self := n.Leader()
	out := cluster.Status{Node: n.cfg.Self.ID, Leader: leader, Applied: n.State().Index, Contact: -1}
	if refusal := n.Refused(); refusal != nil {
		out.Refused = refusal.By
	}
	r := n.raft.Load()
	if r == nil {
		return out
	}
	out.Term, out.Index, out.Commit = r.CurrentTerm(), r.LastIndex(), r.CommitIndex()
	if self {
		out.Contact = 0
	} else if last := r.LastContact(); !last.IsZero() {
		out.Contact = time.Since(last)
	}
	for _, s := range n.servers(r) {
		server := cluster.Server{Node: string(s.ID), Voter: s.Suffrage == raft.Voter, Lag: -1}
		if node, ok := n.State().Node(server.Node); ok {
			server.Addr = node.Addr
		}
		if self {
			server.Lag = n.lag(server.Node)
		}
		out.Servers = append(out.Servers, server)
	}
	return out
}

// servers are the members of the consensus as this node knows them.
func (n *Node) servers(r *raft.Raft) []raft.Server {
	future := r.GetConfiguration()
	if future.Error() != nil {
		return nil // it is shutting down
	}
	return future.Configuration().Servers
}

// lag is how far a control node is behind the leader, which this one is; -1 if the
// node was not heard.
func (n *Node) lag(node string) int64 {
	if node == n.cfg.Self.ID {
		return 0
	}
	beat, ok := n.heard.last(node)
	if !ok {
		return -1
	}
	return max(0, int64(n.State().Index)-int64(beat.Index))
}

// LeaderStatus is the leader's Status, or this node's own without a leader.
func (n *Node) LeaderStatus(ctx context.Context) cluster.Status {
	r, _ := n.leader.now()
	if !r.self {
		var out cluster.Status
		if n.forward(ctx, &r, cluster.PathStatus, struct{}{}, &out) == nil {
			return out
		}
	}
	return n.Status()
}

// transfer hands leadership to a control node, or to the best one if to is empty. It
// fails if this node does not lead.
func (n *Node) transfer(to string) error {
	r, end := n.consensus() // the library forgets who waits for a transfer when it shuts down
	defer end()
	if r == nil {
		return ErrNoLeader
	}
	if to == "" {
		return n.handTo(r)
	}
	for _, s := range n.servers(r) {
		if string(s.ID) == to && s.Suffrage == raft.Voter {
			return r.LeadershipTransferToServer(s.ID, s.Address).Error()
		}
	}
	return errNoVoter(to)
}

// handTo hands leadership to the control node that was heard last, as this node leads. The
// library would take one that has fallen silent as well, if that one lacks no entry, and
// wait for its answer.
func (n *Node) handTo(r *raft.Raft) error {
	var best raft.Server
	least := fresh
	now := time.Now()
	for _, server := range n.servers(r) {
		id := string(server.ID)
		node, ok := n.State().Node(id)
		if !ok || id == n.cfg.Self.ID || server.Suffrage != raft.Voter || !node.Serves() {
			continue
		}
		if silence, heard := n.heard.silence(now, id, node.Incarnation); heard && silence < least {
			best, least = server, silence
		}
	}
	if best.ID == "" {
		return r.LeadershipTransfer().Error()
	}
	return r.LeadershipTransferToServer(best.ID, best.Address).Error()
}
