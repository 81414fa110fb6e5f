package state

import (
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

const (
	// forgetOperators is how long an operator is listed after its last certificate has
	// ended, maxOperators how many are.
	forgetOperators = 30 * 24 * time.Hour
	maxOperators    = 4096
	// ForgetAfter is how long a gateway must be lost to be forgotten.
	ForgetAfter = 24 * time.Hour
)

// noteOperator notes a certificate. What a token or an earlier certificate has said of
// the identity stays, unless it is of another token: then it is another identity of the
// same name.
func (s *State) noteOperator(o *cluster.Operator) error {
	if err := checkID(KindOperator, o.Name); err != nil {
		return err
	}
	if _, isNode := s.Node(o.Name); isNode {
		return fmt.Errorf("operator %q %w: a node has that name", o.Name, ErrInvalid)
	}
	if s.IsRemoved(o.Name) {
		return fmt.Errorf("operator %q %w: it was revoked", o.Name, ErrInvalid)
	}
	if o.Until.IsZero() || !o.Expires.IsZero() && o.Until.After(o.Expires) {
		return fmt.Errorf("operator %q %w: its certificate must end, and not after the identity", o.Name, ErrInvalid)
	}
	next := *o
	old, known := s.Operator(o.Name)
	if known && o.Token == "" {
		next.Created, next.Expires, next.Token = old.Created, old.Expires, old.Token
	}
	if next.Created.IsZero() {
		next.Created = s.Time
	}
	for name, other := range s.AllOperators() {
		if s.Time.Sub(other.Until) > forgetOperators && name != o.Name {
			s.Operators = s.Operators.without(name)
			s.gone(KindOperator, name)
		}
	}
	if !known && len(s.Operators) >= maxOperators {
		return fmt.Errorf("operator %q %w: there are %d already", o.Name, ErrInvalid, maxOperators)
	}
	s.Operators = s.Operators.with(o.Name, next, s.Index)
	return nil
}

// forgetNode takes a gateway out that was lost for long. It holds nothing, and announces
// itself again when it comes back.
func (s *State) forgetNode(c *cluster.Name) error {
	n, ok := s.Node(c.Name)
	switch {
	case !ok:
		return refuse(KindNode, c.Name, ErrNotFound)
	case n.Role != cluster.Gateway:
		return fmt.Errorf("node %q %w: only gateways are forgotten", c.Name, ErrInvalid)
	case !n.Lost || s.Time.Sub(n.Since) < ForgetAfter:
		return fmt.Errorf("node %q: %w: it was heard within %s", c.Name, ErrConflict, ForgetAfter)
	}
	s.Nodes = s.Nodes.without(n.ID)
	s.gone(KindNode, n.ID)
	return nil
}
