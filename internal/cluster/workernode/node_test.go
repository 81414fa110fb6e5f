package workernode

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
)

// Two workers, one model each, write what one process writes, under policies that hand
// over text alone and ones that hand over distributions.
func TestTwoWorkersWriteTheSame(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "both", Models: []string{"tiny-s", "tiny-l"}, Policy: "me"})
	w.awaitReady(2)
	g := w.gate()
	if _, ok := w.now().Deployment("tiny"); !ok {
		t.Fatal("the known pair is no deployment")
	}
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

// What cannot be served is told of.
func TestRefusals(t *testing.T) {
	w := newTown(t)
	x := w.worker("w1", "tiny-s")
	w.awaitReady(1)
	s := w.now()
	w.must(cluster.KindPlace, cluster.Place{From: s.Placement, Put: []cluster.Replica{{ID: "wide", Model: "tiny-l", Node: "w1", Source: "tiny-l", TP: 2, Pinned: true}}})
	_ = x
	w.await("the refusal", func(s *state.State) bool { return true })
}
