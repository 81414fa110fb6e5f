package threshold

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomCase draws a case of m models and a feasible setting. extras adds batch
// times, bounds, hold timers and jitter.
func randomCase(rng *rand.Rand, m, most int, extras bool) (*Case, []int) {
	c := &Case{N: 1 + rng.IntN(most), P: randomRouting(rng, m)}
	for range m {
		c.T = append(c.T, []int{1 + rng.IntN(12)})
	}
	if rng.IntN(2) == 0 {
		c.Commit = make([][]float64, m)
		for i := range c.Commit {
			for range m {
				c.Commit[i] = append(c.Commit[i], float64(rng.IntN(2)))
			}
			c.Commit[i][0] = 1 // some token is kept
		}
	}
	if extras {
		addExtras(rng, c)
	}
	b := make([]int, m)
	for i := range b {
		b[i] = 1 + rng.IntN(c.N)
	}
	return c, Clamp(b, c.N)
}

func addExtras(rng *rand.Rand, c *Case) {
	m := len(c.P)
	if rng.IntN(3) == 0 {
		for i := range c.T {
			base := c.T[i][0]
			c.T[i] = nil
			for n := range c.N {
				c.T[i] = append(c.T[i], base+n*rng.IntN(3))
			}
		}
	}
	if rng.IntN(3) == 0 {
		for range m {
			c.BMax = append(c.BMax, rng.IntN(c.N+1))
		}
	}
	if rng.IntN(3) == 0 {
		for range m {
			c.Hold = append(c.Hold, rng.IntN(10))
		}
	}
	if rng.IntN(3) == 0 {
		c.SlowJitter = rng.IntN(slices.Min(c.T[c.Slow()]))
	}
}

func randomRouting(rng *rand.Rand, m int) [][]float64 {
	p := make([][]float64, m)
	r2r := rng.IntN(3) == 0
	for i := range p {
		var sum float64
		for j := range m {
			v := 0.05 + rng.Float64()
			if r2r && i > 0 {
				v = 0
				if j == 0 {
					v = 1
				}
			}
			p[i] = append(p[i], v)
			sum += v
		}
		for j := range p[i] {
			p[i][j] /= sum
		}
	}
	return p
}

// TestAgainstUnitTime compares with a chain that moves one tick at a time and is
// solved by repeated steps: nothing in it is clever.
func TestAgainstUnitTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for k := range 60 {
		m, most := 2, 6
		if k%3 == 0 {
			m, most = 3, 3
		}
		c, b := randomCase(rng, m, most, k%2 == 0)
		for i := range c.T { // few states
			for j := range c.T[i] {
				c.T[i][j] = 1 + c.T[i][j]%7
			}
		}
		c.SlowJitter = min(c.SlowJitter, slices.Min(c.T[c.Slow()])-1)
		got := mustEvaluate(t, c, b)
		if want := unitTime(c, b); apart(got.Theta, want) > 1e-9 {
			t.Errorf("%+v\nB %v: %.12g by %s, unit time %.12g", *c, b, got.Theta, got.Method, want)
		}
	}
}

