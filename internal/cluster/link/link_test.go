package link_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// token makes a join token of the cluster.
func token(c *controltest.Cluster, role cluster.Role) string {
	c.TB.Helper()
	request := operator.TokenRequest{Role: role, Life: time.Hour, Uses: 2}
	text, object, err := request.Token(c.Leader().State(), time.Now())
	if err != nil {
		c.TB.Fatal(err)
	}
	c.Propose(c.Leader(), cluster.KindPutToken, object)
	return text.Reveal()
}

// A node joins once and is known by its directory from then on.
func TestEnter(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	dir := t.TempDir() + "/gateway"
	unlock, err := link.Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := link.Lock(dir); !errors.Is(err, link.ErrDirTaken) {
		t.Errorf("a second process: %v", err)
	}
	e := link.Entrance{Dir: dir, Role: cluster.Gateway, Build: "test"}
	if _, _, err := e.Enter(t.Context()); !errors.Is(err, link.ErrNotJoined) {
		t.Errorf("without a token: %v", err)
	}
	e.Address, e.Token = c.Addrs()[0], token(c, cluster.Gateway)
	for _, name := range []string{"wörker", "../etc", ".hidden", "a b", strings.Repeat("a", cluster.MaxID+1)} {
		bad := e
		bad.Node = name
		if _, _, err := bad.Enter(t.Context()); !errors.Is(err, link.ErrEntrance) || !errors.Is(err, identity.ErrNode) {
			t.Errorf("%.20q: %v", name, err)
		}
	}
	saved, joined, err := e.Enter(t.Context())
	if err != nil || !joined || !strings.HasPrefix(saved.Node, "gateway-") {
		t.Fatalf("%+v, %t, %v", saved, joined, err)
	}
	again, joined, err := e.Enter(t.Context())
	if err != nil || joined || again.Node != saved.Node {
		t.Errorf("again: %+v, %t, %v", again, joined, err)
	}
	if stat, err := os.Stat(dir); err != nil || stat.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, %v", stat.Mode(), err)
	}
	foreign, err := identity.NewJoinToken([32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*link.Entrance){
		"role":          func(e *link.Entrance) { e.Role = cluster.Worker },
		"name":          func(e *link.Entrance) { e.Node = "other" },
		"other cluster": func(e *link.Entrance) { e.Token = foreign.Reveal() },
		"garbage":       func(e *link.Entrance) { e.Token = "trj1.secret" },
	} {
		other := e
		change(&other)
		_, _, err := other.Enter(t.Context())
		if !errors.Is(err, link.ErrEntrance) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A Link announces its node again when a restored backup has lost it, follows the
// control nodes' addresses in its files, and ends when the node is removed.
func TestLink(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	backup := c.Backup()
	dir, saved := clustertest.Identity(c, cluster.Worker, "w1")
	heard := make(chan cluster.BeatReply, 100)
	l, err := link.New(link.Config{
		Dir: dir, Saved: saved, Self: cluster.Node{Addr: "127.0.0.1:1", Build: "test"},
		Loads: func() map[string]cluster.Load { return map[string]cluster.Load{"r": {Live: 3}} },
		Heard: func(r cluster.BeatReply) {
			select {
			case heard <- r:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	var ended error
	running.Go(func() { ended = l.Run(ctx) })
	defer running.Wait()
	defer stop()
	there := func(s *state.State) bool { _, ok := s.Node("w1"); return ok }
	c.Await("the node", there)
	c.Poll("a heartbeat", func() bool { return (<-heard).Known })
	if loads, err := c.Client(cluster.Admin, "op").Loads(t.Context()); err != nil || loads["w1"].Beat.Loads["r"].Live != 3 {
		t.Errorf("loads %+v, %v", loads, err)
	}
	c.Restore(backup)
	c.Await("the node after the restore", there)
	c.Start("c2")
	clustertest.Await(t, "both addresses in the file", func() bool {
		s, err := identity.Load(dir)
		return err == nil && len(s.Control) == 2
	})
	c.Poll("the drain", func() bool { // it gives up within a moment, in which there may be no leader
		l.Drain(t.Context())
		n, _ := c.Leader().State().Node("w1")
		return n.Draining
	})
	c.Propose(c.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "w1"})
	running.Wait()
	if !errors.Is(ended, link.ErrRemoved) {
		t.Errorf("Run: %v", ended)
	}
	// It is told so too when it starts once more, by those who do not take its certificate.
	if l, err = link.New(link.Config{Dir: dir, Saved: saved, Self: cluster.Node{Addr: "127.0.0.1:1", Build: "test"}}); err != nil {
		t.Fatal(err)
	}
	if err := l.Run(t.Context()); !errors.Is(err, link.ErrCertificate) {
		t.Errorf("Run of a removed node: %v", err)
	}
}

// A node whose control nodes come late keeps what it serves by then: its announcement has it.
func TestLateStart(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, controltest.NeverLost)
	dir, saved := clustertest.Identity(c, cluster.Worker, "w1")
	self := cluster.Node{ID: "w1", Role: cluster.Worker, Addr: "127.0.0.1:1", Build: "test", Pins: []cluster.Pin{{Model: "m", TP: 1}}}
	self.Speak(protocol.Cluster())
	c.Propose(c.Leader(), cluster.KindPutNode, self)
	var placed cluster.Replica
	c.Await("the replica", func(s *state.State) bool {
		list := s.ReplicasOf("m")
		if len(list) == 1 {
			placed = list[0]
		}
		return len(list) == 1
	})
	l, err := link.New(link.Config{
		Dir: dir, Saved: saved, Self: self,
		Serving: func() []cluster.ReplicaReport {
			return []cluster.ReplicaReport{{ID: placed.ID, Generation: placed.Generation, Phase: cluster.Ready}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { _ = l.Run(ctx) })
	c.Await("the start", func(s *state.State) bool {
		n, _ := s.Node("w1")
		r, _ := s.Replica(placed.ID)
		if n.Incarnation == 2 && r.Phase != cluster.Ready {
			t.Errorf("the replica is %s", r.Phase)
		}
		return n.Incarnation == 2
	})
}

// A copy of a node's directory makes two processes of one identity. One of them ends, so
// that they do not take the node from each other.
func TestStartedElsewhere(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	dir, saved := clustertest.Identity(c, cluster.Gateway, "g1")
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	defer running.Wait()
	defer stop()
	start := func(addr string) <-chan error {
		l, err := link.New(link.Config{Dir: dir, Saved: saved, Self: cluster.Node{Addr: addr, Build: "test"}})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		running.Go(func() { ended <- l.Run(ctx) })
		c.Await("the start at "+addr, func(s *state.State) bool { n, _ := s.Node("g1"); return n.Addr == addr })
		return ended
	}
	first, second := start("127.0.0.1:1"), start("127.0.0.1:2")
	// The first one ends, unless it has not seen its own start before that of the second.
	stays, other := "127.0.0.1:2", second
	var err error
	select {
	case err = <-first:
	case err = <-second:
		stays, other = "127.0.0.1:1", first
	}
	if !errors.Is(err, link.ErrElsewhere) || !strings.Contains(err.Error(), "gateway g1 has started at "+stays) {
		t.Errorf("ended because of %v", err)
	}
	c.Await("the node at "+stays, func(s *state.State) bool { n, _ := s.Node("g1"); return n.Addr == stays })
	select {
	case err := <-other:
		t.Errorf("the other one has ended too: %v", err)
	default:
	}
}

func TestAdvertised(t *testing.T) {
	t.Parallel()
	tcp := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct {
		wanted, listener, peer, want string
		bad                          bool
	}{
		{"", "127.0.0.1:7000", "", "127.0.0.1:7000", false},
		{"", "0.0.0.0:7000", "127.0.0.1:9", "127.0.0.1:7000", false},
		{"", "[::]:7000", "127.0.0.1:9", "127.0.0.1:7000", false},
		{"node.example", "0.0.0.0:7000", "", "node.example:7000", false},
		{"node.example:71", "0.0.0.0:7000", "", "node.example:71", false},
		{"10.0.0.1:0", "0.0.0.0:7000", "", "10.0.0.1:7000", false},
		{"0.0.0.0", "0.0.0.0:7000", "", "", true},
		{":7000", "0.0.0.0:7000", "", "", true},
		{"a:b", "0.0.0.0:7000", "", "", true},
		{"a b", "0.0.0.0:7000", "", "", true},
		{"a b:7000", "0.0.0.0:7000", "", "", true},
		{"http://node", "0.0.0.0:7000", "", "", true},
		{"node/path", "0.0.0.0:7000", "", "", true},
		{"node\x1b[31m", "0.0.0.0:7000", "", "", true},
		{strings.Repeat("a", 123), "0.0.0.0:7000", "", "", true},
		{"[fe80::1%eth0]:71", "0.0.0.0:7000", "", "[fe80::1%eth0]:71", false},
		{"node_1.bücher.example", "0.0.0.0:7000", "", "node_1.bücher.example:7000", false},
	} {
		got, err := link.Advertised(c.wanted, tcp(c.listener), c.peer)
		if got != c.want || (err != nil) != c.bad || err != nil && !errors.Is(err, link.ErrAddress) {
			t.Errorf("%q on %s: %q, %v", c.wanted, c.listener, got, err)
		}
	}
}
