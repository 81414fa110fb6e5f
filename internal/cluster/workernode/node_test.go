package workernode

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// Two workers, one model each, write what one process writes, under policies that hand
// over text alone and ones that hand over distributions.
func TestTwoWorkersWriteTheSame(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.awaitReady(2)
	w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "both", Models: []string{"tiny-s", "tiny-l"}, Policy: "me"})
	g := w.gate()
	list := questions(6, 80, "tiny")
	compare(t, "r-stitch", g.all(list, 6, nil), alone(t, list, nil))
	list = questions(3, 60, "both")
	compare(t, "me", g.all(list, 3, nil), alone(t, list, func(d *engine.Deployment) { d.Policy = engine.Policy{Name: "me"} }))
}

// A worker of the entry model and one of the other are killed while streams run: the
// streams go on with the same bytes. Nobody tells the others of it.
func TestKilledWorkers(t *testing.T) {
	list := questions(8, 100, "tiny")
	want := alone(t, list, nil)
	w := newTown(t)
	w.worker("w1", "tiny-s")
	entry := w.worker("w2", "tiny-s")
	w.worker("w3", "tiny-l")
	other := w.worker("w4", "tiny-l")
	w.awaitReady(4)
	g := w.gate()
	got := g.all(list, 8, func(n int) {
		switch n {
		case 60:
			other.die()
		case 150:
			entry.die()
		}
	})
	compare(t, "killed", got, want)
	if !slices.ContainsFunc(got, func(a said) bool { return a.Epoch > 1 }) {
		t.Error("void: no request has moved")
	}
}

// A deployment's threshold changes while requests run: they keep theirs. Later ones have
// the new one.
func TestPolicyChangesWhileRequestsRun(t *testing.T) {
	list := questions(4, 100, "tiny")
	threshold := func(v float64) func(*engine.Deployment) {
		return func(d *engine.Deployment) { d.Policy.Threshold = &v }
	}
	old, fresh := alone(t, list, nil), alone(t, list, threshold(0.3))
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.awaitReady(2)
	g := w.gate()
	changed := make(chan struct{})
	got := g.all(list, len(list), func(n int) {
		if n == 20 {
			d, _ := w.now().Deployment("tiny")
			d.Settings = json.RawMessage(`{"threshold":0.3}`)
			w.must(cluster.KindPutDeployment, d)
			close(changed)
		}
	})
	<-changed
	compare(t, "running", got, old)
	compare(t, "later", g.all(list, 4, nil), fresh)
	if old[0].same(&fresh[0]) && old[1].same(&fresh[1]) {
		t.Error("void: both thresholds write the same")
	}
}

// Workers are drained under load: no request fails, each stop is soon over, and what is
// left serves. One comes back at another address.
func TestDrain(t *testing.T) {
	list := questions(10, 80, "tiny")
	want := alone(t, list, nil)
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w3", "tiny-l")
	leaving := []*worker{w.worker("w2", "tiny-s"), w.worker("w4", "tiny-l")}
	w.awaitReady(4)
	g := w.gate()
	compare(t, "drained", g.all(list, 5, func(n int) {
		if n == 50 {
			leaving[0].stop()
			leaving[1].stop()
		}
	}), want)
	for _, x := range leaving {
		x.drained()
	}
	if n, _ := w.now().Node("w2"); !n.Draining {
		t.Error("the cluster does not know of the drain")
	}
	w.worker("w2", "tiny-s")
	w.awaitReady(3)
	compare(t, "after a restart", g.all(list[:4], 4, nil), want[:4])
}

// Without control nodes requests go on, and a replica that is lost is replaced by what is left.
func TestWithoutControl(t *testing.T) {
	list := questions(6, 80, "tiny")
	want := alone(t, list, nil)
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	victim := w.worker("w3", "tiny-l")
	w.awaitReady(3)
	g := w.gate()
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	compare(t, "without control", g.all(list, 3, func(n int) {
		if n == 40 {
			victim.die()
		}
	}), want)
}

// Where no replica of the other model is left, the entry model goes on alone.
func TestSmallOnly(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s")
	other := w.worker("w2", "tiny-l")
	w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch", Fallback: cluster.FallbackSmallOnly})
	w.awaitReady(2)
	g := w.gate()
	got := g.all(questions(2, 80, "tiny"), 2, func(n int) {
		if n == 20 {
			other.die()
		}
	})
	for i := range got {
		if len(got[i].IDs) < 20 || got[i].Models[len(got[i].Models)-1] != "tiny-s" {
			t.Errorf("request %d: %d tokens", i, len(got[i].IDs))
		}
	}
}

