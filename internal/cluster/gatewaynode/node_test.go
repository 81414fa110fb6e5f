package gatewaynode

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/lastseen"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// Two gateways serve the same; they become ready with the first replica, and refuse
// who has no key. Nothing of a key, a token or a prompt is in any log.
func TestChatThroughTwoGateways(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	g1, g2 := r.gateway("g1"), r.gateway("g2")
	key, k := r.key(nil)
	r.deploy()
	clustertest.Await(t, "the deployment", func() bool { _, ok := g1.link.View().State().Deployment("pair"); return ok })
	if status := g1.get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without a replica /readyz is %d", status)
	}
	if a := g1.chat(key); a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "no_capacity") {
		t.Errorf("without a replica: %d %s", a.status, a.body)
	}
	script := sessiontest.Words(20)
	r.worker("w1", script)
	for _, g := range []*running{g1.await(), g2.await()} {
		if status := g.get("/readyz"); status != http.StatusOK {
			t.Errorf("/readyz is %d", status)
		}
		if a := g.chat(key); a.status != http.StatusOK || a.text != script.Text() {
			t.Errorf("%d %s", a.status, a.body)
		}
		if a := g.chat(key[:len(key)-1] + "!"); a.status != http.StatusUnauthorized {
			t.Errorf("wrong key: %d", a.status)
		}
		if a := g.chat(""); a.status != http.StatusUnauthorized {
			t.Errorf("no key: %d", a.status)
		}
	}
	if s := r.Leader().State(); func() bool { n, ok := s.Node("g1"); return !ok || n.Public != g1.Addr().String() }() {
		t.Error("the state does not have the gateway's public address")
	}
	log := r.log.String()
	for name, canary := range map[string]string{"key": key, "its secret": key[11:], "prompt": prompt, "pepper": string(r.Pepper), "answer": "w19"} {
		if strings.Contains(log, canary) {
			t.Errorf("the %s is in a log", name)
		}
	}
	if !strings.Contains(log, "key="+k.ID) {
		t.Error("the key's id is not in the log: it was not looked at")
	}
}

// A key that is revoked is refused with the next request.
func TestRevokedKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	g := r.gateway("g1")
	r.worker("w1", sessiontest.Words(3))
	r.deploy()
	key, k := r.key(nil)
	g.await()
	if a := g.chat(key); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	g.seen(r.Propose(r.Leader(), cluster.KindRevokeKey, cluster.Name{Name: k.ID}))
	clustertest.Await(t, "the refusal", func() bool { return g.chat(key).status == http.StatusUnauthorized })
}

