package tuner

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// rig is a state, a clock and two workers that measure.
type rig struct {
	*testing.T
	s     *state.State
	now   time.Time
	tuner *Tuner
	// p is the probability of a hand-off, small and large are steps in milliseconds.
	p, small, large float64
	routed          uint64
	live            int
}

func newRig(t *testing.T) *rig {
	r := &rig{T: t, s: new(state.State), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), tuner: New(), p: 0.35, small: 6, large: 27.9, routed: 5000, live: 4}
	r.apply(cluster.KindInit, cluster.Cluster{ID: "c"})
	for _, id := range []string{"w1", "w2"} {
		r.apply(cluster.KindPutNode, cluster.Node{ID: id, Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 1})
	}
	r.apply(cluster.KindPlace, cluster.Place{From: r.s.Placement, Put: []cluster.Replica{
		{ID: "s-w1", Model: "s", Node: "w1", TP: 1}, {ID: "s-w2", Model: "s", Node: "w2", TP: 1}, {ID: "l-w2", Model: "l", Node: "w2", TP: 1},
	}})
	r.deploy(cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "r-stitch"})
	return r
}

func (r *rig) apply(kind cluster.Kind, body any) {
	r.Helper()
	c, err := cluster.NewCommand(kind, "", r.now, body)
	if err == nil {
		r.s, err = state.Apply(r.s, r.s.Index+1, c)
	}
	if err != nil {
		r.Fatal(err)
	}
}

func (r *rig) deploy(d cluster.Deployment) { r.Helper(); r.apply(cluster.KindPutDeployment, d) }

// measure lets both workers tell, and two seconds pass.
func (r *rig) measure() {
	r.Helper()
	one := func(replica string, model int, routed uint64, to []float64, ms float64) cluster.Measure {
		return cluster.Measure{Deployment: "d", Replica: replica, Model: model, Routed: routed, To: to, Kept: []float64{1, 0},
			Steps: []cluster.StepTime{{N: 100, MS: ms}}, Slowdown: 1, Live: r.live}
	}
	small := []float64{1 - r.p, r.p}
	for _, m := range []cluster.Measures{
		{Node: "w1", List: []cluster.Measure{one("s-w1", 0, r.routed, small, r.small), one("l-w2", 1, 1e6, []float64{0, 1}, 1)}}, // not its replica
		{Node: "w2", List: []cluster.Measure{one("s-w2", 0, r.routed, small, r.small), one("l-w2", 1, r.routed, []float64{1, 0}, r.large),
			one("gone", 1, 1e6, []float64{0, 1}, 1), one("s-w2", 1, 1e6, []float64{0, 1}, 1)}}, // no replica, the wrong model
	} {
		if err := m.Check(); err != nil {
			r.Fatal(err)
		}
		r.tuner.Note(r.now, m)
	}
	r.now = r.now.Add(cluster.MeasureEvery)
}

// due says whether there is something to solve.
func (r *rig) due(want bool) Job {
	r.Helper()
	jobs := r.tuner.Due(r.now, r.s)
	if len(jobs) > 0 != want {
		r.Fatalf("jobs %+v, want some: %v", jobs, want)
	}
	if !want {
		return Job{}
	}
	return jobs[0]
}

// solve solves a job, and applies its table if it is better.
func (r *rig) solve(j Job) bool {
	r.Helper()
	table, better, err := Solve(r.Context(), r.now, &j)
	if err != nil {
		r.Fatal(err)
	}
	if better {
		r.apply(cluster.KindPutTable, table)
	}
	return better
}

// put applies a table for a job without solving it.
func (r *rig) put(j Job) {
	r.Helper()
	inputs, err := json.Marshal(j.Input)
	if err != nil {
		r.Fatal(err)
	}
	r.apply(cluster.KindPutTable, cluster.Table{Deployment: j.Deployment, B: [][]int{{1, 1}}, Inputs: inputs, Solved: r.now})
}

// Reports become a table in the state; a small change solves nothing, a large one seen
// twice does; another leader keeps the table.
func TestTable(t *testing.T) {
	r := newRig(t)
	r.due(false) // nothing is known
	r.routed = 900
	r.measure()
	r.due(false) // 1800 are too few
	r.routed = 1100
	r.measure()
	j := r.due(true) // both entry replicas together have enough
	if j.Input.N != 16 || j.Live != 4 || j.Input.P[0][1] != 0.35 || j.Input.T[1][0] != 27.9 || j.Present != nil {
		t.Fatalf("job %+v", j)
	}
	if r.due(false); !r.solve(j) {
		t.Fatal("the first table is not put")
	}
	table, _ := r.s.Table("d")
	if len(table.B) != 16 || !slices.Equal(table.B[3], []int{1, 3}) || table.Predicted < 200 || table.Predicted > 215 || !table.Solved.Equal(r.now) {
		t.Fatalf("table %+v", table)
	}
	if in := inputOf(&table); in == nil || in.N != 16 {
		t.Fatalf("inputs %s", table.Inputs)
	}
	r.p = 0.4
	r.measure()
	r.due(false) // less than a factor of 1.3

	r.tuner = New() // another leader
	r.due(false)
	r.measure()
	r.due(false)

	r.p, r.large = 0.1, 20
	r.measure()
	r.due(false) // once may be chance
	r.measure()
	j = r.due(true)
	if len(j.Present) != 16 || !r.solve(j) {
		t.Fatalf("job %+v", j)
	}
	if table, _ = r.s.Table("d"); slices.Equal(table.B[3], []int{1, 3}) {
		t.Errorf("table %v for another routing", table.B)
	}
	r.measure()
	r.due(false)
}

