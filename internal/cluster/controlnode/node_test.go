package controlnode

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/apikey"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds every wait.
const patience = 20 * time.Second

// logs keeps what a node has logged.
type logs struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logs) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// process is a control node that runs in its directory.
type process struct {
	*Node
	t      *testing.T
	dir    string
	socket string
	client *operator.Client
	log    *logs
	stop   context.CancelFunc
	done   conc.WaitGroup
	err    error
}

// run starts a node with an identity that is there already.
func run(t *testing.T, dir string, saved *identity.Saved, contacts ...string) *process {
	t.Helper()
	p := &process{t: t, dir: dir, log: new(logs), socket: filepath.Join(t.TempDir(), "admin.sock")}
	admin, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.Node, err = New(Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Admin: admin, MetricsListen: "127.0.0.1:0", Build: "test", Contacts: contacts,
		Log: slog.New(slog.NewTextHandler(p.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Change: func(c *control.Config) {
			c.NoSync, c.Heartbeat, c.Election, c.Lease = true, 300*time.Millisecond, 300*time.Millisecond, 200*time.Millisecond
			c.RefusedAfter = 5 * time.Second // a node that is refused answers for so long, also on a busy machine
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.client = operator.OnSocket(p.socket)
	p.done.Go(func() { p.err = p.Run(ctx) })
	t.Cleanup(func() { p.end() })
	return p
}

// end stops the node and returns what Run returned.
func (p *process) end() error {
	p.stop()
	p.done.Wait()
	if err := p.client.Close(); err != nil {
		p.t.Error(err)
	}
	return p.err
}

func (p *process) await() *process {
	p.t.Helper()
	select {
	case <-p.Ready():
	case <-time.After(patience):
		p.t.Fatalf("not ready:\n%s", p.log)
	}
	return p
}

func found(t *testing.T) (string, *identity.Saved) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "control")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	saved, founded, err := Found(dir, Founding{Cluster: "test"}, time.Now())
	if err != nil || !founded {
		t.Fatalf("founded %t, %v", founded, err)
	}
	return dir, saved
}

// token makes a join token through the operator's client.
func (p *process) token(role cluster.Role) string {
	p.t.Helper()
	var text identity.JoinToken
	p.led(func() (err error) {
		text, _, err = p.client.CreateToken(p.t.Context(), operator.TokenRequest{Role: role, Life: time.Hour, Uses: 1})
		return err
	})
	return text.Reveal()
}

// remove removes a node.
func (p *process) remove(node string) {
	p.t.Helper()
	p.led(func() error {
		_, err := p.client.Propose(p.t.Context(), cluster.KindRemoveNode, "r", cluster.Name{Name: node})
		return err
	})
}

// led does what may be repeated until there is a leader for it: of several nodes on a busy
// machine one may lose its place.
func (p *process) led(do func() error) {
	p.t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); ; <-ticker.C {
		err := do()
		if err == nil {
			return
		}
		if !errors.Is(err, client.ErrNoLeader) || time.Now().After(deadline) {
			p.t.Fatal(err)
		}
	}
}

// Names for people do not steer their terminals, and have an end.
func TestNames(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	p := run(t, dir, saved).await()
	for name, k := range map[string]operator.KeyRequest{
		"name \"a\\nb\"":            {Name: "a\nb"},
		"name \"\\x1b[31m\"":        {Name: "\x1b[31m"},
		"name \"aaaa":               {Name: strings.Repeat("a", maxText+1)},
		"models \"\\u202e\"":        {Models: []string{"tiny", "\u202e"}},
		"policies \"\ufffd\"":       {Policies: []string{"\xff"}},
		"policies: 257 names":       {Policies: make([]string, maxChoices+1)},
		"models \"a\\tb\": it must": {Models: []string{"a\tb"}},
	} {
		if _, err := p.client.CreateKey(t.Context(), k); !errors.Is(err, client.ErrBadRequest) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := p.client.CreateKey(t.Context(), operator.KeyRequest{Name: "clé de Zoë 😀", Models: []string{"tiny"}}); err != nil {
		t.Error(err)
	}
	for _, f := range []Founding{{Node: "ŝ"}, {Node: "../a"}, {Node: strings.Repeat("a", 129)}, {Cluster: "\x1b[31m"}} {
		if _, _, err := Found(t.TempDir(), f, time.Now()); !errors.Is(err, link.ErrEntrance) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// The first node begins a cluster once, and only goes on with it at later starts.
func TestFoundAndRestart(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	own, _ := first.State().Cluster()
	if own.Name != "test" || own.ID != saved.Cluster {
		t.Errorf("cluster %+v", own)
	}
	made, err := first.client.CreateKey(t.Context(), operator.KeyRequest{Name: "ci", RequestsPerMinute: 60})
	if err != nil {
		t.Fatal(err)
	}
	ring := apikey.NewRing(saved.Pepper, first.State().AllKeys())
	if k, err := ring.Find(made.Text, time.Now()); err != nil || k.Name != "ci" || k.RequestsPerMinute != 60 {
		t.Errorf("key %+v, %v", k, err)
	}
	if err := first.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if strings.Contains(first.log.String(), made.Text) {
		t.Error("the key is in the log")
	}
	if _, err := os.Stat(filepath.Join(dir, foundingFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is still there: %v", err)
	}

	again, founded, err := Found(dir, Founding{Cluster: "another"}, time.Now())
	if err != nil || founded || again.Node != saved.Node {
		t.Fatalf("%+v, %t, %v", again, founded, err)
	}
	second := run(t, dir, again).await()
	if own, _ := second.State().Cluster(); own.Name != "test" {
		t.Errorf("after the restart the cluster is %+v", own)
	}
	if _, ok := second.State().Key(made.Key.ID); !ok {
		t.Error("the key is gone")
	}
}

// A first node that has lost its log begins no second cluster.
func TestLostLogFoundsNothing(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	_ = first.end() // as the tests before have seen
	if err := os.RemoveAll(filepath.Join(dir, "raft")); err != nil {
		t.Fatal(err)
	}
	saved, _, err := Found(dir, Founding{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	second := run(t, dir, saved)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	select {
	case <-second.Ready():
		t.Error("it has begun a cluster")
	case <-ctx.Done():
	}
	if _, leader, err := second.client.State(t.Context()); err != nil || leader {
		t.Errorf("leader %t, %v", leader, err)
	}
}

// A second control node joins by token, is found after both have moved, and a write
// without a majority is refused at once.
func TestJoinMoveAndNoQuorum(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	dir2 := filepath.Join(t.TempDir(), "second")
	enter := link.Entrance{Dir: dir2, Role: cluster.Control, Node: "second", Address: first.Addr(), Token: first.token(cluster.Control), Build: "test"}
	if err := os.MkdirAll(dir2, 0o700); err != nil {
		t.Fatal(err)
	}
	saved2, joined, err := enter.Enter(t.Context())
	if err != nil || !joined {
		t.Fatalf("joined %t, %v", joined, err)
	}
	second := run(t, dir2, saved2).await()
	awaitVoters(t, first, 2)

	// Both stop and come back at other ports.
	_ = second.end() // their errors are the stop's
	_ = first.end()
	reload := func(dir string) *identity.Saved {
		s, err := identity.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// One of them has to be told of the other; who tells it is up to their users.
	first = run(t, dir, reload(dir))
	second = run(t, dir2, reload(dir2), first.Addr())
	first.await()
	second.await()
	awaitVoters(t, first, 2)

	_ = second.end()
	began := time.Now()
	_, err = first.client.Propose(t.Context(), cluster.KindRevokeKey, "", cluster.Name{Name: "x"})
	if !errors.Is(err, client.ErrNoLeader) {
		t.Errorf("without a majority: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("that took %v", took)
	}
}

func awaitVoters(t *testing.T, p *process, want int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for ; time.Now().Before(deadline); <-ticker.C {
		s, err := p.client.Status(t.Context())
		n := 0
		for _, server := range s.Servers {
			if server.Voter {
				n++
			}
		}
		if err == nil && n == want && s.Leader != "" {
			return
		}
	}
	t.Fatalf("there are no %d voters:\n%s", want, p.log)
}

// An admin's certificate opens the admin port of loopback and the cluster port; those
// of nodes do not make keys.
func TestAdminCertificate(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	for _, c := range []struct {
		role    cluster.Role
		allowed bool
	}{{cluster.Admin, true}, {cluster.Gateway, false}} {
		enter := link.Entrance{Dir: t.TempDir(), Role: c.role, Node: "x-" + string(c.role), Address: first.Addr(), Token: first.token(c.role)}
		s, _, err := enter.Enter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		credentials, err := identity.NewCredentials(s.Certificate, s.Key, s.CAs, nil)
		if err != nil {
			t.Fatal(err)
		}
		remote, err := operator.At(first.Addr(), credentials)
		if err != nil {
			t.Fatal(err)
		}
		_, err = remote.CreateKey(t.Context(), operator.KeyRequest{})
		if allowed := err == nil; allowed != c.allowed {
			t.Errorf("%s makes a key: %v", c.role, err)
		}
		if !c.allowed && !errors.Is(err, client.ErrForbidden) {
			t.Errorf("%s: %v", c.role, err)
		}
		if err := remote.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A removed node ends and says so.
func TestRemoved(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	dir2 := t.TempDir()
	saved2, _, err := (&link.Entrance{Dir: dir2, Role: cluster.Control, Node: "second", Address: first.Addr(), Token: first.token(cluster.Control)}).Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := run(t, dir2, saved2).await()
	awaitVoters(t, first, 2)
	first.remove("second")
	second.done.Wait()
	if !errors.Is(second.err, link.ErrRemoved) {
		t.Errorf("Run: %v", second.err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := first.control.View().WaitFor(ctx, func(s *state.State) bool { return s.IsRemoved("second") }); err != nil {
		t.Error(err)
	}
	awaitVoters(t, first, 1)
}
