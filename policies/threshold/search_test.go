package threshold

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestReferenceBest(t *testing.T) {
	for _, r := range references(t) {
		if r.Best == nil || raced && len(r.P) > 2 {
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			s, err := Solve(t.Context(), r.model(), Options{})
			if err != nil {
				t.Fatal(err)
			}
			if s.Best.Theta < r.Theta*(1-r.tolerance()) || s.Best.Theta > r.Theta*(1+r.tolerance()) {
				t.Errorf("best %v with %.7g, want %v with %.7g", s.Best.B, s.Best.Theta, r.Best, r.Theta)
			}
			if r.Gap != nil && s.Search == Exhaustive && math.Abs(s.Gap-*r.Gap) > max(3e-6, r.Tol) {
				t.Errorf("gap %.7g, want %.7g", s.Gap, *r.Gap)
			}
		})
	}
}

func TestReferenceLookAhead(t *testing.T) {
	for _, r := range references(t) {
		if r.LookTheta == 0 && r.Dynamic == 0 {
			continue
		}
		t.Run(r.ID, func(t *testing.T) {
			if r.LookTheta > 0 {
				got, err := EvaluateLookAhead(t.Context(), r.model(), &LookAhead{Caution: r.Look, P: r.P})
				if err != nil || apart(got.Theta, r.LookTheta) > 1e-4 {
					t.Errorf("%+v, %v, want %.6g", got, err, r.LookTheta)
				}
				if r.Dynamic > 0 && got.Theta > r.Dynamic*(1+1e-5) {
					t.Errorf("%.6g is above the bound %.6g", got.Theta, r.Dynamic)
				}
			}
			if r.Dynamic > 0 && r.Theta > r.Dynamic*(1+1e-5) {
				t.Errorf("best thresholds %.6g are above the bound %.6g", r.Theta, r.Dynamic)
			}
		})
	}
}

