package control

import (
	"context"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// A leader whose process dies hangs up: its connections end at once, long before its
// silence would count. Followers use that. When the leader's connection ends, it
// cannot be reached anew, and it has been silent for the length of its lease, they
// stand for election without waiting for the whole heartbeat timeout.
//
// They do so one after another: a follower grants a pre-vote only when it has given
// up the leader itself, and two that stand at the same moment would split the votes.

// stagger lies between the followers' turns. It is long for a message and its answer,
// and short against a heartbeat.
const stagger = 60 * time.Millisecond

// reachTime bounds the attempt to reach a leader that has hung up.
const reachTime = 150 * time.Millisecond

// hangups shortens the wait for a leader that has hung up.
func (n *Node) hangups(ctx context.Context, r *raft.Raft, s *stream) error {
	for {
		select {
		case node := <-s.hungUp:
			if reign, _ := n.leader.now(); reign.leader == node && !reign.self {
				own, cancel := reign.within(ctx)
				n.doubt(own, r, s, node)
				cancel()
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// doubt gives the leader up if it is gone. It returns when that is decided, and the
// library's timeout is what it was; ctx ends with the reign.
func (n *Node) doubt(ctx context.Context, r *raft.Raft, s *stream, leader string) {
	turn, voter := n.turn(r, leader)
	if !voter || s.reaches(leader) {
		return
	}
	silent := n.cfg.Lease + time.Duration(turn)*stagger
	if !pause(ctx, silent-time.Since(r.LastContact())) || time.Since(r.LastContact()) < silent || s.reaches(leader) {
		return
	}
	n.log.Info("the leader has hung up and cannot be reached", "leader", leader)
	timeouts := r.ReloadableConfig()
	timeouts.HeartbeatTimeout = n.cfg.Lease
	if err := r.ReloadConfig(timeouts); err != nil {
		n.log.Warn("timeout not shortened", "err", err)
		return
	}
	pause(ctx, n.cfg.Lease) // until the reign ends, which is now
	timeouts.HeartbeatTimeout = n.cfg.Heartbeat
	if err := r.ReloadConfig(timeouts); err != nil {
		n.log.Warn("timeout not set back", "err", err)
	}
}

// turn is this node's place among the voters that are left.
func (n *Node) turn(r *raft.Raft, leader string) (turn int, voter bool) {
	var ids []string
	for _, server := range n.servers(r) {
		if id := string(server.ID); server.Suffrage == raft.Voter && id != leader {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	turn = slices.Index(ids, n.cfg.Self.ID)
	return turn, turn >= 0
}

// pause returns false if ctx ended first.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// reaches says that a control node takes a connection.
func (s *stream) reaches(node string) bool {
	addr, ok := s.book.find(node)
	if !ok {
		return false
	}
	conn, err := s.Dial(target(node, addr), reachTime)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was sent
	return true
}