// A table that promises no more is not put, and its inputs count as considered.
func TestNoGain(t *testing.T) {
	r := newRig(t)
	r.measure()
	r.solve(r.due(true))
	before, _ := r.s.Table("d")
	r.small, r.large = 12, 55.8 // the same in another unit
	r.measure()
	r.due(false)
	r.measure()
	if r.solve(r.due(true)) {
		t.Error("a table that is no better is put")
	}
	r.measure()
	r.due(false)
	if after, _ := r.s.Table("d"); !after.Solved.Equal(before.Solved) {
		t.Error("the table has changed")
	}
}

// What nothing came of is solved again, unless it was solved from something else meanwhile.
func TestDiscard(t *testing.T) {
	r := newRig(t)
	r.measure()
	j := r.due(true)
	r.due(false)
	r.tuner.Discard(&j)
	again := r.due(true)
	r.tuner.Discard(&j)
	r.due(false)
	r.put(again)
	r.due(false)
	r.p = 0.1
	r.measure()
	r.due(false)
	r.measure()
	j = r.due(true)
	r.tuner.Discard(&j)
	r.due(false) // the table in the state is of other inputs, which counts when seen twice
	r.due(true)
	r.tuner.Discard(&Job{Deployment: "none"})
}

// Fixed thresholds, single models and workers that are silent are left alone; another
// policy is solved anew at once.
func TestLeftAlone(t *testing.T) {
	r := newRig(t)
	r.measure()
	r.now = r.now.Add(forget)
	r.due(false) // silent
	r.measure()
	r.put(r.due(true))
	r.deploy(cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "r-stitch", Thresholds: []int{1, 2}})
	r.p = 0.1
	r.measure()
	r.due(false)
	r.measure()
	r.due(false)
	r.deploy(cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "me"})
	r.put(r.due(true)) // the table went with the old policy
	r.apply(cluster.KindDeleteDeployment, cluster.Name{Name: "d"})
	r.measure()
	r.due(false)
	r.deploy(cluster.Deployment{Name: "d", Models: []string{"s"}, Policy: "r-stitch"})
	r.due(false)
}

func TestSolveEnds(t *testing.T) {
	r := newRig(t)
	r.measure()
	j := r.due(true)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, _, err := Solve(ctx, r.now, &j); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	j.Input.P[0][0] = 2
	if _, _, err := Solve(t.Context(), r.now, &j); err == nil {
		t.Error("what is no input is solved")
	}
}

// Nobody fills the memory.
func TestBounded(t *testing.T) {
	tuner := New()
	for i := range maxNodes + 10 {
		tuner.Note(time.Time{}, cluster.Measures{Node: string(rune(i + 0x4e00))})
	}
	if n := len(tuner.words); n != maxNodes {
		t.Errorf("%d workers are remembered", n)
	}
}

// Deployments that share replicas are solved each from its own routing.
func TestDeploymentsThatShareReplicas(t *testing.T) {
	r := newRig(t)
	r.deploy(cluster.Deployment{Name: "e", Models: []string{"s", "l"}, Policy: "random"})
	one := func(deployment, replica string, model int, to []float64, ms float64) cluster.Measure {
		return cluster.Measure{
			Deployment: deployment, Replica: replica, Model: model, Routed: r.routed, To: to, Kept: []float64{1, 0},
			Steps: []cluster.StepTime{{N: 100, MS: ms}}, Slowdown: 1, Live: r.live,
		}
	}
	shares := map[string]float64{"d": 0.35, "e": 0.1}
	m := cluster.Measures{Node: "w2"}
	for name, p := range shares {
		m.List = append(m.List, one(name, "s-w2", 0, []float64{1 - p, p}, 6), one(name, "l-w2", 1, []float64{1, 0}, 27.9))
	}
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	r.tuner.Note(r.now, m)
	jobs := r.tuner.Due(r.now, r.s)
	if len(jobs) != len(shares) {
		t.Fatalf("jobs %+v", jobs)
	}
	for _, j := range jobs {
		if got := j.Input.P[0][1]; got != shares[j.Deployment] || j.Input.T[1][0] != 27.9 {
			t.Errorf("%s: solved from a share of %g and steps of %v", j.Deployment, got, j.Input.T[1])
		}
	}
}
