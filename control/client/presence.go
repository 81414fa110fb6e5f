package client

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// AwaitLoss watches over a start of a node that was told to the cluster and is in every
// state since index. It returns nil once the state has the start no more, so that it must
// be told again: after a backup was restored, or a gateway forgotten. It returns
// ErrElsewhere once another process has started as the node, and ctx's cause.
//
// Two processes of one identity, which is what the copy of a directory makes, would take
// the node from each other for ever, each by telling its start again; every time the
// node's replicas would begin anew for everybody else. The one that has started last stays.
func (v *View) AwaitLoss(ctx context.Context, self *cluster.Node, index uint64) error {
	self, err := asNoted(self)
	if err != nil {
		return err
	}
	for {
		s, err := v.WaitFor(ctx, func(s *state.State) bool { return s.Index >= index && !v.isRecalled() })
		if err != nil {
			return err
		}
		told, _ := s.Node(self.ID)
		if lacks(s, self) {
			return nil
		}
		history := s.History
		if s, err = v.WaitFor(ctx, func(s *state.State) bool { return lacks(s, self) || s.History != history }); err != nil {
			return err
		}
		own, known := s.Node(self.ID)
		switch {
		case s.History != history:
			index = 0 // what it has is of before this start, or another count of starts
		case known && own.Incarnation > told.Incarnation && own.Addr != self.Addr:
			return fmt.Errorf("%w: %s %s has started at %s, after this one at %s; each node needs a directory of its own, which is empty when it joins",
				ErrElsewhere, own.Role, own.ID, own.Addr, self.Addr)
		default:
			return nil
		}
	}
}

// lacks says that a state does not have a node as it is now. What the state itself says of
// a node, such as that it drains, does not count.
func lacks(s *state.State, self *cluster.Node) bool {
	_, exists := s.Cluster()
	own, known := s.Node(self.ID)
	same := known && own.Addr == self.Addr && own.Gossip == self.Gossip && own.Public == self.Public &&
		own.Build == self.Build && own.Speaks() == self.Speaks() && slices.Equal(own.GPUs, self.GPUs) &&
		slices.EqualFunc(own.Pins, self.Pins, func(a, b cluster.Pin) bool {
			return a.Model == b.Model && a.Source == b.Source && a.TP == b.TP && slices.Equal(a.GPUs, b.GPUs)
		})
	return exists && !s.IsRemoved(self.ID) && !same
}

// asNoted is a node as a state has it: texts that are not UTF-8 become others on the way.
func asNoted(n *cluster.Node) (*cluster.Node, error) {
	text, err := json.Marshal(n)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	out := new(cluster.Node)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return out, nil
}

// isRecalled says that State is what an earlier process has seen.
func (v *View) isRecalled() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.recalled
}