// A key's bounds hold over all gateways together.
func TestRateOverGateways(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	gateways := []*running{r.gateway("g1"), r.gateway("g2")}
	r.worker("w1", sessiontest.Words(3))
	r.deploy()
	key, _ := r.key(func(k *cluster.Key) { k.RequestsPerMinute = 6 })
	other, _ := r.key(func(k *cluster.Key) { k.Models = []string{"another"} })
	passed := 0
	for i := range 20 {
		switch a := gateways[i%2].await().chat(key); a.status {
		case http.StatusOK:
			passed++
		case http.StatusTooManyRequests:
		default:
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if passed < 1 || passed > 6 {
		t.Errorf("%d requests of 6 a minute passed", passed)
	}
	if a := gateways[0].chat(other); a.status != http.StatusForbidden {
		t.Errorf("another model's key: %d", a.status)
	}
}

// hold lets an entry send a number of tokens and then waits until it is let go.
func hold(e *sessiontest.Entry, after int) (reached, release chan struct{}) {
	reached, release = make(chan struct{}), make(chan struct{})
	var told atomic.Bool
	e.Gate = func(ctx context.Context, position int) error {
		if position < after {
			return nil
		}
		if !told.Swap(true) {
			close(reached)
		}
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return reached, release
}

// An entry that dies in the middle of an answer is replaced by another in the next
// epoch, and the client's text is the same.
func TestEntryKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(20)
	g := r.gateway("g1")
	reached := make(chan string, 2)
	var killing atomic.Bool
	killing.Store(true)
	start := func(node string) *clustertest.Worker {
		return clustertest.StartWorker(r.Cluster, node, func(replica string) *sessiontest.Entry {
			return &sessiontest.Entry{ID: replica, Script: script, Gate: func(ctx context.Context, position int) error {
				if position == 7 && killing.Swap(false) {
					reached <- node
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}}
		}, "s")
	}
	workers := map[string]*clustertest.Worker{"w1": start("w1"), "w2": start("w2")}
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	clustertest.Await(t, "both replicas", func() bool {
		s := g.link.View().State()
		n := 0
		for _, rep := range s.ReplicasOf("s") {
			if s.Serving(&rep) {
				n++
			}
		}
		return n == 2
	})
	resp, err := g.open(t.Context(), key, true)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	workers[<-reached].Kill()
	text, epoch, done := read(resp.Body)
	if !done || text != script.Text() || epoch != 2 {
		t.Errorf("done %t, epoch %d: %s", done, epoch, text)
	}
}

// Without any control node a gateway serves by the last state, and says how old it is.
func TestControlNodesDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(5)
	g := r.gateway("g1")
	r.worker("w1", script)
	r.deploy()
	key, _ := r.key(nil)
	limited, _ := r.key(func(k *cluster.Key) { k.RequestsPerMinute = 100 })
	g.await()
	for _, n := range r.Nodes() {
		n.Stop()
	}
	for range 5 {
		if a := g.chat(key); a.status != http.StatusOK || a.text != script.Text() {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if a := g.chat(limited); a.status != http.StatusOK {
		t.Errorf("a key with a rate: %d %s", a.status, a.body)
	}
	if status := g.get("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz is %d", status)
	}
}

// A worker that was leaving or lost when the control nodes went away may be back by now:
// without them it is the last resort, and is used when the others fail.
func TestLastResort(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(5)
	g := r.gateway("g1")
	leaving, other := r.worker("w1", script), r.worker("w2", script)
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	r.Await("both replicas", func(s *state.State) bool {
		one, _ := s.Replica("s-w1")
		two, _ := s.Replica("s-w2")
		return one.Phase == cluster.Ready && two.Phase == cluster.Ready
	})
	yes := true
	index := r.Propose(r.Leader(), cluster.KindNodeState, cluster.NodeState{ID: "w1", Draining: &yes})
	clustertest.Await(t, "the drain", func() bool { return g.link.View().State().Index >= index })
	for _, n := range r.Nodes() {
		n.Stop()
	}
	clustertest.Await(t, "the doubt", func() bool { return strings.Contains(r.log.String(), "doubt=true") })
	for range 5 {
		if a := g.chat(key); a.status != http.StatusOK || len(leaving.Entry("s-w1").Requests()) > 0 {
			t.Fatalf("%d %s; w1 has got %d requests", a.status, a.body, len(leaving.Entry("s-w1").Requests()))
		}
	}
	other.Kill()
	if a := g.chat(key); a.status != http.StatusOK || a.text != script.Text() {
		t.Errorf("without w2: %d %s", a.status, a.body)
	}
}

// A gateway that starts while the control nodes have no quorum serves by what it has seen
// before; the one control node that runs has not applied what it cannot know to be
// committed, and does not set the gateway back.
func TestStartWithoutQuorum(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	script := sessiontest.Words(5)
	dir, saved := clustertest.Identity(r.Cluster, cluster.Gateway, "g1")
	g := r.gatewayIn(dir, saved)
	r.worker("w1", script)
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	r.Poll("the key in the gateway's directory", func() bool {
		s, _, err := lastseen.Read(dir, g.link.Credentials().Name())
		return err == nil && len(s.Keys) == 1 && g.link.View().State().Index == s.Index
	})
	for _, n := range r.Nodes() {
		n.Stop()
	}
	if err := g.end(); err != nil {
		t.Fatal(err)
	}
	for _, n := range slices.Clone(r.Nodes()) {
		r.Forget(n)
	}
	alone := r.Start("c1")
	saved.Control = []string{alone.Addr}
	g = r.gatewayIn(dir, saved).await()
	for range 3 {
		if a := g.chat(key); a.status != http.StatusOK || a.text != script.Text() {
			t.Fatalf("%d %s", a.status, a.body)
		}
	}
	if status := g.get("/readyz"); status != http.StatusOK {
		t.Errorf("/readyz is %d", status)
	}
	if !strings.Contains(r.log.String(), "serves by the state that it has seen last") {
		t.Error("nothing is logged of that")
	}
}

// An operator's drain has load balancers look elsewhere; who comes all the same is served.
func TestOperatorsDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(3)
	g := r.gateway("g1")
	r.worker("w1", script)
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	for _, draining := range []bool{true, false} {
		want := http.StatusOK
		if draining {
			want = http.StatusServiceUnavailable
		}
		r.Propose(r.Leader(), cluster.KindNodeState, cluster.NodeState{ID: "g1", Draining: &draining})
		clustertest.Await(t, "readiness", func() bool { return g.get("/readyz") == want })
		if a := g.chat(key); a.status != http.StatusOK || a.text != script.Text() {
			t.Errorf("draining %t: %d %s", draining, a.status, a.body)
		}
	}
}

// A stop refuses what is new, lets a stream in flight end, and tells the cluster.
func TestDrain(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(10)
	g := r.gateway("g1")
	w := r.worker("w1", script)
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	reached, release := hold(w.Entry("s-w1"), 5)
	resp, err := g.open(t.Context(), key, true)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-reached
	g.stop()
	r.Await("the drain", func(s *state.State) bool { n, _ := s.Node("g1"); return n.Draining })
	clustertest.Await(t, "unreadiness", func() bool { return g.get("/readyz") == http.StatusServiceUnavailable })
	if a := g.chat(key); a.status != http.StatusServiceUnavailable {
		t.Errorf("while draining: %d", a.status)
	}
	close(release)
	if text, _, done := read(resp.Body); !done || text != script.Text() {
		t.Errorf("done %t: %s", done, text)
	}
	if err := g.end(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

// A gateway that is removed ends and says why.
func TestRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	g := r.gateway("g1")
	r.Await("the gateway", func(s *state.State) bool { _, ok := s.Node("g1"); return ok })
	r.Propose(r.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "g1"})
	g.done.Wait()
	if !errors.Is(g.err, link.ErrRemoved) {
		t.Errorf("Run: %v", g.err)
	}
}

// A worker that is removed is let go, and its requests move.
func TestWorkerRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	script := sessiontest.Words(10)
	g := r.gateway("g1")
	w := r.worker("w1", script)
	r.deploy()
	key, _ := r.key(nil)
	g.await()
	reached, release := hold(w.Entry("s-w1"), 5)
	defer close(release)
	resp, err := g.open(t.Context(), key, true)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-reached
	r.worker("w2", script)
	clustertest.Await(t, "the second replica", func() bool {
		s := g.link.View().State()
		rep, ok := s.Replica("s-w2")
		return ok && s.Serving(&rep)
	})
	r.Propose(r.Leader(), cluster.KindRemoveNode, cluster.Name{Name: "w1"})
	if text, epoch, done := read(resp.Body); !done || text != script.Text() || epoch < 2 {
		t.Errorf("done %t, epoch %d: %s", done, epoch, text)
	}
	clustertest.Await(t, "the end at the removed worker", func() bool { return w.Entry("s-w1").Active.Load() == 0 })
}

// What the gossip says of a worker is seen in its entries.
func TestHear(t *testing.T) {
	t.Parallel()
	e := newEntries(nil, nil, nil)
	e.workers["busy"], e.workers["dead"], e.workers["silent"] = new(worker), new(worker), new(worker)
	e.workers["busy"].inFlight.Store(3)
	e.hear(memberships())
	for node, want := range map[string]int64{"busy": 7 + 2 - 3, "dead": deadLoad, "silent": 0} {
		if got := e.workers[node].others.Load(); got != want {
			t.Errorf("%s: %d, want %d", node, got, want)
		}
	}
}

// What is known of models outlives their replicas, and the smallest context counts.
// Requests go to replicas that have the deployment, as long as there is one.
func TestEntriesOf(t *testing.T) {
	t.Parallel()
	s := withReplicas(t, map[string]cluster.Facts{"s-1": {MaxContext: 9}, "s-2": {MaxContext: 9}, "l-1": {MaxContext: 9}})
	d := cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "r-stitch"}
	left := func(id, reason string, out ...cluster.LeftOut) {
		r, _ := s.Replica(id)
		r.Facts.LeftOut = out
		c, err := cluster.NewCommand(cluster.KindReport, "", time.Now(), cluster.Report{Node: "w", Replicas: []cluster.ReplicaReport{{
			ID: id, Generation: r.Generation, Phase: cluster.Ready, Reason: reason, Facts: r.Facts,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if s, err = state.Apply(s, s.Index+1, c); err != nil {
			t.Fatal(err)
		}
	}
	cut := strings.Repeat("deployment other: no such router network\n", 12) // by which the text of d is gone
	for _, step := range []struct{ id, reason, want, out string }{
		{"s-1", cut, "s-2", "d"},
		{"s-1", "deployment d: no such router network", "s-1 s-2", "other"}, // the field counts, not the text
		{"s-1", "", "s-1 s-2", ""},
		{"s-1", "deployment other: no such router network", "s-1 s-2", ""},
		{"s-1", "deployment d: no such router network", "s-2", ""},
		{"l-1", "deployment d: no such token", "s-2", ""},
		{"s-2", "deployment d: no such router network", "s-1 s-2", ""},
		{"s-1", "", "s-1", ""},
	} {
		if step.out == "" {
			left(step.id, step.reason) // as builds before version 3 tell
		} else {
			left(step.id, step.reason, cluster.LeftOut{Deployment: step.out})
		}
		var got []string
		for _, r := range entriesOf(s, &d) {
			got = append(got, r.ID)
		}
		if strings.Join(got, " ") != step.want {
			t.Errorf("%+v: %v", step, got)
		}
	}
}

func TestFacts(t *testing.T) {
	t.Parallel()
	known := facts{}
	d := cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "r-stitch"}
	if got := known.deployment(&d); got.MaxContext != unknownContext || got.Vocab != unknownVocab {
		t.Errorf("%+v", got)
	}
	s := withReplicas(t, map[string]cluster.Facts{
		"s-1": {MaxContext: 4096, Vocab: 100, Temperature: 0.6, TopP: 0.9, TopK: 20},
		"s-2": {MaxContext: 1024, Vocab: 100, Temperature: 0.6, TopP: 0.9, TopK: 20},
		"l-1": {MaxContext: 2048, Vocab: 120},
	})
	known.learn(s)
	known.learn(new(state.State))
	got := known.deployment(&d)
	if got.MaxContext != 1024 || got.Vocab != 100 || got.Defaults.Temperature != 0.6 || got.Defaults.TopP != 0.9 || got.Defaults.TopK != 20 {
		t.Errorf("%+v", got)
	}
}

func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := writeCertificate(t, dir)
	c, err := newCertificate(dir+"/crt", dir+"/key", new(logs).logger())
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	c.now = func() time.Time { return now }
	serial := func() string {
		got, err := c.get(nil)
		if err != nil {
			t.Fatal(err)
		}
		return got.Leaf.SerialNumber.String()
	}
	if got := serial(); got != first {
		t.Errorf("serial %s, want %s", got, first)
	}
	second := writeCertificate(t, dir)
	if got := serial(); got != first {
		t.Errorf("within a second: serial %s", got)
	}
	now = now.Add(2 * recheck)
	if got := serial(); got != second {
		t.Errorf("later: serial %s, want %s", got, second)
	}
	breakFile(t, dir+"/crt")
	now = now.Add(2 * recheck)
	if got := serial(); got != second {
		t.Errorf("with a broken file: serial %s, want the last good one", got)
	}
}
