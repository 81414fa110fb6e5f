package state

import (
	"fmt"
	"reflect"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// putNode notes a node that has joined or started.
func (s *State) putNode(c *cluster.Start) error {
	n := &c.Node
	if err := checkNode(n); err != nil {
		return err
	}
	if s.IsRemoved(n.ID) {
		return fmt.Errorf("node %q %w: it was removed; join again under another name", n.ID, ErrInvalid)
	}
	old, exists := s.Node(n.ID)
	if exists && old.Role != n.Role {
		return fmt.Errorf("node %q %w: it is a %s already, and cannot become a %s", n.ID, ErrInvalid, old.Role, n.Role)
	}
	n.Joined, n.Incarnation = s.Time, 1
	if exists {
		n.Joined, n.Incarnation = old.Joined, old.Incarnation+1
	}
	// A start ends a drain: who wants the node idle stops it.
	n.Draining, n.Lost, n.Since = false, false, s.Time
	s.Nodes = s.Nodes.with(n.ID, *n, s.Index)
	s.Placement++
	// What ran in the last process runs no more, but for what this one says that it has.
	for id, r := range s.AllReplicas() {
		if r.Node == n.ID && r.Phase != cluster.Placed {
			r.Phase, r.Reason = cluster.Placed, ""
			s.Replicas = s.Replicas.with(id, r, s.Index)
		}
	}
	return s.reported(n.ID, c.Replicas)
}

// Started is a copy in which a node and its replicas serve, as some time after its start:
// a node that begins without the control nodes looks at what it knew so. Replicas that had
// stopped or not begun would never serve otherwise, as nobody notes what it reports. The
// copy's index is that of s.
func (s *State) Started(id string) *State {
	next := *s
	if n, ok := s.Node(id); ok {
		n.Draining, n.Lost = false, false
		next.Nodes = s.Nodes.with(id, n, s.Nodes[id].Index)
	}
	for name, r := range s.AllReplicas() {
		if r.Node == id && r.Phase != cluster.Failed && r.Phase != cluster.Ready {
			r.Phase, r.Reason = cluster.Ready, ""
			next.Replicas = next.Replicas.with(name, r, s.Replicas[name].Index)
		}
	}
	return &next
}

func (s *State) nodeState(c *cluster.NodeState) error {
	n, ok := s.Node(c.ID)
	if !ok {
		return refuse(KindNode, c.ID, ErrNotFound)
	}
	old := n
	if c.Draining != nil {
		n.Draining = *c.Draining
	}
	if c.Lost != nil {
		n.Lost = *c.Lost
	}
	if reflect.DeepEqual(n, old) {
		return nil
	}
	n.Since = s.Time
	s.Nodes = s.Nodes.with(n.ID, n, s.Index)
	s.Placement++
	return nil
}

// removeNode takes a node and its replicas out, for good, or an operator's certificate.
func (s *State) removeNode(c *cluster.RemoveNode) error {
	n, ok := s.Node(c.Name)
	if c.Role == cluster.Admin {
		return s.removeAdmin(c.Name, ok)
	}
	if !ok {
		return refuse(KindNode, c.Name, ErrNotFound)
	}
	if c.Role != "" && c.Role != n.Role {
		return fmt.Errorf("node %q %w: it is a %s, not a %s", c.Name, ErrInvalid, n.Role, c.Role)
	}
	if n.Role == cluster.Control && s.controls() == 1 {
		return fmt.Errorf("node %q %w: it is the only control node", c.Name, ErrInvalid)
	}
	for id, r := range s.AllReplicas() {
		if r.Node == n.ID {
			s.Replicas = s.Replicas.without(id)
			s.gone(KindReplica, id)
		}
	}
	s.Nodes = s.Nodes.without(n.ID)
	s.gone(KindNode, n.ID)
	s.Removed = s.Removed.with(n.ID, cluster.Removed{ID: n.ID, Role: n.Role, At: s.Time}, s.Index)
	s.Placement++
	return nil
}

// removeAdmin has the certificates of an operator refused. Nothing else is known of them.
func (s *State) removeAdmin(name string, isNode bool) error {
	if err := checkID(KindRemoved, name); err != nil {
		return err
	}
	if isNode {
		return fmt.Errorf("admin %q %w: a node has that name", name, ErrInvalid)
	}
	if !s.IsRemoved(name) {
		s.Removed = s.Removed.with(name, cluster.Removed{ID: name, Role: cluster.Admin, At: s.Time}, s.Index)
	}
	return nil
}

// controls counts the control nodes.
func (s *State) controls() (n int) {
	for _, node := range s.AllNodes() {
		if node.Role == cluster.Control {
			n++
		}
	}
	return n
}

// report notes what a worker says. Words about an earlier placement are passed over.
func (s *State) report(c *cluster.Report) error {
	if _, ok := s.Node(c.Node); !ok {
		return refuse(KindNode, c.Node, ErrNotFound)
	}
	return s.reported(c.Node, c.Replicas)
}

// reported notes what a worker's process says of its replicas.
func (s *State) reported(node string, list []cluster.ReplicaReport) error {
	for i := range list {
		w := &list[i]
		if err := checkReport(w); err != nil {
			return err
		}
		r, ok := s.Replica(w.ID)
		if !ok || r.Node != node || r.Generation != w.Generation {
			continue
		}
		old := r
		r.Phase, r.Reason, r.Facts = w.Phase, w.Reason, w.Facts
		if reflect.DeepEqual(r, old) {
			continue
		}
		s.Replicas = s.Replicas.with(w.ID, r, s.Index)
		s.Placement++
	}
	return nil
}

// place applies the leader's plan, if it still fits the state.
func (s *State) place(p *cluster.Place) error {
	if p.From != s.Placement {
		return fmt.Errorf("placement %d: %w: it is at %d", p.From, ErrConflict, s.Placement)
	}
	s.Placement++
	for _, id := range p.Delete {
		if _, ok := s.Replica(id); !ok {
			return refuse(KindReplica, id, ErrNotFound)
		}
		s.Replicas = s.Replicas.without(id)
		s.gone(KindReplica, id)
	}
	for _, id := range p.Drain {
		r, ok := s.Replica(id)
		if !ok {
			return refuse(KindReplica, id, ErrNotFound)
		}
		r.Draining = true
		s.Replicas = s.Replicas.with(id, r, s.Index)
	}
	for i := range p.Put {
		r := &p.Put[i]
		if err := checkReplica(r); err != nil {
			return err
		}
		if n, ok := s.Node(r.Node); !ok || n.Role != cluster.Worker {
			return fmt.Errorf("replica %q %w: node %q is no worker", r.ID, ErrInvalid, r.Node)
		}
		r.Generation, r.Phase, r.Reason, r.Facts = s.Placement, cluster.Placed, "", cluster.Facts{}
		s.Replicas = s.Replicas.with(r.ID, *r, s.Index)
	}
	for i := range p.Deployments {
		d := &p.Deployments[i]
		if old, ok := s.Deployment(d.Name); ok && !old.Default {
			continue // the operator's own
		}
		d.Default = true
		if err := s.putDeployment(d); err != nil {
			return err
		}
	}
	return nil
}