// unitTime is the throughput by a chain with one state a tick.
func unitTime(c *Case, b []int) float64 {
	m := len(c.P)
	type state [9]int // q, x, r of up to three models
	var start func(s state, p float64, into map[state]float64)
	startFrom := func(s state, expired []bool, p float64, into map[state]float64) {
		var begin []int
		for i := range m {
			q, x, r := &s[3*i], &s[3*i+1], &s[3*i+2]
			switch {
			case *x > 0:
			case *q > 0 && (*q >= b[i] || expired[i]):
				*x = min(*q, c.limit(i))
				*q -= *x
				*r = 0
				begin = append(begin, i)
			case *q == 0:
				*r = 0
			case *r == 0:
				*r = c.hold(i)
			}
		}
		var times func(k int, s state, p float64)
		times = func(k int, s state, p float64) {
			if k == len(begin) {
				into[s] += p
				return
			}
			i, d := begin[k], 0
			if begin[k] == c.Slow() {
				d = c.SlowJitter
			}
			for j := -d; j <= d; j++ {
				s[3*i+2] = at(c.T[i], s[3*i+1]) + j
				times(k+1, s, p/float64(2*d+1))
			}
		}
		times(0, s, p)
	}
	start = func(s state, p float64, into map[state]float64) { startFrom(s, make([]bool, m), p, into) }
	advance := func(s state, p float64, into map[state]float64) (tokens float64) {
		expired := make([]bool, m)
		laws := map[state]float64{s: p}
		for i := range m {
			next := map[state]float64{}
			for u, v := range laws {
				if u[3*i+2] == 0 {
					next[u] += v
					continue
				}
				u[3*i+2]--
				if u[3*i+2] > 0 {
					next[u] += v
					continue
				}
				x := u[3*i+1]
				if x == 0 {
					expired[i] = true
					next[u] += v
					continue
				}
				tokens += v * float64(x) * c.kept(i)
				u[3*i+1] = 0
				one := map[state]float64{u: v}
				for range x { // one request after the other
					more := map[state]float64{}
					for w, z := range one {
						for j, pj := range c.P[i] {
							if pj > 0 {
								w2 := w
								w2[3*j]++
								more[w2] += z * pj
							}
						}
					}
					one = more
				}
				for w, z := range one {
					next[w] += z
				}
			}
			laws = next
		}
		for u, v := range laws {
			startFrom(u, expired, v, into)
		}
		return tokens
	}
	return settle(func(law map[state]float64) (map[state]float64, float64) {
		next, tokens := map[state]float64{}, 0.0
		if law == nil {
			var s state
			s[0] = c.N
			start(s, 1, next)
			return next, 0
		}
		for s, p := range law {
			tokens += advance(s, p, next)
		}
		return next, tokens
	})
}

// settle turns a step of a law, given as a map, into the long-run mean of what a
// step earns, by repeated half-steps over a table of all states.
func settle[S comparable](step func(map[S]float64) (map[S]float64, float64)) float64 {
	type arc struct {
		to int
		p  float64
	}
	first, _ := step(nil)
	number := map[S]int{}
	var all []S
	id := func(s S) int {
		n, ok := number[s]
		if !ok {
			n = len(all)
			number[s] = n
			all = append(all, s)
		}
		return n
	}
	for s := range first {
		id(s)
	}
	var arcs [][]arc
	var earn []float64
	for k := 0; k < len(all); k++ {
		next, tokens := step(map[S]float64{all[k]: 1})
		row := make([]arc, 0, len(next))
		for s, p := range next {
			row = append(row, arc{id(s), p})
		}
		arcs, earn = append(arcs, row), append(earn, tokens)
	}
	pi := make([]float64, len(all))
	for s, p := range first {
		pi[number[s]] = p
	}
	next := make([]float64, len(all))
	for round := 0; ; round++ {
		clear(next)
		for k, p := range pi {
			for _, a := range arcs[k] {
				next[a.to] += p * a.p / 2
			}
			next[k] += p / 2 // lazy: the chain may be periodic
		}
		var moved float64
		for k := range pi {
			moved += math.Abs(next[k] - pi[k])
		}
		pi, next = next, pi
		if moved < 1e-14 || round > 200_000 {
			break
		}
	}
	return dot(pi, earn)
}

func TestChainAgainstCompressed(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	compressed := 0
	for range 200 {
		c, b := randomCase(rng, 2, 9, false)
		if s := c.Slow(); rng.IntN(2) == 0 {
			c.SlowJitter = rng.IntN(c.T[s][0])
			c.Extra = [][]float64{{0}, {0}}
			c.Extra[s][0] = rng.Float64()
		}
		got := mustEvaluate(t, c, b)
		checkBothWays(t, c, b, got)
		if got.Method == ByCompressed {
			compressed++
		}
		if t.Failed() {
			t.Fatalf("%+v", *c)
		}
	}
	if compressed < 100 {
		t.Errorf("only %d of 200 were compressed", compressed)
	}
}

