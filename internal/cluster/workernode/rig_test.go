package workernode

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/planner"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/models"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience bounds every wait.
const patience = 20 * time.Second

// town is a control plane in memory: the real state and planner, without a consensus.
type town struct {
	t         *testing.T
	authority *identity.Authority
	ca        []byte

	mu    sync.Mutex
	state *state.State
	// measured has what workers have measured last.
	measured map[string]cluster.Measures
	views    []*client.View
	// down says that nothing can be changed and nothing is heard.
	down bool
}

func newTown(t *testing.T) *town {
	t.Helper()
	a, err := identity.NewAuthority("c", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, _, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	w := &town{t: t, authority: a, ca: ca, state: new(state.State), measured: map[string]cluster.Measures{}}
	w.must(cluster.KindInit, cluster.Cluster{ID: "c", Name: "test", CAs: []string{string(ca)}})
	return w
}

// propose applies a command, and what the leader makes of it.
func (w *town) propose(c cluster.Command) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return 0, client.ErrNoLeader
	}
	if !w.state.Spoken().Has(c.V) {
		return 0, client.ErrVersion
	}
	next, err := state.Apply(w.state, w.state.Index+1, c)
	if err != nil {
		return 0, err
	}
	w.state = next
	for range 8 {
		p := planner.Plan(w.state, w.state.Time)
		if p == nil {
			break
		}
		c, err := cluster.NewCommand(cluster.KindPlace, "", w.state.Time, *p)
		if err != nil {
			return 0, err
		}
		if next, err = state.Apply(w.state, w.state.Index+1, c); err != nil {
			return 0, err
		}
		w.state = next
	}
	for _, v := range w.views {
		v.Publish(w.state)
	}
	return w.state.Index, nil
}

func (w *town) must(kind cluster.Kind, body any) {
	w.t.Helper()
	c, err := cluster.NewCommand(kind, "", time.Now(), body)
	if err == nil {
		_, err = w.propose(c)
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *town) now() *state.State {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.state
}

// view is a View that follows the town's state.
func (w *town) view() *client.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	v := client.NewView()
	v.Publish(w.state)
	w.views = append(w.views, v)
	return v
}

func (w *town) credentials(role cluster.Role, node string, removed func(string) bool) *identity.Credentials {
	w.t.Helper()
	signer, request, err := identity.NewKey()
	if err != nil {
		w.t.Fatal(err)
	}
	key, err := identity.EncodeKey(signer)
	if err != nil {
		w.t.Fatal(err)
	}
	certificate, err := w.authority.Issue(request, identity.Name{Cluster: "c", Role: role, Node: node}, time.Now())
	if err != nil {
		w.t.Fatal(err)
	}
	c, err := identity.NewCredentials(certificate, key, [][]byte{w.ca}, removed)
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// await waits until the state is as wanted.
func (w *town) await(what string, ok func(*state.State) bool) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := w.view().WaitFor(ctx, ok); err != nil {
		var have []string
		for id, r := range w.now().AllReplicas() {
			have = append(have, fmt.Sprintf("%s %s %s", id, r.Phase, r.Reason))
		}
		w.t.Fatalf("waited for %s in vain: %v", what, have)
	}
}

// awaitReady waits until n replicas are ready.
func (w *town) awaitReady(n int) {
	w.t.Helper()
	w.await(fmt.Sprintf("%d ready replicas", n), func(s *state.State) bool {
		ready := 0
		for _, r := range s.AllReplicas() {
			if r.Phase == cluster.Ready && s.Serving(&r) {
				ready++
			}
		}
		return ready == n
	})
}

// wires are a node's connections, which a kill cuts.
type wires struct {
	mu    sync.Mutex
	dead  bool
	conns []net.Conn
}

func (x *wires) add(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.dead {
		_ = c.Close()
		return nil, net.ErrClosed
	}
	x.conns = append(x.conns, c)
	return c, nil
}

