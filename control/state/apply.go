package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Apply returns the state after a command, which was committed at index. The
// error is the command's result; the state is never nil.
func Apply(s *State, index uint64, c cluster.Command) (*State, error) {
	next := *s
	next.Index = index
	if c.Time.After(next.Time) {
		next.Time = c.Time
	}
	if c.V > 1 {
		next.Written = max(s.Written, c.V)
	}
	if c.Request != "" {
		if done, err := s.repeated(c.Request, next.Time); done {
			return &next, err
		}
	}
	err := next.apply(&c)
	if err != nil {
		same := *s // what was changed before the error was found is not kept
		same.Index, same.Time, same.Written = next.Index, next.Time, next.Written
		next = same
	}
	if c.Request != "" {
		next.remember(c.Request, err)
	}
	return &next, err
}

// repeated looks for an earlier command with the same request id.
func (s *State) repeated(id string, now time.Time) (bool, error) {
	i := slices.IndexFunc(s.Requests, func(r Request) bool { return r.ID == id })
	if i < 0 || now.Sub(s.Requests[i].Time) > cluster.RememberFor {
		return false, nil
	}
	r := s.Requests[i]
	if r.Err == "" {
		return true, nil
	}
	if err := Coded(r.Code, r.Err); err != nil {
		return true, err
	}
	return true, errors.New(r.Err)
}

func (s *State) remember(id string, err error) {
	old := slices.IndexFunc(s.Requests, func(r Request) bool {
		return s.Time.Sub(r.Time) <= cluster.RememberFor
	})
	if old < 0 {
		old = len(s.Requests)
	}
	old = max(old, len(s.Requests)+1-maxRequests)
	r := Request{ID: id, Time: s.Time}
	if err != nil {
		r.Err, r.Code = err.Error(), Code(err)
	}
	s.Requests = append(slices.Clone(s.Requests[old:]), r)
}

// apply changes s, which Apply's caller does not see yet.
func (s *State) apply(c *cluster.Command) error {
	if _, exists := s.Cluster(); !exists && c.Kind != cluster.KindInit {
		return fmt.Errorf("cluster %w: it was not initialised", ErrNotFound)
	}
	switch c.Kind {
	case cluster.KindInit:
		return decoded(c, s.init)
	case cluster.KindPutNode:
		return decoded(c, s.putNode)
	case cluster.KindNodeState:
		return decoded(c, s.nodeState)
	case cluster.KindRemoveNode:
		return decoded(c, s.removeNode)
	case cluster.KindReport:
		return decoded(c, s.report)
	case cluster.KindPlace:
		return decoded(c, s.place)
	case cluster.KindPutDeployment:
		return decoded(c, s.putDeployment)
	case cluster.KindDeleteDeployment:
		return decoded(c, s.deleteDeployment)
	case cluster.KindPutTable:
		return decoded(c, s.putTable)
	case cluster.KindPutKey:
		return decoded(c, s.putKey)
	case cluster.KindRevokeKey:
		return decoded(c, s.revokeKey)
	case cluster.KindRotateGossip:
		return decoded(c, s.rotateGossip)
	case cluster.KindSetGossip:
		return decoded(c, s.setGossip)
	case cluster.KindDeleteKey:
		return decoded(c, s.deleteKey)
	case cluster.KindPutToken:
		return decoded(c, s.putToken)
	case cluster.KindUseToken:
		return decoded(c, s.useToken)
	case cluster.KindRevokeToken:
		return decoded(c, s.revokeToken)
	case cluster.KindSetCAs:
		return decoded(c, s.setCAs)
	case cluster.KindNoteOperator:
		return decoded(c, s.noteOperator)
	case cluster.KindForgetNode:
		return decoded(c, s.forgetNode)
	case cluster.KindQuarantine:
		return decoded(c, s.quarantine)
	case cluster.KindReleaseGPU:
		return decoded(c, s.releaseGPU)
	}
	if known, err := s.applyNext(c); known {
		return err
	}
	return fmt.Errorf("command %q %w: this build does not know it", c.Kind, ErrInvalid)
}

// decoded calls f with the command's body.
func decoded[T any](c *cluster.Command, f func(*T) error) error {
	body := new(T)
	if err := c.Decode(body); err != nil {
		return err
	}
	return f(body)
}

func (s *State) init(c *cluster.Cluster) error {
	if _, exists := s.Cluster(); exists {
		return refuse(KindCluster, c.Name, ErrExists)
	}
	if err := checkID(KindCluster, c.ID); err != nil {
		return err
	}
	s.Clusters = s.Clusters.with(clusterName, *c, s.Index)
	return nil
}

func (s *State) setCAs(c *cluster.CAs) error {
	if len(c.CAs) == 0 {
		return fmt.Errorf("cas %w: the list is empty", ErrInvalid)
	}
	own, _ := s.Cluster()
	own.CAs = c.CAs
	s.Clusters = s.Clusters.with(clusterName, own, s.Index)
	return nil
}

func (s *State) putDeployment(d *cluster.Deployment) error {
	if err := CheckDeployment(d); err != nil {
		return err
	}
	old, exists := s.Deployment(d.Name)
	d.Version = 1
	if exists {
		d.Version = old.Version
		if same(d, &old) {
			return nil // so that it is harmless to apply a file again
		}
		d.Version++
	}
	s.Deployments = s.Deployments.with(d.Name, *d, s.Index)
	s.Placement++
	if _, solved := s.Tables[d.Name]; solved && exists && (d.Policy != old.Policy || !slices.Equal(d.Models, old.Models)) {
		s.deleteTable(d.Name) // it was solved for another routing
	}
	return nil
}