// TestChainAgainstSimulation holds throughput to 0.5 % on 100 random settings.
func TestChainAgainstSimulation(t *testing.T) {
	settings, steps := 100, 400_000
	if testing.Short() || raced {
		settings, steps = 4, 300_000
	}
	rng := rand.New(rand.NewPCG(5, 6))
	var worst, squares float64
	for k := range settings {
		c, b := randomCase(rng, 2+k%2, 12-6*(k%2), true)
		got := mustEvaluate(t, c, b)
		sim, err := Simulate(t.Context(), c, b, SimOptions{Steps: steps, Seed: uint64(k)})
		if err != nil || sim.Deadlock {
			t.Fatalf("%v, deadlock %v", err, sim.Deadlock)
		}
		off := apart(sim.Theta, got.Theta)
		worst = max(worst, off)
		if sim.Error > 0 {
			z := (sim.Theta - got.Theta) / sim.Error * 1.96
			squares += z * z
		}
		if off > 0.005 {
			t.Errorf("%+v\nB %v: chain %.6g, simulation %.6g ± %.2g", *c, b, got.Theta, sim.Theta, sim.Error)
		}
		for i := range b {
			if math.Abs(got.Batch[i]-sim.Batch[i]) > 0.02*got.Batch[i] || math.Abs(got.Busy[i]-sim.Busy[i]) > 0.02 ||
				math.Abs(got.Wait[i]-sim.Wait[i]) > 0.05*got.Wait[i]+0.05 {
				t.Errorf("%+v\nB %v, model %d: chain %v %v %v, simulation %v %v %v", *c, b, i,
					got.Batch, got.Busy, got.Wait, sim.Batch, sim.Busy, sim.Wait)
			}
		}
	}
	t.Logf("worst error %.3f %%, mean square of the error in standard errors %.2f", 100*worst, squares/float64(settings))
}

// TestPaperSection3_4Feasibility drives settings on both sides of the bound: with
// full routing every infeasible one deadlocks and no feasible one does, in the
// chain and in the simulation.
func TestPaperSection3_4Feasibility(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, m := range []int{2, 3} {
		for n := 1; n <= 6-m; n++ {
			c := &Case{N: n, P: make([][]float64, m), T: make([][]int, m)}
			for i := range m {
				c.T[i] = []int{1 + rng.IntN(5)}
				for range m {
					c.P[i] = append(c.P[i], 1/float64(m))
				}
			}
			b := slices.Repeat([]int{1}, m)
			for b[m-1] <= n+1 {
				checkFeasible(t, c, b)
				for i := 0; ; i++ {
					if b[i]++; b[i] <= n+1 || i == m-1 {
						break
					}
					b[i] = 1
				}
			}
		}
	}
}

func checkFeasible(t *testing.T, c *Case, b []int) {
	t.Helper()
	want := Feasible(b, c.N)
	got := mustEvaluate(t, c, b)
	if got.Feasible != want || got.Deadlock == want || (got.Theta > 0) != want {
		t.Errorf("N %d, B %v: chain %+v, feasible %v", c.N, b, got, want)
	}
	h, err := newChain(t.Context(), c, fixed{b}, newRouter(c), MaxStates)
	if err != nil || h.deadlock == want {
		t.Errorf("N %d, B %v: chain's deadlock %v, %v, feasible %v", c.N, b, h.deadlock, err, want)
	}
	sim, err := Simulate(t.Context(), c, b, SimOptions{Steps: 20_000, Seed: 1})
	if err != nil || sim.Deadlock == want {
		t.Errorf("N %d, B %v: simulation %+v, %v, feasible %v", c.N, b, sim, err, want)
	}
	if clamped := Clamp(b, c.N); !Feasible(clamped, c.N) || want && !slices.Equal(clamped, b) {
		t.Errorf("N %d: clamp %v to %v", c.N, b, clamped)
	}
}

// A hold timer ends every wait of its model.
func TestHoldTimerRemovesDeadlock(t *testing.T) {
	c := &Case{N: 3, P: [][]float64{{.5, .5}, {.5, .5}}, T: [][]int{{2}, {5}}, Hold: []int{0, 4}}
	for _, tc := range []struct {
		b    []int
		want bool
	}{{[]int{1, 9}, true}, {[]int{3, 9}, true}, {[]int{4, 1}, false}} {
		checkOne := mustEvaluate(t, c, tc.b)
		if checkOne.Feasible != tc.want || checkOne.Deadlock == tc.want {
			t.Errorf("B %v: %+v, want feasible %v", tc.b, checkOne, tc.want)
		}
	}
}

