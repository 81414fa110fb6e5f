package subservice

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/peer"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// layout says what a test cluster looks like.
type layout struct {
	policy   string
	settings policies.Settings
	replicas []int // of each model
	script   fakeexec.Script
	pageSize int
	pages    int // of each model's pool
	// rule, if set, gives the replicas a coordinator; thresholds are by model.
	rule       *schedule.Rule
	thresholds []int
	fallback   Fallback
	wait       time.Duration
	// ahead lets steps be launched ahead wherever they can.
	ahead bool
}

// executor is the configuration of model k's fake executor.
func (l *layout) executor(model string, slots, context int) fakeexec.Config {
	cfg := fakeexec.Default()
	cfg.Info.Model, cfg.Info.Vocab, cfg.Info.PageSize, cfg.Info.Pages = model, testVocab, max(l.pageSize, 4), cmp.Or(l.pages, 4096)
	cfg.Info.MaxSlots, cfg.Info.MaxRows, cfg.Info.MaxTokens, cfg.Info.MaxContext = slots, 16, 64, context
	cfg.Script = l.script
	if l.ahead {
		cfg.Info.Depth = 2
		cfg.Info.Features |= step.FContinue
	}
	return cfg
}

func (l *layout) lookahead() Lookahead {
	if l.ahead {
		return LookaheadOn
	}
	return LookaheadAuto
}

// host is one replica of a test cluster.
type host struct {
	name     string
	sub      *Subservice
	exec     *fakeexec.Executor
	listener *memconn.Listener
	server   *peer.Server
	front    *h2.Server
	clients  []*peer.Client
	stop     context.CancelFunc
	caller   *h2.Transport // of the test, as a gateway
}

// cluster is replicas that run fake executors and talk over memory.
type cluster struct {
	t     *testing.T
	hosts map[string]*host
	// together and clock are of a layout with a rule.
	together *schedule.Coordinator
	clock    func() time.Duration
}

const testVocab = 700

// trioTokenizer loads the trio's vocabulary once for all tests.
var trioTokenizer = sync.OnceValues(func() (*tokenizer.Tokenizer, error) {
	return tokenizer.Load(os.DirFS("../../models/tiny-s"))
})

func loadTokenizer(t *testing.T) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := trioTokenizer()
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func startCluster(t *testing.T, l layout) *cluster {
	t.Helper()
	set, err := policies.New(l.policy, len(l.replicas), l.settings)
	if err != nil {
		t.Fatal(err)
	}
	var models []string
	var names [][]string
	for k, n := range l.replicas {
		models = append(models, fmt.Sprintf("m%d", k))
		names = append(names, nil)
		for i := range n {
			names[k] = append(names[k], fmt.Sprintf("m%d-%d", k, i))
		}
	}
	c := &cluster{t: t, hosts: map[string]*host{}}
	if l.rule != nil {
		began := time.Now()
		c.together, c.clock = schedule.New(*l.rule), func() time.Duration { return time.Since(began) }
	}
	tok := loadTokenizer(t)
	for k := len(models) - 1; k >= 0; k-- { // dialled ones first
		for _, name := range names[k] {
			d := Deployment{Name: "pair", Self: policies.ModelID(k), Models: models, Policy: set.For(policies.ModelID(k)), Replicas: names, Thresholds: l.thresholds}
			c.hosts[name] = c.newHost(name, models[k], l, d, tok, slices.Concat(names[k+1:]...))
		}
	}
	for _, h := range c.hosts {
		h.run(t)
	}
	c.await("links", func(h *host, s Stats) bool { return s.Links == c.links(h) })
	return c
}

// links is the number of replicas of other models.
func (c *cluster) links(h *host) int {
	n := 0
	for _, other := range c.hosts {
		if other.sub.cfg.Model != h.sub.cfg.Model {
			n++
		}
	}
	return n
}

