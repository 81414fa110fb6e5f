package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// crewed is engines that share a network, and what they are assigned together.
type crewed struct {
	t       *testing.T
	net     *network
	engines []*Engine
	// where is the engine of each replica, by name; models are by replica.
	where   map[string]int
	models  map[string]string
	drains  map[string]bool
	holds   map[string]bool
	groups  []Routing
	changed chan struct{}
	// hung is the engine that ends with ErrHung, if any.
	hung *Engine
}

// newCrewed starts engines with replicas of models, given as ENGINE:REPLICA:MODEL.
func newCrewed(t *testing.T, engines int, replicas ...string) *crewed {
	t.Helper()
	return crewWith(t, engines, func(int, *Config) {}, replicas...)
}

// crewWith is newCrewed for engines whose configurations are changed first.
func crewWith(t *testing.T, engines int, change func(int, *Config), replicas ...string) *crewed {
	t.Helper()
	c := &crewed{t: t, net: newNetwork(), where: map[string]int{}, models: map[string]string{}, drains: map[string]bool{}, holds: map[string]bool{}, changed: make(chan struct{}, 1)}
	for i := range engines {
		cfg := Config{
			Network: c.net, Device: "cpu", PageSize: 16, KVTokens: 1 << 14, MaxRows: 16, MaxQueue: 64, ChunkTokens: 64, Workers: 1,
			DrainTimeout: 10 * time.Second,
			Notify: func() {
				select {
				case c.changed <- struct{}{}:
				default:
				}
			},
		}
		change(i, &cfg)
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil && e != c.hung {
				t.Errorf("Close: %v", err)
			}
		})
		c.engines = append(c.engines, e)
	}
	for _, r := range replicas {
		p := strings.Split(r, ":")
		c.where[p[1]], c.models[p[1]] = int(p[0][0]-'0'), p[2]
	}
	c.groups = []Routing{{Deployment: Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Name: "r-stitch", Threshold: TrioThreshold("r-stitch")}}}}
	c.assign()
	return c
}

// assign gives every engine its part.
func (c *crewed) assign() {
	c.t.Helper()
	var avoid []string
	of := map[string][]string{}
	for name, model := range c.models {
		of[model] = append(of[model], name)
		if c.drains[name] {
			avoid = append(avoid, name)
		}
	}
	for _, names := range of {
		slices.Sort(names)
	}
	for i := range c.groups {
		g := &c.groups[i]
		g.Replicas = nil
		for _, m := range g.Models {
			g.Replicas = append(g.Replicas, of[m])
		}
	}
	for i, e := range c.engines {
		a := Assignment{Groups: slices.Clone(c.groups), Avoid: avoid}
		for name, at := range c.where {
			if at == i {
				a.Placements = append(a.Placements, Placement{Name: name, Generation: 1, Model: Model{Name: c.models[name]}, Draining: c.drains[name], Hold: c.holds[name]})
			}
		}
		e.Assign(a)
	}
}

// await waits until the replicas are in some phase.
func (c *crewed) await(phase cluster.Phase, names ...string) {
	c.t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		have := map[string]cluster.Phase{}
		for _, e := range c.engines {
			for _, r := range e.Reports() {
				have[r.ID] = r.Phase
			}
		}
		if !slices.ContainsFunc(names, func(n string) bool { return have[n] != phase }) {
			return
		}
		select {
		case <-c.changed:
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			c.t.Fatalf("phases %v, want %s for %v", have, phase, names)
		}
	}
}

// serve makes a gateway over entries: the returned engine's Generate asks them.
func (c *crewed) serve(entries ...string) *Engine {
	c.t.Helper()
	e := c.engines[0]
	facts := e.Reports()[0].Facts
	d := session.Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, MaxContext: facts.MaxContext, Vocab: facts.Vocab}
	for _, name := range entries {
		tr, err := c.net.Transport(name)
		if err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = tr.Close() })
		d.Entries = append(d.Entries, session.NewEntryClient(name, tr, c.net.URL(name)))
	}
	table, err := session.NewTable([]session.Deployment{d}, nil, time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	asker := &Engine{table: table, session: e.session, closing: e.closing, log: e.log}
	asker.session.MaxAttempts, asker.session.Backoff, asker.session.EjectFor = 100, 5*time.Millisecond, 10*time.Millisecond
	return asker
}