// Routing without chance in it can lead to several closed classes, or to none
// that is left to chance; requests can also stay on one model for ever.
func TestDegenerateRouting(t *testing.T) {
	tests := []struct {
		name string
		c    Case
		b    []int
		want float64
	}{
		{"ping-pong", Case{N: 1, P: [][]float64{{0, 1}, {1, 0}}, T: [][]int{{2}, {3}}}, []int{1, 1}, 2. / 5},
		{"all stay", Case{N: 4, P: [][]float64{{1, 0}, {1, 0}}, T: [][]int{{2}, {3}}}, []int{1, 1}, 2},
		{"all end at the second", Case{N: 4, P: [][]float64{{.5, .5}, {0, 1}}, T: [][]int{{2}, {4}}}, []int{1, 1}, 1},
		{"one ends at either", Case{N: 1, P: [][]float64{{0, .25, .75}, {0, 1, 0}, {0, 0, 1}}, T: [][]int{{1}, {2}, {4}}}, []int{1, 1, 1}, .25/2 + .75/4},
		{"infeasible, but never in a deadlock", Case{N: 2, P: [][]float64{{0, 1}, {1, 0}}, T: [][]int{{2}, {3}}}, []int{2, 2}, 0},
		{"one model", Case{N: 3, P: [][]float64{{1}}, T: [][]int{{4}}}, []int{2}, .75},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := mustEvaluate(t, &tc.c, tc.b)
			if got.Deadlock || math.Abs(got.Theta-tc.want) > 1e-9 {
				t.Errorf("%.12g, deadlock %v, want %.12g", got.Theta, got.Deadlock, tc.want)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	good := func() *Case {
		return &Case{N: 2, P: [][]float64{{.5, .5}, {1, 0}}, T: [][]int{{2}, {5}}}
	}
	nan := math.NaN()
	for name, change := range map[string]func(*Case){
		"no requests":       func(c *Case) { c.N = 0 },
		"many requests":     func(c *Case) { c.N = MaxRequests + 1 },
		"no models":         func(c *Case) { c.P = nil },
		"row too short":     func(c *Case) { c.P[0] = c.P[0][:1] },
		"negative":          func(c *Case) { c.P[0] = []float64{1.5, -.5} },
		"nan":               func(c *Case) { c.P[0][0] = nan },
		"sum":               func(c *Case) { c.P[0][0] = .6 },
		"times":             func(c *Case) { c.T = c.T[:1] },
		"no time":           func(c *Case) { c.T[0] = nil },
		"zero time":         func(c *Case) { c.T[0][0] = 0 },
		"batch times":       func(c *Case) { c.T[0] = []int{1, 2, 3} },
		"commit":            func(c *Case) { c.Commit = [][]float64{{1, nan}, {1, 1}} },
		"bmax":              func(c *Case) { c.BMax = []int{1} },
		"negative bmax":     func(c *Case) { c.BMax = []int{1, -1} },
		"negative hold":     func(c *Case) { c.Hold = []int{-1, 0} },
		"jitter":            func(c *Case) { c.SlowJitter = 5 },
		"negative jitter":   func(c *Case) { c.SlowJitter = -1 },
		"wide jitter":       func(c *Case) { c.T[1][0], c.SlowJitter = MaxTicks, MaxJitter+1 },
		"speed of one":      func(c *Case) { c.Speed = [][]float64{{1, 1, 1, 1}} },
		"speed of one mask": func(c *Case) { c.Speed = [][]float64{{1}, {1}} },
		"no speed":          func(c *Case) { c.Speed = [][]float64{{1, 1, 1, 0}, {1, 1, 1, 1}} },
		"extra":             func(c *Case) { c.Extra = [][]float64{{1}, {0}} },
	} {
		c := good()
		change(c)
		if err := c.Validate(); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := good().Validate(); err != nil {
		t.Error(err)
	}
	for _, b := range [][]int{{1}, {0, 1}, {1, MaxThreshold + 1}} {
		if _, err := Evaluate(t.Context(), good(), b); !errors.Is(err, ErrInvalid) {
			t.Errorf("B %v: %v", b, err)
		}
	}
}

// A case whose states cannot be held is refused with their number.
func TestTooLarge(t *testing.T) {
	third := []float64{1. / 3, 1. / 3, 1. / 3}
	big := &Case{N: 200, P: [][]float64{third, third, third}, T: [][]int{{101}, {1009}, {10007}}}
	_, err := Evaluate(t.Context(), big, []int{1, 1, 1})
	if !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	two := &Case{N: 2000, P: [][]float64{{.5, .5}, {1, 0}}, T: [][]int{{101}, {1009}}}
	if _, err = Evaluate(t.Context(), two, []int{1, 1}); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
	t.Log(fmt.Sprint(err))
}