func (c *cluster) newHost(name, model string, l layout, d Deployment, tok *tokenizer.Tokenizer, dials []string) *host {
	t := c.t
	exec, err := fakeexec.New(l.executor(model, 64, 512))
	if err != nil {
		t.Fatal(err)
	}
	sub, err := New(Config{
		Replica: name, Model: model, Executor: exec, Tokenizer: tok, StopIDs: []int32{testVocab - 1},
		Deployments: []Deployment{d},
		Coordinator: c.together, Order: int(d.Self), Clock: c.clock, Start: time.Now(),
		Scheduler:        scheduler.Config{MaxRows: 16, MaxTokens: 64, ChunkTokens: 32, MaxSlots: 64, MaxQueue: 64},
		Lookahead:        l.lookahead(),
		CollaboratorWait: 5 * time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{name: name, sub: sub, exec: exec, listener: memconn.Listen()}
	pc := peer.Config{Replica: name, Model: model, Handler: sub, Limits: peer.Limits{ResumeFor: 50 * time.Millisecond}}
	if h.server, err = peer.NewServer(peer.ServerConfig{Config: pc}); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(peer.Path, h.server)
	mux.Handle(generate.Path, sub)
	if h.front, err = h2.NewServer(h2.Config{Grace: 20 * time.Millisecond}, mux); err != nil {
		t.Fatal(err)
	}
	for _, to := range dials {
		client, err := peer.NewClient(peer.ClientConfig{Config: pc, URL: "http://" + to, Transport: c.transport(to), Expect: to})
		if err != nil {
			t.Fatal(err)
		}
		h.clients = append(h.clients, client)
	}
	h.caller = transportTo(t, h.listener)
	return h
}

func transportTo(t *testing.T, l *memconn.Listener) *h2.Transport {
	tr, err := h2.NewTransport(h2.Config{Dial: func(ctx context.Context) (net.Conn, error) { return l.Dial(ctx) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	return tr
}

func (c *cluster) transport(to string) *h2.Transport { return transportTo(c.t, c.hosts[to].listener) }

// run serves until the test ends or the host is stopped.
func (h *host) run(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	h.stop = cancel
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	group.Go(h.sub.Run)
	group.Go(h.server.Run)
	group.Go(func(ctx context.Context) error { return h.front.Serve(ctx, h.listener) })
	for _, client := range h.clients {
		group.Go(client.Run)
	}
	t.Cleanup(func() {
		cancel()
		if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", h.name, err)
		}
	})
}

// call is one request in progress.
type call struct {
	body   func() error
	events *generate.Reader
	cancel context.CancelFunc
}

// open submits a request to a replica; it returns the refusal, if any.
func (c *cluster) open(replica string, req *generate.Request) (*call, *http.Response) {
	c.t.Helper()
	body, err := generate.EncodeRequest(req)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+replica+generate.Path, bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	resp, err := c.hosts[replica].caller.RoundTrip(r)
	if err != nil {
		c.t.Fatal(err)
	}
	return &call{body: resp.Body.Close, events: generate.NewReader(resp.Body), cancel: cancel}, resp
}

// outcome is a whole answer as the gateway would see it.
type outcome struct {
	Prompt []int32
	Tokens []generate.Token
	Text   string
	Finish generate.Finish
	Echo   []generate.TokenEvent
	Cached int
	Err    *generate.Error
	// Owners[n] is the owner of the turn after n tokens, where an event ended
	// there: a gateway takes an event whole and resumes from no other place.
	Owners map[int]uint8
}

// read follows a call to its end. Tokens are checked like a gateway does.
func (c *cluster) read(k *call, base int) outcome {
	c.t.Helper()
	o := outcome{Owners: map[int]uint8{0: 0}}
	owner := uint8(0)
	for {
		e, err := k.events.Next()
		if err != nil {
			c.t.Fatalf("stream ended early: %v", err)
		}
		switch e.Kind {
		case generate.EventAdmitted:
			o.Prompt = e.PromptIDs
		case generate.EventPrompt:
			if int(e.Base) != len(o.Echo) {
				c.t.Fatalf("prompt tokens at %d, want %d", e.Base, len(o.Echo))
			}
			o.Echo = append(o.Echo, e.Tokens...)
		case generate.EventTokens:
			o.Cached += int(e.Cached)
			if int(e.Base) != base+len(o.Tokens) {
				c.t.Fatalf("tokens at %d, want %d", e.Base, base+len(o.Tokens))
			}
			if e.Turn {
				owner = e.Owner
			}
			for _, t := range e.Tokens {
				o.Tokens = append(o.Tokens, generate.Token{ID: t.ID, Model: t.Model})
				o.Text += t.Text
			}
			o.Owners[len(o.Tokens)] = owner
		case generate.EventFinish:
			o.Cached += int(e.Cached)
			o.Finish = e.Finish
			o.Text += e.Tail
			return o
		case generate.EventError:
			o.Err = e.Err
			return o
		}
	}
}

func request(id uint64, maxTokens int32) *generate.Request {
	return &generate.Request{
		ID: id, Deployment: "pair", PromptIDs: []int32{5, 6, 7, 8, 9, int32(10 + id%50)},
		Sampling: sampling.Params{TopP: 1, Seed: id, MaxTokens: maxTokens, Logprobs: -1},
	}
}

// awaitIdle waits until no replica holds anything.
func (c *cluster) awaitIdle() {
	c.t.Helper()
	c.await("idle", func(_ *host, s Stats) bool { return s.Queued+s.Running+s.Parked+s.PagesHeld+s.Slots == 0 })
}

// await waits until all replicas are as wanted.
func (c *cluster) await(what string, wanted func(*host, Stats) bool) {
	c.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		late := ""
		for _, h := range c.hosts {
			if s := h.sub.Stats(); !wanted(h, s) {
				late = fmt.Sprintf("%s: %+v", h.name, s)
			}
		}
		if late == "" {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			c.t.Fatalf("not %s: %s", what, late)
		}
	}
}
