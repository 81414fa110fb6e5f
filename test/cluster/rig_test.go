package cluster_test

import (
	"bytes"
	"context"
	"crypto/tls"
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
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/controlnode"
	"github.com/tokenrouter/tokenrouter/internal/cluster/gatewaynode"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/cluster/workernode"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds every wait, patient is what the consensus waits for a leader.
const patience, patient = 20 * time.Second, 1500 * time.Millisecond

// logs keeps what a node has logged.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
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

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// refusals counts the lines that say that something was refused: as a warning, or for debugging with how often it was before.
func (l *logs) refusals() (n int) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, "refused") && (strings.Contains(line, "level=WARN") || strings.Contains(line, " count=")) {
			n++
		}
	}
	return n
}

// town is a small real cluster: two control nodes (the second has a TCP admin port), a
// worker with the model tiny-s, and a gateway, each as its process would be.
type town struct {
	t         *testing.T
	authority *identity.Authority
	ca        []byte
	operator  *operator.Client

	control, second *controlnode.Node
	worker          *workernode.Node
	gateway         *gatewaynode.Node
	admin           net.Addr // the second control node's
	// Logs by process.
	logs map[string]*logs
}

// The tests share a cluster, which takes seconds to start.
func TestCluster(t *testing.T) {
	w := start(t)
	for _, test := range []struct {
		name string
		of   func(*town)
	}{
		// In this order: after some garbage no token is looked at for a minute.
		{"tokens", tokens}, {"matrix", matrix}, {"keys and plain ports", keys}, {"garbage and claims", claims},
	} {
		t.Run(test.name, func(t *testing.T) {
			own := *w
			own.t = t
			test.of(&own)
		})
	}
}

// start builds the cluster and waits until it serves. It ends with the test.
func start(t *testing.T) *town {
	t.Helper()
	w := &town{t: t, logs: map[string]*logs{"control": {}, "second": {}, "worker": {}, "gateway": {}}}
	dir := filepath.Join(t.TempDir(), "control")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	saved, _, err := controlnode.Found(dir, controlnode.Founding{Cluster: "test", Node: "c1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w.ca = saved.CAs[0]
	if w.authority, err = identity.ParseAuthority(w.ca, saved.AuthorityKey); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "admin.sock")
	unix, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	w.control = w.startControl("control", dir, saved, unix)
	w.operator = operator.OnSocket(socket)
	t.Cleanup(func() { _ = w.operator.Close() })

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.admin = tcp.Addr()
	dir, saved = w.join(cluster.Control, "c2")
	w.second = w.startControl("second", dir, saved, tcp)
	w.startWorker()
	w.startGateway()
	w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "one", Models: []string{"tiny-s"}, Policy: "single"})
	w.ready("worker", w.worker.Ready())
	w.ready("gateway", w.gateway.Ready())
	return w
}