// Engines that are told what to run write together what one engine writes alone; their
// replicas are drained, fail and come back, and the policy changes, while they do.
func TestAssignedEngines(t *testing.T) {
	list := seeded(questions(10, 120))
	want := answers(t, start(t, func(cfg *Config) { cfg.Device = "cpu" }), list, 8, nil)
	c := newCrewed(t, 3, "0:s-a:tiny-s", "1:s-b:tiny-s", "1:l-a:tiny-l", "2:l-b:tiny-l")
	c.await(cluster.Ready, "s-a", "s-b", "l-a", "l-b")
	e := c.serve("s-a", "s-b")
	compare := func(what string, got [][]said) {
		t.Helper()
		for i := range got {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s: request %d differs: %s", what, i, d)
			}
		}
	}
	compare("apart", answers(t, e, list, 8, nil))

	steps := map[int]func(){
		2: func() { c.drains["l-b"] = true; c.assign() },
		4: func() { c.engines[0].kill("s-a") },
		5: func() { c.drains["s-b"] = true; c.assign() },
	}
	var mu sync.Mutex
	finished := 0
	got := answers(t, e, list, 4, func() {
		mu.Lock()
		defer mu.Unlock()
		if finished++; steps[finished] != nil {
			steps[finished]()
		}
	})
	compare("while replicas leave", got)
	c.await(cluster.Stopped, "l-b", "s-b")
	delete(c.models, "s-b")
	delete(c.where, "s-b")
	delete(c.models, "l-b")
	delete(c.where, "l-b")
	c.assign()
	c.await(cluster.Ready, "s-a", "l-a")
	for _, e := range c.engines[1:] {
		e.Drain()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for _, e := range c.engines[1:] {
		select {
		case <-e.Drained():
		case <-ctx.Done():
			t.Fatal("not drained")
		}
	}
	if left := len(c.engines[2].Reports()); left != 0 {
		t.Errorf("%d replicas are left", left)
	}
}

// The policy changes while requests run: they keep theirs, later ones have the new one.
func TestPolicyChangesLive(t *testing.T) {
	list := questions(8, 100)
	all := list
	for i := range all {
		all[i].IgnoreEOS = true
	}
	tau := map[string]float64{"old": 0.01, "new": 0.2}
	want := map[string][][]said{}
	for name, v := range tau {
		want[name] = answers(t, start(t, func(cfg *Config) {
			cfg.Device, cfg.Deployments[0].Policy.Threshold = "cpu", &v
		}), list, 8, nil)
	}
	c := newCrewed(t, 2, "0:s-a:tiny-s", "1:l-a:tiny-l")
	c.await(cluster.Ready, "s-a", "l-a")
	e := c.serve("s-a")
	begun, goOn := make(chan struct{}), make(chan struct{})
	var old []said
	ended := make(chan error, 1)
	go func() {
		var s said
		for tok, err := range e.Generate(context.Background(), list[0]) {
			if err != nil {
				ended <- err
				return
			}
			s.Text += tok.Text
			if tok.End != nil {
				s.End = *tok.End
				continue
			}
			s.IDs, s.Models = append(s.IDs, tok.ID), append(s.Models, tok.Model)
			if len(s.IDs) == 3 {
				close(begun)
				<-goOn
			}
		}
		old = append(old, s)
		ended <- nil
	}()
	<-begun
	v := tau["new"]
	c.groups[0].Policy.Threshold = &v
	c.assign()
	awaitPolicy(t, c.engines, c.groups[0].Policy)
	for i, got := range answers(t, e, list, 4, nil) {
		if d := differs(got, want["new"][i]); d != "" {
			t.Errorf("after the change: request %d differs: %s", i, d)
		}
	}
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if d := differs(old, want["old"][0]); d != "" {
		t.Errorf("a request that runs does not keep its policy: %s", d)
	}
	if differs(want["old"][0], want["new"][0]) == "" {
		t.Error("void: the policies write the same")
	}
}

// awaitPolicy waits until all replicas have taken up the deployment with a policy.
func awaitPolicy(t *testing.T, engines []*Engine, p Policy) {
	t.Helper()
	d := Deployment{Models: []string{"tiny-s", "tiny-l"}, Policy: p}
	want, err := (&Routing{Deployment: d}).version()
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(10 * time.Second)
	for _, e := range engines {
		for _, r := range e.list() {
			for r.had("tiny", want) == nil {
				select {
				case <-time.After(time.Millisecond):
				case <-deadline:
					t.Fatal("the new version is not taken up")
				}
			}
		}
	}
}

func TestPlacementsThatFail(t *testing.T) {
	c := newCrewed(t, 1, "0:x:no-such-model", "0:s-a:tiny-s")
	c.await(cluster.Failed, "x")
	c.await(cluster.Ready, "s-a")
	for _, r := range c.engines[0].Reports() {
		if r.ID == "x" && !strings.Contains(r.Reason, "catalogue") {
			t.Errorf("reason %q", r.Reason)
		}
	}
	delete(c.where, "x")
	c.assign()
	if n := len(c.engines[0].Reports()); n != 1 {
		t.Errorf("%d replicas are reported", n)
	}
	f := subservice.FallbackAlone
	c.groups[0].Fallback = f
	c.groups[0].Policy = Policy{Name: "no-such-policy"}
	c.assign()
	deadline := time.After(10 * time.Second)
	for c.engines[0].Reports()[0].Reason == "" {
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatal("a policy that nobody knows is not told of")
		}
	}
}