// With a floor that holds everything below the best thresholds, the rule is at
// least not worse than half-heartedly; with a huge caution it is the floor alone.
func TestLookAheadFloor(t *testing.T) {
	c := &Case{N: 4, P: [][]float64{{.8, .2}, {1, 0}}, T: [][]int{{6}, {27}}}
	got, err := EvaluateLookAhead(t.Context(), c, &LookAhead{Caution: 1e12, P: c.P, Floor: []int{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if want := mustEvaluate(t, c, []int{1, 2}); apart(got.Theta, want.Theta) > 1e-12 {
		t.Errorf("%.9g, thresholds alone %.9g", got.Theta, want.Theta)
	}
}

func TestClimbFindsTheBest(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	found, total := 0, 0
	for range 60 {
		c, _ := randomCase(rng, 2, 10, false)
		e, err := newEvaluator(c)
		if err != nil {
			t.Fatal(err)
		}
		s := &searcher{evaluator: e, found: map[string]*Result{}}
		best, _, err := s.exhaust(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.found = map[string]*Result{}
		climbed, err := s.climb(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		total++
		if climbed.Theta >= best.Theta*(1-1e-9) {
			found++
		} else if climbed.Theta < best.Theta*0.99 {
			t.Errorf("%+v: climbed to %v, %.5g, best %v, %.5g", *c, climbed.B, climbed.Theta, best.B, best.Theta)
		}
	}
	if found < total-1 {
		t.Errorf("the climb found %d of %d optima", found, total)
	}
}

// The fluid search loses little against the exact optimum.
func TestFluidSearch(t *testing.T) {
	for _, c := range []*Case{
		{N: 16, P: [][]float64{{.8, .2}, {1, 0}}, T: [][]int{{2}, {14}}},
		{N: 16, P: [][]float64{{.9, .1}, {1, 0}}, T: [][]int{{8}, {36}}, SlowJitter: 1},
		{N: 16, P: [][]float64{{.65, .35}, {1, 0}}, T: [][]int{{8}, {37}}, SlowJitter: 1},
		{N: 12, P: [][]float64{{.7, .3}, {.5, .5}}, T: [][]int{{5}, {23}}},
	} {
		e, err := newEvaluator(c)
		if err != nil {
			t.Fatal(err)
		}
		s := &searcher{evaluator: e, found: map[string]*Result{}}
		chosen, err := s.fluid(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		best, _, err := s.exhaust(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if regret := 1 - chosen.Theta/best.Theta; regret > 0.005 {
			t.Errorf("%+v: chose %v, best %v: regret %.3f %%", *c, chosen.B, best.B, 100*regret)
		} else {
			t.Logf("chose %v, best %v, regret %.3f %%", chosen.B, best.B, 100*regret)
		}
	}
}

func TestSolveOptions(t *testing.T) {
	c := &Case{N: 4, P: [][]float64{{.8, .2}, {1, 0}}, T: [][]int{{6}, {27}}}
	s, err := Solve(t.Context(), c, Options{Evals: [][]int{{1, 1}, {3, 3}, {1, 2}}, SkipSearch: true})
	if err != nil || s.Best != nil || len(s.All) != 3 {
		t.Fatalf("%+v, %v", s, err)
	}
	if s.All[1].Feasible || !s.All[1].Deadlock || !s.All[2].Feasible {
		t.Errorf("%+v %+v", s.All[1], s.All[2])
	}
	s, err = Solve(t.Context(), c, Options{All: true})
	if err != nil || len(s.All) != 10 || s.Search != Exhaustive || s.Evaluated != 10 {
		t.Fatalf("%+v, %v", s, err)
	}
	if !slices.IsSortedFunc(s.All, func(a, b *Result) int { return slices.Compare(a.B, b.B) }) {
		t.Error("not in order")
	}
}

// Table's thresholds are feasible at every n and never worse than eager.
func TestTable(t *testing.T) {
	times := make([]int, 6)
	for b := range times {
		times[b] = 27 + 2*b
	}
	for name, c := range map[string]*Case{
		"constant": {N: 8, P: [][]float64{{.8, .2}, {1, 0}}, T: [][]int{{8}, {36}}, SlowJitter: 1},
		"by batch": {N: 6, P: [][]float64{{.8, .2}, {1, 0}}, T: [][]int{{6}, times}},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := Table(t.Context(), c)
			if err != nil || len(table) != c.N {
				t.Fatalf("%d entries, %v", len(table), err)
			}
			for k, e := range table {
				eager := mustEvaluate(t, c.With(k+1), []int{1, 1})
				if e.N != k+1 || !Feasible(e.B, e.N) || e.Theta < eager.Theta {
					t.Errorf("n %d: %v with %.5g, eager %.5g", e.N, e.B, e.Theta, eager.Theta)
				}
			}
		})
	}
}

func BenchmarkTable16(b *testing.B) {
	growing := make([]int, 16)
	for k := range growing {
		growing[k] = 27 + k
	}
	for name, c := range map[string]*Case{
		"constant jittered": {N: 16, P: [][]float64{{.65, .35}, {1, 0}}, T: [][]int{{8}, {37}}, SlowJitter: 1, Extra: [][]float64{{0}, {.2}}},
		"constant exact":    {N: 16, P: [][]float64{{.65, .35}, {1, 0}}, T: [][]int{{20}, {93}}},
		"by batch":          {N: 16, P: [][]float64{{.65, .35}, {1, 0}}, T: [][]int{{6}, growing}},
		"shared speed": {N: 16, P: [][]float64{{.65, .35}, {1, 0}}, T: [][]int{{8}, {36}},
			Speed: [][]float64{{1, 1, 1, .66}, {1, 1, 1, .67}}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Table(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEvaluate(b *testing.B) {
	for _, n := range []int{8, 16, 32, 64} {
		c := &Case{N: n, P: [][]float64{{.9, .1}, {1, 0}}, T: [][]int{{6}, {27}}}
		setting := []int{1, n / 8}
		b.Run(fmt.Sprintf("compressed/N=%d", n), func(b *testing.B) {
			for b.Loop() {
				mustEvaluate(b, c, setting)
			}
		})
		b.Run(fmt.Sprintf("chain/N=%d", n), func(b *testing.B) {
			for b.Loop() {
				e, err := newEvaluator(c)
				if err != nil {
					b.Fatal(err)
				}
				e.pair = nil
				if _, err := e.evaluate(b.Context(), setting); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