// same compares deployments by their encoding, which does not tell an empty list from
// none: a snapshot does not either.
func same(a, b *cluster.Deployment) bool {
	x, err := json.Marshal(a)
	if err != nil {
		return false
	}
	y, err := json.Marshal(b)
	return err == nil && bytes.Equal(x, y)
}

func (s *State) deleteDeployment(n *cluster.Name) error {
	if _, ok := s.Deployment(n.Name); !ok {
		return refuse(KindDeployment, n.Name, ErrNotFound)
	}
	s.Deployments = s.Deployments.without(n.Name)
	s.gone(KindDeployment, n.Name)
	s.deleteTable(n.Name)
	s.Placement++
	return nil
}

func (s *State) deleteTable(name string) {
	if _, ok := s.Tables[name]; ok {
		s.Tables = s.Tables.without(name)
		s.gone(KindTable, name)
	}
}

func (s *State) putTable(t *cluster.Table) error {
	d, ok := s.Deployment(t.Deployment)
	if !ok {
		return refuse(KindDeployment, t.Deployment, ErrNotFound)
	}
	if err := checkTable(t, len(d.Models)); err != nil {
		return err
	}
	s.Tables = s.Tables.with(t.Deployment, *t, s.Index)
	return nil
}

func (s *State) putKey(k *cluster.Key) error {
	if err := checkKey(k); err != nil {
		return err
	}
	if _, exists := s.Key(k.ID); exists {
		return refuse(KindKey, k.ID, ErrExists)
	}
	s.Keys = s.Keys.with(k.ID, *k, s.Index)
	return nil
}

func (s *State) revokeKey(n *cluster.Name) error {
	k, ok := s.Key(n.Name)
	if !ok {
		return refuse(KindKey, n.Name, ErrNotFound)
	}
	k.Revoked = true
	s.Keys = s.Keys.with(n.Name, k, s.Index)
	return nil
}

// deleteKey forgets a key that nobody can use any more.
func (s *State) deleteKey(n *cluster.Name) error {
	k, ok := s.Key(n.Name)
	if !ok {
		return refuse(KindKey, n.Name, ErrNotFound)
	}
	if !k.Revoked && (k.Expires.IsZero() || s.Time.Before(k.Expires)) {
		return fmt.Errorf("key %q %w: it is valid; revoke it first", n.Name, ErrInvalid)
	}
	s.Keys = s.Keys.without(n.Name)
	s.gone(KindKey, n.Name)
	return nil
}

func (s *State) putToken(t *cluster.Token) error {
	if err := checkToken(t); err != nil {
		return err
	}
	if _, exists := s.Token(t.ID); exists {
		return refuse(KindToken, t.ID, ErrExists)
	}
	for name, old := range s.AllTokens() {
		if s.Time.Sub(old.Expires) > forgetTokens {
			s.Tokens = s.Tokens.without(name)
			s.gone(KindToken, name)
		}
	}
	s.Tokens = s.Tokens.with(t.ID, *t, s.Index)
	return nil
}

// forgetTokens is how long an expired token is kept, so that its error can say so.
const forgetTokens = 7 * 24 * time.Hour

func (s *State) useToken(u *cluster.UseToken) error {
	t, err := s.Admits(u.ID, u.Role)
	if err != nil {
		return err
	}
	if _, exists := s.Node(u.Node); exists {
		return refuse(KindNode, u.Node, ErrExists)
	}
	if s.IsRemoved(u.Node) {
		return fmt.Errorf("node %q %w: it was removed; join again under another name", u.Node, ErrInvalid)
	}
	if t.Role == cluster.Admin && !u.Until.IsZero() {
		err := s.noteOperator(&cluster.Operator{Name: u.Node, Created: s.Time, Expires: t.IdentityExpires, Until: u.Until, Token: t.ID})
		if err != nil {
			return err
		}
	}
	t.Uses--
	s.Tokens = s.Tokens.with(u.ID, t, s.Index)
	return nil
}

// Admits returns a token if it admits a node of a role at the state's time; an empty
// role is any. The error is ErrToken with its reason. It says nothing of the secret.
func (s *State) Admits(id string, role cluster.Role) (cluster.Token, error) {
	t, ok := s.Token(id)
	switch {
	case !ok:
		return t, fmt.Errorf("%w %q %w", ErrToken, id, ErrTokenUnknown)
	case role != "" && t.Role != role:
		return t, fmt.Errorf("%w %q %w: it admits a %s, not a %s", ErrToken, id, ErrTokenRole, t.Role, role)
	case t.Revoked:
		return t, fmt.Errorf("%w %q %w", ErrToken, id, ErrTokenRevoked)
	case s.Time.After(t.Expires):
		return t, fmt.Errorf("%w %q %w at %s", ErrToken, id, ErrTokenExpired, t.Expires.Format(time.RFC3339))
	case t.Uses < 1:
		return t, fmt.Errorf("%w %q %w", ErrToken, id, ErrTokenUsed)
	}
	return t, nil
}

func (s *State) revokeToken(n *cluster.Name) error {
	t, ok := s.Token(n.Name)
	if !ok {
		return refuse(KindToken, n.Name, ErrNotFound)
	}
	t.Revoked = true
	s.Tokens = s.Tokens.with(n.Name, t, s.Index)
	return nil
}