// What cannot be served is told of, and a deployment whose models do not fit together
// is refused.
func TestRefusals(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s", "nonsense")
	w.await("a replica of a model that is not there", func(s *state.State) bool {
		r, _ := s.Replica("nonsense-w1")
		return r.Phase == cluster.Failed && strings.Contains(r.Reason, "catalogue")
	})
	for i, r := range []cluster.Replica{{Model: "tiny-s", TP: 2}, {Model: "tiny-s", Source: "no such source", TP: 1}} {
		if _, err := (&Node{cfg: Config{Resolve: func(string) (engine.Model, error) { return engine.Model{}, errors.New("no such source") }}}).model(&r); err == nil {
			t.Errorf("replica %d is served", i)
		}
	}
	s := withFacts(t, map[string]cluster.Facts{"a-1": {Fingerprint: "x", Vocab: 5}, "b-1": {Fingerprint: "y", Vocab: 5}, "c-1": {Fingerprint: "x", Vocab: 5}, "d-1": {}})
	for models, faulty := range map[string]bool{"a b": true, "a c": false, "a d": false, "c d b": true, "d": false} {
		d := cluster.Deployment{Name: "d", Models: strings.Fields(models), Policy: "me"}
		g, err := vocabularies{}.routing(s, &d)
		if err != nil || (g.Fault != "") != faulty {
			t.Errorf("%s: fault %q, %v", models, g.Fault, err)
		}
	}
	for name, d := range map[string]cluster.Deployment{
		"policy":   {Models: []string{"a", "c"}, Policy: "no-such"},
		"settings": {Models: []string{"a", "c"}, Policy: "r-stitch", Settings: json.RawMessage(`{"treshold":1}`)},
		"foreign":  {Models: []string{"a", "c"}, Policy: "r-stitch", Settings: json.RawMessage(`{"step_tokens":1}`)},
	} {
		if _, err := (vocabularies{}).routing(s, &d); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// withFacts is a state with ready replicas; the model is the ID up to the dash.
func withFacts(t *testing.T, list map[string]cluster.Facts) *state.State {
	t.Helper()
	w := newTown(t)
	w.must(cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 1})
	s := w.now()
	for id, f := range list {
		model, _, _ := strings.Cut(id, "-")
		for kind, body := range map[cluster.Kind]any{
			cluster.KindPlace: cluster.Place{From: s.Placement, Put: []cluster.Replica{{ID: id, Model: model, Node: "w", TP: 1}}},
		} {
			c, err := cluster.NewCommand(kind, "", time.Now(), body)
			if err != nil {
				t.Fatal(err)
			}
			if s, err = state.Apply(s, s.Index+1, c); err != nil {
				t.Fatal(err)
			}
		}
		r, _ := s.Replica(id)
		c, err := cluster.NewCommand(cluster.KindReport, "", time.Now(), cluster.Report{Node: "w", Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready, Facts: f}}})
		if err != nil {
			t.Fatal(err)
		}
		if s, err = state.Apply(s, s.Index+1, c); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// Who may call what, by certificate.
func TestCallers(t *testing.T) {
	w := newTown(t)
	x := w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.awaitReady(2)
	call := func(role cluster.Role, node, host, path string) int {
		t.Helper()
		tr, err := h2.NewTransport(h2.Config{
			TLS:  w.credentials(role, node, nil).Client(identity.ProtocolHTTP, "w1", cluster.Worker),
			Dial: func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", x.Addr()) },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = tr.Close() }()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+host+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode
	}
	for _, tc := range []struct {
		role       cluster.Role
		host, path string
		want       int
	}{
		{cluster.Gateway, "tiny-s-w1", generate.Path, http.StatusBadRequest}, // it is read, and is no request
		{cluster.Worker, "tiny-s-w1", generate.Path, http.StatusForbidden},
		{cluster.Control, "tiny-s-w1", generate.Path, http.StatusForbidden},
		{cluster.Gateway, "tiny-s-w1", peer.Path, http.StatusForbidden},
		{cluster.Worker, "tiny-s-w1", peer.Path, http.StatusOK}, // the hello says more
		{cluster.Gateway, "elsewhere", generate.Path, http.StatusServiceUnavailable},
		{cluster.Gateway, "tiny-s-w1", "/metrics", http.StatusNotFound},
	} {
		if got := call(tc.role, "n", tc.host, tc.path); got != tc.want {
			t.Errorf("%s calls %s%s: %d, want %d", tc.role, tc.host, tc.path, got, tc.want)
		}
	}
	claim := func(role cluster.Role, node, replica, model string) error {
		leaf, err := w.credentials(role, node, nil).Client("h2", "", cluster.Worker).GetClientCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://tiny-s-w1", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf.Leaf}}
		return x.net.Authorize(r, replica, model)
	}
	if err := claim(cluster.Worker, "w2", "tiny-l-w2", "tiny-l"); err != nil {
		t.Errorf("its own replica: %v", err)
	}
	for name, err := range map[string]error{
		"another node's replica": claim(cluster.Worker, "w1", "tiny-l-w2", "tiny-l"),
		"another model":          claim(cluster.Worker, "w2", "tiny-l-w2", "tiny-s"),
	} {
		if !errors.Is(err, errUnknownReplica) {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.must(cluster.KindRemoveNode, cluster.Name{Name: "w2"})
	if got := call(cluster.Worker, "w2", "tiny-s-w1", peer.Path); got != 0 {
		t.Errorf("a removed node is answered with %d", got)
	}
}
