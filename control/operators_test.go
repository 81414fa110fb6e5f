package control_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// An operator's certificate ends with its identity, when it joins and when it is renewed;
// afterwards there is none.
func TestOperatorsEnd(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	made, err := identity.NewJoinToken(identity.PublicKeyHash(c.Authority.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	ends := now.Add(12 * time.Hour)
	c.Propose(c.Leader(), cluster.KindPutToken, cluster.Token{
		ID: made.ID, Role: cluster.Admin, Hash: made.Hash(), Created: now, Expires: now.Add(time.Hour), Uses: 1, IdentityExpires: ends,
	})
	saved, err := client.Join(t.Context(), c.Leader().Addr, made, joiner(cluster.Admin, "alice"))
	if err != nil {
		t.Fatal(err)
	}
	credentials, err := identity.NewCredentials(saved.Certificate, saved.Key, saved.CAs, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !credentials.Expires().Equal(ends) {
		t.Errorf("the certificate ends %s, the identity %s", credentials.Expires(), ends)
	}
	alice, err := client.New(client.Config{Credentials: credentials, Control: saved.Control})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alice.Close() }()
	if _, _, _, err := alice.Renew(t.Context()); err != nil || !credentials.Expires().Equal(ends) {
		t.Errorf("renewed until %s, %v", credentials.Expires(), err)
	}
	c.Await("the operator", func(s *state.State) bool {
		o, ok := s.Operator("alice")
		return ok && o.Until.Equal(ends) && o.Expires.Equal(ends) && o.Token == made.ID
	})
	// An identity of before is noted when it is renewed, and may be ended by the state.
	bob := c.Client(cluster.Admin, "bob")
	if _, _, _, err := bob.Renew(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.Await("bob", func(s *state.State) bool { o, ok := s.Operator("bob"); return ok && o.Expires.IsZero() })
	change(t, c, func(s *state.State) {
		old := s.Operators["bob"]
		old.Value.Expires = now.Add(-time.Minute)
		s.Operators["bob"] = old
	})
	if _, _, _, err := bob.Renew(t.Context()); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("after its end: %v", err)
	}
}

// change restores a backup of the state in which something was changed.
func change(t *testing.T, c *controltest.Cluster, f func(*state.State)) {
	t.Helper()
	text := c.Backup()
	backup, s, err := control.ParseBackup(text)
	if err != nil {
		t.Fatal(err)
	}
	f(s)
	if backup.State, err = json.Marshal(s); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(backup.State)
	backup.SHA256 = hex.EncodeToString(sum[:])
	if text, err = json.Marshal(backup); err != nil {
		t.Fatal(err)
	}
	c.Restore(text)
}

// The leader forgets a gateway that is lost for a day, and no other node.
func TestGatewaysAreForgotten(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	for _, n := range []cluster.Node{
		{ID: "old", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: 2}, {ID: "new", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: 2},
		{ID: "w", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 2},
	} {
		c.Propose(c.Leader(), cluster.KindPutNode, n)
	}
	c.Await("losses", func(s *state.State) bool {
		lost := 0
		for _, n := range s.AllNodes() {
			if n.Lost {
				lost++
			}
		}
		return lost == 3
	})
	change(t, c, func(s *state.State) {
		for _, id := range []string{"old", "w"} {
			n := s.Nodes[id]
			n.Value.Since = n.Value.Since.Add(-state.ForgetAfter)
			s.Nodes[id] = n
		}
	})
	c.Await("that it is forgotten", func(s *state.State) bool { _, ok := s.Node("old"); return !ok })
	s := c.Leader().State()
	for _, id := range []string{"new", "w"} {
		if _, ok := s.Node(id); !ok {
			t.Errorf("%s is forgotten", id)
		}
	}
	c.Propose(c.Leader(), cluster.KindPutNode, cluster.Node{ID: "old", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: 2})
}
