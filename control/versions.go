package control

import (
	"fmt"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// writable refuses a command that some control node could not read, which would end
// that node; and the announcement of a node that does not fit. self is this node and
// ours what its build speaks, which the state may not know yet.
func writable(s *state.State, self string, ours protocol.Range, c *cluster.Command) error {
	if all := s.Spoken(self).And(ours); !all.Has(c.V) {
		return fmt.Errorf("%w: command %.64s has version %d; %s", client.ErrVersion, c.Kind, c.V, holdouts(s, self, ours, c.V))
	}
	if err := c.Check(); err != nil {
		return err
	}
	if c.Kind != cluster.KindPutNode {
		return nil
	}
	var start cluster.Start
	if err := c.Decode(&start); err != nil {
		return err
	}
	node := &start.Node
	if !node.Role.Valid() || !node.Speaks().Valid() {
		return nil // which is refused when it is applied, and why
	}
	return fits(s, self, ours, node)
}

// holdouts names the control nodes that do not speak a version, and what to do.
func holdouts(s *state.State, self string, ours protocol.Range, v int) string {
	var out []string
	add := func(id string, r protocol.Range) {
		if !r.Has(v) {
			out = append(out, fmt.Sprintf("control node %s speaks %s", id, r))
		}
	}
	for id, n := range s.AllNodes() {
		if n.Role == cluster.Control && id != self {
			add(id, n.Speaks())
		}
	}
	add(self, ours)
	return strings.Join(out, ", ") + "; upgrade those that are older, or remove them"
}

// fits refuses a node that has no version in common with all control nodes but itself,
// and a control node that could not read what is written.
func fits(s *state.State, self string, ours protocol.Range, n *cluster.Node) error {
	all := s.Spoken(n.ID, self)
	if n.ID != self {
		all = all.And(ours)
	}
	theirs := n.Speaks()
	if _, err := protocol.Agree(protocol.NameCluster, all, theirs); err != nil {
		return fmt.Errorf("%w: %s %.64q, build %.64q: %w", client.ErrVersion, n.Role, n.ID, n.Build, err)
	}
	if n.Role == cluster.Control && theirs.Newest < s.Written {
		return fmt.Errorf("%w: %s %.64q, build %.64q, speaks %s, and version %d was written already; use a build that speaks %d",
			client.ErrVersion, n.Role, n.ID, n.Build, theirs, s.Written, s.Written)
	}
	return nil
}
