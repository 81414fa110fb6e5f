package control_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// token makes a join token and tells the cluster of it.
func token(t *testing.T, c *controltest.Cluster, role cluster.Role, uses int, life time.Duration) identity.JoinToken {
	t.Helper()
	made, err := identity.NewJoinToken(identity.PublicKeyHash(c.Authority.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	c.Propose(c.Leader(), cluster.KindPutToken, cluster.Token{
		ID: made.ID, Role: role, Hash: made.Hash(), Created: now, Expires: now.Add(life), Uses: uses,
	})
	return made
}

func joiner(role cluster.Role, id string) client.Joiner {
	return client.Joiner{Role: role, Node: id, Build: "test", Speaks: protocol.Cluster()}
}

// Each role gets a certificate in its name, and the secrets that it needs and no
// others.
func TestJoin(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	for _, test := range []struct {
		role                      cluster.Role
		gossip, authority, pepper bool
	}{
		{cluster.Worker, true, false, false}, {cluster.Gateway, true, false, true},
		{cluster.Control, true, true, true}, {cluster.Admin, false, false, false},
	} {
		t.Run(string(test.role), func(t *testing.T) {
			// A follower does not know the token yet when it is asked.
			saved, err := client.Join(t.Context(), c.Follower().Addr, token(t, c, test.role, 1, time.Hour), joiner(test.role, "new-"+string(test.role)))
			if err != nil {
				t.Fatal(err)
			}
			if (len(saved.GossipKey) > 0) != test.gossip || (len(saved.AuthorityKey) > 0) != test.authority || (len(saved.Pepper) > 0) != test.pepper {
				t.Errorf("gossip key %v, authority %v, pepper %v", len(saved.GossipKey) > 0, len(saved.AuthorityKey) > 0, len(saved.Pepper) > 0)
			}
			if len(saved.Control) != 3 {
				t.Errorf("addresses %v, want 3", saved.Control)
			}
			dir := t.TempDir()
			if err := saved.Save(dir); err != nil {
				t.Fatal(err)
			}
			if saved, err = identity.Load(dir); err != nil {
				t.Fatal(err)
			}
			credentials, err := identity.NewCredentials(saved.Certificate, saved.Key, saved.CAs, nil)
			if err != nil {
				t.Fatal(err)
			}
			member, err := client.New(client.Config{Credentials: credentials, Control: saved.Control})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = member.Close() }()
			if _, err := member.Status(t.Context()); err != nil {
				t.Errorf("the new identity is refused: %v", err)
			}
		})
	}
}

// Refusals name their reason, each its own.
func TestJoinRefusals(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	c.Propose(c.Leader(), cluster.KindPutNode, node("taken", cluster.Worker))
	unknown, err := identity.NewJoinToken(identity.PublicKeyHash(c.Authority.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	used, revoked := token(t, c, cluster.Worker, 1, time.Hour), token(t, c, cluster.Worker, 1, time.Hour)
	if _, err := client.Join(t.Context(), c.Leader().Addr, used, joiner(cluster.Worker, "first")); err != nil {
		t.Fatal(err)
	}
	c.Propose(c.Leader(), cluster.KindRevokeToken, cluster.Name{Name: revoked.ID})
	good := token(t, c, cluster.Worker, 5, time.Hour)
	guessed := good
	guessed.Secret[0]++
	wrongCA := good
	wrongCA.CAHash[0]++
	for _, test := range []struct {
		name  string
		token identity.JoinToken
		who   client.Joiner
		want  error
	}{
		{"unknown", unknown, joiner(cluster.Worker, "w"), state.ErrTokenUnknown},
		{"wrong secret", guessed, joiner(cluster.Worker, "w"), state.ErrTokenUnknown},
		{"expired", token(t, c, cluster.Worker, 1, -time.Second), joiner(cluster.Worker, "w"), state.ErrTokenExpired},
		{"revoked", revoked, joiner(cluster.Worker, "w"), state.ErrTokenRevoked},
		{"used", used, joiner(cluster.Worker, "w"), state.ErrTokenUsed},
		{"wrong role", good, joiner(cluster.Control, "w"), state.ErrTokenRole},
		{"taken name", good, joiner(cluster.Worker, "taken"), state.ErrExists},
		{"bad name", good, joiner(cluster.Worker, "a/b"), client.ErrBadRequest},
		{"old build", good, client.Joiner{Role: cluster.Worker, Node: "w"}, client.ErrVersion},
		{"wrong CA", wrongCA, joiner(cluster.Worker, "w"), identity.ErrPeer},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := client.Join(t.Context(), c.Leader().Addr, test.token, test.who); !errors.Is(err, test.want) {
				t.Errorf("error %v, want %v", err, test.want)
			}
		})
	}
	if left, _ := c.Leader().State().Token(good.ID); left.Uses != 5 {
		t.Errorf("refusals have taken %d uses", 5-left.Uses)
	}
	// That was nearly enough bad tries for a minute.
	for range 10 {
		_, err = client.Join(t.Context(), c.Leader().Addr, unknown, joiner(cluster.Worker, "w"))
	}
	if !errors.Is(err, client.ErrTooMany) {
		t.Errorf("error %v, want ErrTooMany", err)
	}
}

// Builds that speak no version of the control nodes' are refused with both ranges, and
// without a use of their token; newer ones that still speak one get in.
func TestJoinVersions(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	good := token(t, c, cluster.Worker, 5, time.Hour)
	own := protocol.Cluster()
	for i, test := range []struct {
		speaks protocol.Range
		says   string
	}{
		{own, ""},
		{protocol.Range{Oldest: own.Newest, Newest: own.Newest + 5}, ""},
		{protocol.Range{Oldest: own.Newest + 1, Newest: own.Newest + 2}, fmt.Sprintf("this side speaks %s, the other %d to %d: the other is too new", own, own.Newest+1, own.Newest+2)},
		{protocol.Range{}, "no range of versions"},
		{protocol.Range{Oldest: 2, Newest: 1}, "no range of versions"},
		{protocol.Range{Oldest: -5, Newest: -4}, "no range of versions"},
	} {
		who := joiner(cluster.Worker, fmt.Sprintf("w%d", i))
		who.Speaks = test.speaks
		_, err := client.Join(t.Context(), c.Leader().Addr, good, who)
		if test.says == "" && err != nil || test.says != "" && (!errors.Is(err, client.ErrVersion) || !strings.Contains(err.Error(), test.says)) {
			t.Errorf("%s: error %v, want %q", test.speaks, err, test.says)
		}
	}
	if left, _ := c.Leader().State().Token(good.ID); left.Uses != 3 {
		t.Errorf("%d uses are left, want 3", left.Uses)
	}
}

// A node that fits no more is refused when it starts, and the log takes nothing of it.
func TestStartVersions(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	n := node("w1", cluster.Worker)
	n.Protocol, n.MinProtocol = cluster.Protocol+2, cluster.Protocol+1
	start, err := cluster.NewCommand(cluster.KindPutNode, "", time.Now(), n)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client(cluster.Worker, "w1").Propose(t.Context(), start); !errors.Is(err, client.ErrVersion) || !strings.Contains(err.Error(), `worker "w1", build "test"`) {
		t.Errorf("error %v, want ErrVersion", err)
	}
	if _, ok := c.Leader().State().Node("w1"); ok {
		t.Error("it is in the state all the same")
	}
}

// A token with one use admits one of those who come at the same time, whichever
// control nodes they ask; and that one may ask again.
func TestJoinOnce(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	once := token(t, c, cluster.Worker, 1, time.Hour)
	c.Await("the token", func(s *state.State) bool { _, ok := s.Token(once.ID); return ok })
	results := make(chan error, 6)
	for i := range cap(results) {
		addr := c.Nodes()[i%3].Addr
		go func() {
			_, err := client.Join(context.Background(), addr, once, joiner(cluster.Worker, "w"))
			results <- err
		}()
	}
	joined := 0
	for range cap(results) {
		switch err := <-results; {
		case err == nil:
			joined++
		case !errors.Is(err, state.ErrTokenUsed):
			t.Errorf("error %v, want ErrTokenUsed", err)
		}
	}
	if joined != 1 {
		t.Errorf("%d have joined with one use", joined)
	}

	// The same request again, as after a lost answer.
	again := token(t, c, cluster.Worker, 1, time.Hour)
	_, request, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	message, err := json.Marshal(cluster.JoinRequest{
		Token: again.ID, Secret: again.Secret[:], Role: cluster.Worker, Node: "w9", Request: request, Protocol: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		response := rawJoin(t, c.Nodes()[i].Addr, append(message, '\n'))
		if response.Problem != nil || response.Certificate == "" {
			t.Errorf("time %d: %v", i+1, response)
		}
	}
}

// Who comes while there is no leader waits for one, and has used its token once.
func TestJoinDuringElection(t *testing.T) {
	t.Parallel()
	log := new(buffer)
	c := controltest.New(t, 3, func(cfg *control.Config) {
		controltest.Impatient(cfg)
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	})
	once := token(t, c, cluster.Worker, 1, time.Hour)
	c.Await("the token", func(s *state.State) bool { _, ok := s.Token(once.ID); return ok })
	gone := slices.Clone(c.Nodes()[:2])
	survivor := c.Nodes()[2]
	for _, n := range gone {
		n.Crash()
		c.Forget(n)
	}
	joined := pool.New().WithErrors()
	joined.Go(func() error {
		_, err := client.Join(context.Background(), survivor.Addr, once, joiner(cluster.Worker, "w"))
		return err
	})
	c.Poll("a refusal", func() bool { return strings.Contains(log.String(), "join refused") })
	for _, n := range gone {
		c.Start(n.ID)
	}
	if err := joined.Wait(); err != nil {
		t.Error(err)
	}
}

// rawJoin sends bytes to the join protocol and reads what comes.
func rawJoin(t *testing.T, addr string, message []byte) (response cluster.JoinResponse) {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{identity.ProtocolJoin}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write(message) // the server may have closed already
	text, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, net.ErrClosed) && len(text) == 0 {
		t.Logf("read: %v", err)
	}
	if err := json.Unmarshal(text, &response); err != nil {
		t.Fatalf("answer %q: %v", text, err)
	}
	return response
}

// buffer is a log that goroutines share.
type buffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

// Bad messages are refused shortly, and no secret gets into a log, whatever comes.
func TestJoinMessages(t *testing.T) {
	t.Parallel()
	log := new(buffer)
	c := controltest.New(t, 1, func(cfg *control.Config) {
		cfg.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	one := token(t, c, cluster.Worker, 1, time.Hour)
	secret := base64.StdEncoding.EncodeToString(one.Secret[:])
	for name, message := range map[string]string{
		"empty line":      "\n",
		"no JSON":         "canary-" + secret + "\n",
		"wrong types":     `{"token":1,"secret":"` + secret + `"}` + "\n",
		"too long":        strings.Repeat("x", cluster.MaxJoinRequest+10) + "\n",
		"short secret":    `{"token":"` + one.ID + `","secret":"AAAA","role":"worker","node":"w","protocol":1}` + "\n",
		"no request":      `{"token":"` + one.ID + `","secret":"` + secret + `","role":"worker","node":"w","protocol":1}` + "\n",
		"garbage request": `{"token":"` + one.ID + `","secret":"` + secret + `","role":"worker","node":"w","protocol":1,"request":"AAAA"}` + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if r := rawJoin(t, c.Leader().Addr, []byte(message)); r.Problem == nil || r.Certificate != "" {
				t.Errorf("answer %v", r)
			}
		})
	}
	if _, err := client.Join(t.Context(), c.Leader().Addr, one, joiner(cluster.Worker, "w")); err != nil {
		t.Fatal(err)
	}
	text := log.String()
	if !strings.Contains(text, "node admitted") || !strings.Contains(text, "join refused") {
		t.Error("the log does not tell of the joins")
	}
	for name, canary := range map[string]string{
		"secret": secret, "secret in hex": base64.RawURLEncoding.EncodeToString(one.Secret[:]),
		"gossip key": string(c.GossipKey), "pepper": string(c.Pepper), "key": "PRIVATE KEY",
	} {
		if strings.Contains(text, canary) {
			t.Errorf("the log has the %s", name)
		}
	}
}
