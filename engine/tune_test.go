package engine

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// steps are estimates of constant times, in milliseconds by batch size; 0 means
// not measured.
func steps(ms ...float64) []subservice.StepEstimate {
	var list []subservice.StepEstimate
	for _, t := range ms {
		e := subservice.StepEstimate{}
		if t > 0 {
			e = subservice.StepEstimate{N: 100, Mean: time.Duration(t * float64(time.Millisecond))}
		}
		list = append(list, e)
	}
	return list
}

func pair(p float64, all [2][]subservice.StepEstimate, slowdown float64) *Group {
	return &Group{Deployment: "pair", Models: []subservice.Estimate{
		{Deployment: "pair", Routed: 5000, To: []float64{1 - p, p}, Kept: []float64{1, 0}, All: all[0], Slowdown: slowdown},
		{Deployment: "pair", Routed: 5000, To: []float64{1, 0}, Kept: []float64{1, 0}, All: all[1], Slowdown: slowdown},
	}}
}

// The paper's measurements give the paper's predictions.
func TestInputOfThePaper(t *testing.T) {
	g := pair(0.35, [2][]subservice.StepEstimate{steps(6, 6), steps(27.9, 0, 27.9)}, 1)
	in, ok := g.Input(4, 2000)
	if !ok {
		t.Fatal("not enough is known")
	}
	if len(in.T[0]) != 1 || len(in.T[1]) != 1 || in.Speed != nil {
		t.Fatalf("constant times became %v, speeds %v", in.T, in.Speed)
	}
	in.Exact = true
	got, err := Predict(context.Background(), in, []int{1, 3})
	if err != nil || math.Abs(got-208) > 0.2 {
		t.Errorf("%.1f tokens/s, %v; the paper's model says 208", got, err)
	}
	if _, err := Predict(context.Background(), in, []int{3, 3}); err == nil {
		t.Error("thresholds that deadlock have a throughput")
	}
	if _, ok := g.Input(4, 6000); ok {
		t.Error("5000 routed steps are 6000")
	}
}

// Times that are not known lie on a line, do not fall, and company counts.
func TestInputTimes(t *testing.T) {
	g := pair(0.2, [2][]subservice.StepEstimate{steps(2, 0, 4, 3.9), steps(12.5, 15)}, 1.5)
	for i := range g.Models[1].All {
		g.Models[1].All[i].Company = 0.5 // alone it takes 10 and 12
	}
	in, ok := g.Input(5, 1)
	if !ok {
		t.Fatal("not enough is known")
	}
	for i, row := range in.T {
		if len(row) != 5 {
			t.Fatalf("model %d has times %v", i, row)
		}
		for b := 1; b < len(row); b++ {
			if row[b] < row[b-1] {
				t.Errorf("model %d: times %v fall", i, row)
			}
		}
	}
	if got := in.T[1][4]; math.Abs(got-18) > 0.01 {
		t.Errorf("a step of five takes %.2f ms, the line says 18", got)
	}
	for i := range in.Speed {
		if got := in.Speed[i][3]; math.Abs(got-1/1.5) > 0.001 {
			t.Errorf("model %d runs at %.3f in company", i, got)
		}
		if in.Speed[i][1<<i] != 1 {
			t.Errorf("model %d alone runs at %.3f", i, in.Speed[i][1<<i])
		}
	}
	if _, err := in.System(); err != nil {
		t.Error(err)
	}
}

// What was measured after an earlier look has its own means.
func TestSince(t *testing.T) {
	at := func(n uint64, total time.Duration) *Group {
		g := pair(0.2, [2][]subservice.StepEstimate{{{N: n, Total: total, CompanyTotal: float64(n) / 2}}, steps(10)}, 1)
		g.Models[0].Prefill = subservice.StepEstimate{N: n / 10, Total: total / 10}
		return g
	}
	got := at(300, 900*time.Millisecond).Since(at(100, 100*time.Millisecond)).Models[0]
	if e := got.All[0]; e.N != 200 || e.Mean != 4*time.Millisecond || e.Company != 0.5 {
		t.Errorf("%+v", e)
	}
	if e := got.Prefill; e.N != 20 || e.Mean != 4*time.Millisecond {
		t.Errorf("prompts: %+v", e)
	}
	// 20 prompts of 4 ms, over 200 steps of one sequence and the 20 that they end in.
	if each, want := got.PrefillEach, 80*time.Millisecond/220; each != want {
		t.Errorf("prompts make a step %v longer for each sequence, want %v", each, want)
	}
}