// cut resets everything, as the end of a process does.
func (x *wires) cut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dead = true
	for _, c := range x.conns {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

// reset breaks the connections that there are; others can be made.
func (x *wires) reset() {
	x.cut()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.dead, x.conns = false, nil
}

func (x *wires) dial(ctx context.Context, network, address string) (net.Conn, error) {
	return x.add(new(net.Dialer).DialContext(ctx, network, address))
}

type wiredListener struct {
	net.Listener
	wires *wires
}

func (l *wiredListener) Accept() (net.Conn, error) { return l.wires.add(l.Listener.Accept()) }

// worker is a node that runs.
type worker struct {
	*Node
	town  *town
	tie   *tie
	wires *wires
	stop  context.CancelFunc
	ended chan struct{}
	err   error
}

// worker starts a node that pins models. It ends with the test.
func (w *town) worker(name string, pins ...string) *worker {
	w.t.Helper()
	return w.workerWith(name, func(*Config, *cluster.Node) {}, pins...)
}

// workerWith is worker with other settings, and another word about itself.
func (w *town) workerWith(name string, change func(*Config, *cluster.Node), pins ...string) *worker {
	w.t.Helper()
	view := w.view()
	c := &tie{town: w, view: view, credentials: w.credentials(cluster.Worker, name, view.Removed), kill: make(chan struct{})}
	out := &worker{town: w, tie: c, wires: &wires{}, ended: make(chan struct{})}
	c.self = cluster.Node{ID: name, Role: cluster.Worker, Protocol: cluster.Protocol, Build: "test"}
	for _, p := range pins {
		c.self.Pins = append(c.self.Pins, cluster.Pin{Model: p, Source: p, TP: 1})
	}
	own := engine.Defaults()
	own.Device, own.PageSize, own.KVTokens, own.Workers, own.MaxRows = "cpu", 16, 1<<13, 1, 16
	cfg := Config{
		Listen: "127.0.0.1:0", Engine: own, Cluster: c, DrainTimeout: 10 * time.Second, Dial: out.wires.dial,
		Resolve: func(source string) (engine.Model, error) { return engine.Model{Name: source}, nil },
		listen: func(network, address string) (net.Listener, error) {
			l, err := net.Listen(network, address)
			if err != nil {
				return nil, err
			}
			return &wiredListener{l, out.wires}, nil
		},
	}
	change(&cfg, &c.self)
	n, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	c.self.Addr = n.Addr()
	out.Node = n
	ctx, stop := context.WithCancel(context.Background())
	out.stop = stop
	group := pool.New()
	group.Go(func() {
		defer close(out.ended)
		out.err = n.Run(ctx)
	})
	w.t.Cleanup(func() {
		stop()
		group.Wait()
		if out.err != nil && !errors.Is(out.err, errKilled) {
			w.t.Errorf("%s: %v", name, out.err)
		}
	})
	return out
}

// die ends the worker as SIGKILL would. The cluster does not hear of it.
func (x *worker) die() {
	x.wires.cut()
	close(x.tie.kill)
	<-x.ended
	if errors.Is(x.err, net.ErrClosed) {
		x.err = errKilled // it noticed that its listener was cut first
	}
}

// drained stops the worker in order.
func (x *worker) drained() {
	x.town.t.Helper()
	x.stop()
	select {
	case <-x.ended:
	case <-time.After(patience):
		x.town.t.Fatal("not drained")
	}
	if x.err != nil {
		x.town.t.Errorf("drain: %v", x.err)
	}
}

// gate is what a gateway does with the state.
type gate struct {
	town        *town
	credentials *identity.Credentials
	cfg         session.Config

	mu      sync.Mutex
	entries map[string]session.Entry // by replica and address
	table   *session.Table
}

func (w *town) gate() *gate {
	g := &gate{town: w, credentials: w.credentials(cluster.Gateway, "g1", nil), entries: map[string]session.Entry{}}
	g.cfg = session.Config{Backoff: 5 * time.Millisecond, MaxAttempts: 100, EjectFor: 100 * time.Millisecond}.WithDefaults()
	return g
}

// served is a deployment as of now.
func (g *gate) served(name string) *session.Served {
	g.mu.Lock()
	defer g.mu.Unlock()
	s := g.town.now()
	d, ok := s.Deployment(name)
	if !ok {
		g.town.t.Fatalf("there is no deployment %s", name)
	}
	out := session.Deployment{Name: name, Models: d.Models, Policy: d.Policy, MaxContext: 1 << 20, Vocab: 1 << 20}
	for _, r := range s.ReplicasOf(d.Models[0]) {
		n, _ := s.Node(r.Node)
		if !s.Serving(&r) {
			continue
		}
		key := r.ID + "@" + n.Addr
		if g.entries[key] == nil {
			tr, err := h2.NewTransport(h2.Config{
				TLS: g.credentials.Client(identity.ProtocolHTTP, n.ID, cluster.Worker),
				Dial: func(ctx context.Context) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, "tcp", n.Addr)
				},
			})
			if err != nil {
				g.town.t.Fatal(err)
			}
			g.town.t.Cleanup(func() { _ = tr.Close() })
			g.entries[key] = session.NewEntryClient(r.ID, tr, "https://"+r.ID)
		}
		out.Entries = append(out.Entries, g.entries[key])
		out.MaxContext = min(out.MaxContext, r.Facts.MaxContext)
		out.Vocab = r.Facts.Vocab
	}
	t, err := session.NewTable([]session.Deployment{out}, g.table, time.Now())
	if err != nil {
		g.town.t.Fatal(err)
	}
	g.table = t
	return t.Find(name)
}