// run runs a node until the end of the test.
func (w *town) run(name string, node func(context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	var running conc.WaitGroup
	running.Go(func() {
		if err := node(ctx); err != nil && !errors.Is(err, context.Canceled) {
			w.t.Errorf("%s: %v", name, err)
		}
	})
	w.t.Cleanup(func() {
		stop()
		running.Wait()
	})
}

func (w *town) ready(name string, ready <-chan struct{}) {
	w.t.Helper()
	select {
	case <-ready:
	case <-time.After(patience):
		w.t.Fatalf("%s is not ready:\n%s", name, w.logs[name])
	}
}

func (w *town) startControl(name, dir string, saved *identity.Saved, admin net.Listener) *controlnode.Node {
	w.t.Helper()
	n, err := controlnode.New(controlnode.Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", Admin: admin, MetricsListen: "127.0.0.1:0", Build: "test",
		Log: w.logs[name].logger(), Change: func(c *control.Config) {
			// A machine that is busy with other tests must not look like a dead leader.
			c.NoSync, c.Heartbeat, c.Election, c.Lease = true, patient, patient, patient
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.run(name, n.Run)
	w.ready(name, n.Ready())
	return n
}

// join gets an identity by a token, as every node does.
func (w *town) join(role cluster.Role, node string) (string, *identity.Saved) {
	w.t.Helper()
	dir := w.t.TempDir()
	var saved *identity.Saved
	token := w.token(role, time.Hour, 9)
	w.persist(func() (err error) {
		saved, _, err = (&link.Entrance{Dir: dir, Role: role, Node: node, Address: w.control.Addr(), Token: token.Reveal(), Build: "test"}).Enter(w.t.Context())
		return err
	})
	return dir, saved
}

func (w *town) token(role cluster.Role, life time.Duration, uses int) (token identity.JoinToken) {
	w.t.Helper()
	w.persist(func() (err error) {
		token, _, err = w.operator.CreateToken(w.t.Context(), operator.TokenRequest{Role: role, Life: life, Uses: uses})
		return err
	})
	return token
}

func (w *town) startWorker() {
	w.t.Helper()
	dir, saved := w.join(cluster.Worker, "w1")
	own := engine.Defaults()
	own.Device, own.PageSize, own.KVTokens, own.Workers, own.MaxRows = "cpu", 16, 1<<13, 1, 16
	var err error
	w.worker, err = workernode.New(workernode.Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", Build: "test",
		Engine: own, Pins: []cluster.Pin{{Model: "tiny-s", Source: "tiny-s", TP: 1}},
		Resolve: func(source string) (engine.Model, error) { return engine.Model{Name: source}, nil },
		Log:     w.logs["worker"].logger(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.run("worker", w.worker.Run)
}

func (w *town) startGateway() {
	w.t.Helper()
	dir, saved := w.join(cluster.Gateway, "g1")
	var err error
	w.gateway, err = gatewaynode.New(gatewaynode.Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", MetricsListen: "127.0.0.1:0", Build: "test", Log: w.logs["gateway"].logger(),
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.run("gateway", w.gateway.Run)
}

// must has an operator's command applied.
func (w *town) must(kind cluster.Kind, body any) {
	w.t.Helper()
	request := link.NewRequest("test")
	w.persist(func() error {
		_, err := w.operator.Propose(w.t.Context(), kind, request, body)
		return err
	})
}

// persist does something until there is a leader for it: a machine that is busy enough
// holds elections.
func (w *town) persist(do func() error) {
	w.t.Helper()
	await(w.t, "a leader", func() bool {
		err := do()
		if err != nil && !errors.Is(err, client.ErrNoLeader) {
			w.t.Fatal(err)
		}
		return err == nil
	})
}

// key makes an API key.
func (w *town) key(r operator.KeyRequest) (out operator.NewKey) {
	w.t.Helper()
	w.persist(func() (err error) {
		out, err = w.operator.CreateKey(w.t.Context(), r)
		return err
	})
	return out
}

// replica is the worker's.
func (w *town) replica() string {
	for id := range w.control.State().AllReplicas() {
		return id
	}
	w.t.Fatal("there is no replica")
	return ""
}

// issue makes a certificate by a CA.
func issue(t *testing.T, a *identity.Authority, name identity.Name, age time.Duration) *tls.Certificate {
	t.Helper()
	signer, request, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.Issue(request, name, time.Now().Add(-age))
	if err != nil {
		t.Fatal(err)
	}
	key, err := identity.EncodeKey(signer)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// removed makes a worker's certificate, has the worker removed, and waits until every
// node knows.
func (w *town) removed(node string) *tls.Certificate {
	w.t.Helper()
	certificate := issue(w.t, w.authority, w.name(cluster.Worker, node), 0)
	self, err := identity.NewCredentials(pemOf(w.t, w.authority, w.name(cluster.Worker, node), w.ca))
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := client.New(client.Config{Credentials: self, Control: []string{w.control.Addr()}})
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	put, err := cluster.NewCommand(cluster.KindPutNode, "", time.Now(), cluster.Node{ID: node, Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: cluster.Protocol, Build: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.persist(func() error {
		_, err := c.Propose(w.t.Context(), put)
		return err
	})
	w.must(cluster.KindRemoveNode, cluster.Name{Name: node})
	return certificate
}

// pemOf makes the arguments of identity.NewCredentials.
func pemOf(t *testing.T, a *identity.Authority, name identity.Name, ca []byte) (certificate, key []byte, cas [][]byte, removed func(string) bool) {
	t.Helper()
	signer, request, err := identity.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	if certificate, err = a.Issue(request, name, time.Now()); err != nil {
		t.Fatal(err)
	}
	if key, err = identity.EncodeKey(signer); err != nil {
		t.Fatal(err)
	}
	return certificate, key, [][]byte{ca}, nil
}

func (w *town) name(role cluster.Role, node string) identity.Name {
	return identity.Name{Cluster: w.authority.Certificate.Subject.CommonName[len("TokenRouter "):], Role: role, Node: node}
}

// await waits until ok.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// gossips lists the nodes' gossip ports.
func (w *town) gossips() (out []string) {
	for _, n := range w.control.State().AllNodes() {
		if n.Gossip != "" {
			out = append(out, n.Gossip)
		}
	}
	return out
}