// What company costs shows between runs, also where chance hides it within them.
func TestPool(t *testing.T) {
	run := func(ms, company float64) *Group {
		g := pair(0.2, [2][]subservice.StepEstimate{steps(ms, 2*ms), steps(10)}, 0.95)
		for i := range g.Models[0].All {
			e := &g.Models[0].All[i]
			e.Company, e.CompanyTotal, e.Total = company, 100*company, 100*e.Mean
		}
		g.Models[1].All[0].Total = time.Second
		return g
	}
	got := Pool([]*Group{run(1, 0), nil, run(1.2, 0.5), run(1.4, 1)})
	if s := got.Models[0].Slowdown; math.Abs(s-1.4) > 0.02 {
		t.Errorf("slowdown %.3f, want 1.4", s)
	}
	if s := got.Models[1].Slowdown; s != 0.95 {
		t.Errorf("slowdown %.3f of a model whose company does not vary", s)
	}
	if e := got.Models[0].All[0]; e.N != 300 || e.Mean != 1200*time.Microsecond {
		t.Errorf("%+v", e)
	}
	if Pool(nil) != nil || Pool([]*Group{nil}) != nil {
		t.Error("nothing is something")
	}
}

// A simulation with what was measured is the paper's model where nothing else was
// measured; prompts and the way of a hand-off cost their time.
func TestVirtual(t *testing.T) {
	predict := func(change func(*Group)) float64 {
		t.Helper()
		g := pair(0.35, [2][]subservice.StepEstimate{steps(6, 6, 6, 6), steps(27.9, 27.9, 27.9, 27.9)}, 1)
		change(g)
		cfg, ok := g.Virtual(4, 1)
		if !ok {
			t.Fatal("not enough is known")
		}
		got, err := PredictVirtual(*cfg, schedule.Delayed, []int{1, 3}, 100, 300)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	plain := predict(func(*Group) {})
	if math.Abs(plain-208) > 4 {
		t.Errorf("%.1f tokens/s; the paper's model says 208", plain)
	}
	prompts := predict(func(g *Group) { g.Models[1].Prefill = subservice.StepEstimate{N: 10, Mean: 300 * time.Millisecond} })
	hops := predict(func(g *Group) {
		for i := range g.Models {
			g.Models[i].Hop = subservice.StepEstimate{N: 10, Total: 30 * time.Millisecond}
		}
	})
	if prompts > 0.95*plain || hops > 0.98*plain || hops < 0.8*plain {
		t.Errorf("%.1f tokens/s, with prompts %.1f, with hand-offs that take 3 ms %.1f", plain, prompts, hops)
	}
}

// Prompts cost by the sequence and not by the step: the solver, which knows none, then predicts what the real scheduler does with them at
// every threshold, and does not take fuller batches for a way to save on prompts.
func TestPromptsCostBySequence(t *testing.T) {
	const n, tokens, prompt = 6, 100, 300 * time.Millisecond
	g := pair(0.35, [2][]subservice.StepEstimate{steps(6, 6, 6, 6, 6, 6), steps(27, 28, 29, 30, 31, 32)}, 1)
	g.Models[1].Prefill = subservice.StepEstimate{N: 100, Mean: prompt, Total: 100 * prompt}
	g.Models[1].PrefillEach = prompt / (0.35 * tokens)
	in, ok := g.Input(n, 2000)
	if !ok {
		t.Fatal("not enough is known")
	}
	cfg, _ := g.Virtual(n, 2000)
	for b := 1; b <= n-1; b++ {
		solved, err := Predict(t.Context(), in, []int{1, b})
		if err != nil {
			t.Fatal(err)
		}
		played, err := PredictVirtual(*cfg, schedule.Delayed, []int{1, b}, tokens, 300)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("threshold %d: solver %.1f tokens/s, played %.1f", b, solved, played)
		if math.Abs(solved/played-1) > 0.06 {
			t.Errorf("threshold %d: %.1f tokens/s by the solver, %.1f as played", b, solved, played)
		}
	}
}

// Under load thresholds are solved from what is measured, put to use, and what is
// seen is compared with what they promise.
func TestThresholdsFollow(t *testing.T) {
	if testing.Short() {
		t.Skip("solves for a minute under the race detector")
	}
	e := start(t, func(c *Config) { c.AutoThresholds = true })
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	list := questions(30, 120)
	for {
		answers(t, e, list, 4, nil)
		s := e.ThresholdStatus()[0]
		if s.Solved && s.Predicted != nil && s.Observed > 0 {
			if s.Inputs == nil || len(s.B) != 2 || !threshold.Feasible(s.B, max(1, int(math.Round(s.Live)))) {
				t.Errorf("status %+v", s)
			}
			t.Logf("solved in %.1f s: %+v", s.SolveTime, s)
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("not solved: %+v", s)
		}
	}
}