// said is an answer.
type said struct {
	Text   string
	IDs    []int32
	Models []string
	Epoch  uint32
}

func (a *said) same(b *said) bool {
	return a.Text == b.Text && slices.Equal(a.IDs, b.IDs) && slices.Equal(a.Models, b.Models)
}

// ask asks one question. token is called after each token and may be nil.
func (g *gate) ask(r engine.Request, token func(n int)) (out said, err error) {
	d := g.served(r.Model)
	set := session.Settings{MaxTokens: int32(r.MaxTokens), Logprobs: -1, Temperature: r.Temperature, TopP: r.TopP, Seed: r.Seed, IgnoreEOS: r.IgnoreEOS}
	prompt := generate.Request{Chat: true}
	for _, m := range r.Messages {
		prompt.Messages = append(prompt.Messages, generate.Message{Role: m.Role, Content: m.Content})
	}
	requests, err := d.Requests(&set, prompt)
	if err != nil {
		return out, err
	}
	s := session.New(&g.cfg, d, &requests[0])
	defer s.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	if err := s.Open(ctx); err != nil {
		return out, err
	}
	for {
		u, err := s.Next(ctx)
		if err != nil {
			return out, err
		}
		for _, t := range u.Tokens {
			out.Text += t.Show
			out.IDs, out.Models = append(out.IDs, t.ID), append(out.Models, d.Models[t.Model])
			if token != nil {
				token(len(out.IDs))
			}
		}
		out.Epoch = u.Epoch
		if u.Done {
			out.Text += u.Tail
			return out, nil
		}
	}
}

// all asks everything, several at a time. token gets the number of tokens so far, of all.
func (g *gate) all(list []engine.Request, atOnce int, token func(n int)) []said {
	g.town.t.Helper()
	out := make([]said, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(atOnce)
	var mu sync.Mutex
	n := 0
	for i, r := range list {
		group.Go(func() (err error) {
			out[i], err = g.ask(r, func(int) {
				if token == nil {
					return
				}
				mu.Lock()
				defer mu.Unlock()
				n++
				token(n)
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		g.town.t.Fatal(err)
	}
	return out
}

// questions are requests about the first n problems, every second one with sampling.
func questions(n, maxTokens int, deployment string) []engine.Request {
	var list []engine.Request
	dec := json.NewDecoder(bytes.NewReader(models.Problems()))
	for i := range n {
		var p struct{ Question string }
		if dec.Decode(&p) != nil {
			break
		}
		r := engine.Request{Model: deployment, MaxTokens: maxTokens, Messages: []engine.Message{{Role: "user", Content: p.Question}}, Seed: new(uint64)}
		*r.Seed = uint64(1000 + i)
		if i%2 == 1 {
			temperature, topP := 0.8, 0.95
			r.Temperature, r.TopP = &temperature, &topP
		}
		list = append(list, r)
	}
	return list
}

// alone is what one engine in one process answers.
func alone(t *testing.T, list []engine.Request, change func(*engine.Deployment)) []said {
	t.Helper()
	cfg := engine.Defaults()
	cfg.Device, cfg.Workers = "cpu", 1
	for i := range cfg.Deployments {
		if change != nil {
			change(&cfg.Deployments[i])
		}
	}
	e, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	out := make([]said, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(8)
	for i, r := range list {
		r.Model = cfg.Deployments[0].Name
		group.Go(func() error {
			for tok, err := range e.Generate(context.Background(), r) {
				if err != nil {
					return err
				}
				out[i].Text += tok.Text
				if tok.End == nil {
					out[i].IDs, out[i].Models = append(out[i].IDs, tok.ID), append(out[i].Models, tok.Model)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return out
}

// compare fails the test where answers differ.
func compare(t *testing.T, what string, got, want []said) {
	t.Helper()
	for i := range want {
		if !got[i].same(&want[i]) {
			t.Errorf("%s: request %d:\n got %q\nwant %q", what, i, got[i].Text, want[i].Text)
		}
	}
}
