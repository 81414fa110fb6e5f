package threshold

import (
	"context"
	"fmt"
	"slices"
)

// maxPairStates bounds the compressed solver; a state costs some 350 bytes while
// its law is sought.
const maxPairStates = 1_000_000

// maxPairSteps bounds T_L/T_S, and maxPairWork the multiplications of the matrix
// powers: some 10 s.
const (
	maxPairSteps = 100_000
	maxPairWork  = 50_000_000_000
)

// pair is the compressed solver: two models, the fast one (S) with a constant
// step time, the slow one (L) with a constant or random one that is never
// shorter, and neither batch bounds, hold timers nor shared speed.
//
// It watches only the moments when L starts. While L runs nothing returns to S,
// so S's population can only shrink, step by step as Bin(n, stay), and rests once
// it is below B_S: the law after k steps is a matrix power, computed once. A state
// is what S does at a start of L:
//
//	sync n         S starts at the same moment with n requests, or rests with n < B_S
//	phase (f,a,c)  S is f·grid ticks from the end of a step of a requests; c wait behind
//
// The batch of L is the rest, N − n or N − a − c. When L ends, z requests return.
// If enough wait for L it starts again, amid a step of S (phase) or not (sync).
// Else S steps until enough have left it, an absorbing chain whose law and mean
// length are computed once, and L starts at the end of a step of S: sync.
//
// Every state has a path to "all N in a step of S", so there is one closed class.
type pair struct {
	c          *Case
	fast, slow int
	n, grid    int
	ts         int         // ticks of a step of S
	law        []chance    // ticks of a step of L
	stay       [][]float64 // Bin(n, P_SS): of n requests of a step of S, those that stay
	back       [][]float64 // Bin(x, P_LS): of x requests of a step of L, those that return
}

// newPair returns nil where the compressed solver does not apply.
func newPair(c *Case) *pair {
	if len(c.P) != 2 || c.Speed != nil || c.hold(0) > 0 || c.hold(1) > 0 || c.limit(0) < c.N || c.limit(1) < c.N {
		return nil
	}
	s := &pair{c: c, slow: c.Slow(), n: c.N}
	s.fast = 1 - s.slow
	for i, row := range c.T {
		if slices.Min(row) != slices.Max(row) || c.Extra != nil && slices.Min(c.Extra[i]) != slices.Max(c.Extra[i]) {
			return nil
		}
	}
	if c.Extra != nil && c.Extra[s.fast][0] > 0 {
		return nil
	}
	s.ts, s.law = c.T[s.fast][0], c.stepLaw(s.slow, 1)
	leave, back := c.P[s.fast][s.slow], c.P[s.slow][s.fast]
	if s.law[0].ticks < s.ts || leave <= 0 || leave >= 1 || back <= 0 {
		return nil
	}
	s.grid = s.ts
	for _, o := range s.law {
		s.grid = gcd(s.grid, o.ticks)
	}
	s.stay, s.back = binomials(c.N, 1-leave), binomials(c.N, back)
	return s
}

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// evaluate solves one feasible setting.
func (s *pair) evaluate(ctx context.Context, b []int) (*Result, error) {
	e := &pairSetting{pair: s, bs: b[s.fast], bl: b[s.slow]}
	e.room = s.n - e.bl
	if size := e.count(); size > maxPairStates {
		return nil, fmt.Errorf("%w: %d states, at most %d; a coarser tick has fewer", ErrTooLarge, size, maxPairStates)
	}
	if e.longest() > maxPairSteps {
		return nil, fmt.Errorf("%w: %d steps of the fast model in one of the slow, at most %d", ErrTooLarge, e.longest(), maxPairSteps)
	}
	if work := e.longest() * (e.room + 1) * (e.room + 1) * (e.room + 1); work > maxPairWork {
		return nil, fmt.Errorf("%w: %d steps of the fast model in one of the slow, with up to %d requests", ErrTooLarge, e.longest(), e.room)
	}
	e.prepare()
	pi, err := stationary(ctx, uniform(e.count()), func(in, out []float64) { e.sweep(in, out, nil) })
	if err != nil {
		return nil, err
	}
	var t pairTally
	e.sweep(pi, make([]float64, len(pi)), &t)
	return e.result(b, &t), nil
}

// pairSetting is one setting of the thresholds being solved.
type pairSetting struct {
	*pair
	bs, bl int
	room   int   // most requests that S can have when L starts: N − B_L
	cells  []int // cells[a]+c numbers the pairs (a, c) of a phase
	layer  int   // how many such pairs a phase has

	least int    // fewest steps of S that end during one of L
	walks []walk // walks[k-least] is of k steps

	// Of S stepping alone from n > room until its population is at most room.
	settled  [][]float64 // law of the population then
	alone    []float64   // mean number of steps
	starving []float64   // mean of the sum of N − population over those steps

	// Scratch of a sweep.
	rest        []float64   // S idle, by population; settles at once
	over        [][]float64 // S in a step of a with z behind, L too few
	acc, walked []float64
}

// pairTally are means of one cycle, from a start of L to the next.
type pairTally struct {
	idle    float64 // ticks that L is idle
	running float64 // ticks of L's step
	batch   float64 // requests of L's step
	steps   float64 // steps of S
	queued  float64 // requests queued at L times ticks
}

func (e *pairSetting) phases() int { return e.ts/e.grid - 1 }

func (e *pairSetting) count() int {
	e.layer = 0
	e.cells = make([]int, max(0, e.room)+1)
	for a := e.bs; a <= e.room; a++ {
		e.cells[a] = e.layer
		e.layer += e.room - a + 1
	}
	return e.room + 1 + e.phases()*e.layer
}

// phase is the number of the state (f, a, 0), f from 1 on.
func (e *pairSetting) phase(f, a int) int { return e.room + 1 + (f-1)*e.layer + e.cells[a] }

// longest is how many steps of S can end during one of L.
func (e *pairSetting) longest() int { return e.law[len(e.law)-1].ticks / e.ts }

// prepare computes the matrices that all sweeps share.
func (e *pairSetting) prepare() {
	e.least = max(0, e.law[0].ticks-e.ts) / e.ts
	unit := make([][]float64, e.room+1)
	for n := range unit {
		unit[n] = make([]float64, n+1)
		unit[n][n] = 1
	}
	now := walk{power: unit, steps: make([]float64, e.room+1), area: make([]float64, e.room+1)}
	for k := 0; ; k++ {
		if k >= e.least {
			e.walks = append(e.walks, now)
		}
		if k == e.longest() {
			break
		}
		now = e.further(&now, unit)
	}
	e.settled, e.alone, e.starving = make([][]float64, e.n+1), make([]float64, e.n+1), make([]float64, e.n+1)
	for n := range e.settled {
		e.settle(n)
	}
	e.rest, e.acc, e.walked = make([]float64, e.n+1), make([]float64, e.room+1), make([]float64, e.room+1)
	e.over = make([][]float64, e.room+1)
	for a := range e.over {
		e.over[a] = make([]float64, e.n+1)
	}
}

// walk is what k steps of S do to a population n while nothing returns to it.
type walk struct {
	power [][]float64 // power[n]: law of the population afterwards
	steps []float64   // mean number of those steps that S runs at all
	area  []float64   // mean of the sum of the populations before each of them
}

// further is the walk of one step more: that step first, then the others.
func (e *pairSetting) further(w *walk, unit [][]float64) walk {
	out := walk{power: make([][]float64, e.room+1), steps: make([]float64, e.room+1), area: make([]float64, e.room+1)}
	for n := range out.power {
		out.area[n] = float64(n)
		if n < e.bs {
			out.power[n] = unit[n]
			out.area[n] += w.area[n]
			continue
		}
		out.steps[n] = 1
		out.power[n] = make([]float64, n+1)
		for m, p := range e.stay[n] {
			axpy(p, w.power[m], out.power[n])
			out.steps[n] += p * w.steps[m]
			out.area[n] += p * w.area[m]
		}
	}
	return out
}

// settle computes what comes of S alone with n requests.
func (e *pairSetting) settle(n int) {
	law := make([]float64, e.room+1)
	e.settled[n] = law
	if n <= e.room {
		law[n] = 1
		return
	}
	row := e.stay[n]
	e.alone[n], e.starving[n] = 1, float64(e.n-n)
	for m := range n {
		axpy(row[m], e.settled[m], law)
		e.alone[n] += row[m] * e.alone[m]
		e.starving[n] += row[m] * e.starving[m]
	}
	leave := 1 - row[n]
	for m := range law {
		law[m] /= leave
	}
	e.alone[n] /= leave
	e.starving[n] /= leave
}

// sweep carries a law of the states at one start of L to the next. With a tally
// it adds up what happens in between.
func (e *pairSetting) sweep(in, out []float64, t *pairTally) {
	clear(out)
	clear(e.rest)
	for _, row := range e.over {
		clear(row)
	}
	for n := 0; n <= e.room; n++ {
		if in[n] > 0 || in[n] < 0 { // a Krylov vector has both signs
			clear(e.acc[:n+1])
			e.acc[n] = in[n]
			e.run(n, 0, e.acc[:n+1], out, t)
		}
	}
	for f := 1; f <= e.phases(); f++ {
		for n := e.bs; n <= e.room; n++ {
			clear(e.acc[:n+1])
			for a := e.bs; a <= n; a++ {
				c := n - a
				if p := in[e.phase(f, a)+c]; p != 0 {
					axpy(p, e.stay[a], e.acc[c:n+1])
				}
			}
			e.run(n, f*e.grid, e.acc[:n+1], out, t)
		}
	}
	for a, row := range e.over {
		for z, p := range row {
			if p != 0 {
				axpy(p, e.stay[a], e.rest[z:])
			}
		}
	}
	for n, p := range e.rest {
		if p == 0 {
			continue
		}
		axpy(p, e.settled[n], out[:e.room+1])
		if t != nil {
			t.idle += p * e.alone[n] * float64(e.ts)
			t.steps += p * e.alone[n]
			t.queued += p * e.starving[n] * float64(e.ts)
		}
	}
}

// run follows one step of L of N − n requests. S has population law at the tick
// when it next may start, t0 after L's start; before that n requests.
func (e *pairSetting) run(n, t0 int, law, out []float64, t *pairTally) {
	x := e.n - n
	done := -1
	for _, o := range e.law {
		k, rem := (o.ticks-t0)/e.ts, (o.ticks-t0)%e.ts
		if k != done { // several times of L can see as many steps of S
			done = k
			clear(e.walked[:n+1])
			for m, p := range law {
				if p != 0 {
					axpy(p, e.walks[k-e.least].power[m], e.walked)
				}
			}
		}
		if t != nil {
			e.watch(t, o, n, t0, k, rem, law)
		}
		e.finish(x, rem, o.p, e.walked[:n+1], out, t)
	}
}

// finish ends a step of L of x requests: S has population law, and is rem ticks
// into a step if it is large enough to run; rem 0 is a tie.
func (e *pairSetting) finish(x, rem int, p float64, law, out []float64, t *pairTally) {
	back := e.back[x]
	for m, v := range law {
		if v == 0 {
			continue
		}
		v *= p
		if rem == 0 || m < e.bs {
			axpy(v, back, e.rest[m:])
			continue
		}
		left := e.ts - rem
		fits := min(x, e.room-m) // more returns leave L too few
		axpy(v, back[:fits+1], out[e.phase(left/e.grid, m):])
		for z := fits + 1; z <= x; z++ {
			e.over[m][z] += v * back[z]
			if t != nil {
				t.idle += v * back[z] * float64(left)
				t.steps += v * back[z]
				t.queued += v * back[z] * float64(left) * float64(e.n-m-z)
			}
		}
	}
}

// watch adds what happens during one step of L.
func (e *pairSetting) watch(t *pairTally, o chance, n, t0, k, rem int, law []float64) {
	w := &e.walks[k-e.least]
	var mass, steps, area float64
	for m, v := range law {
		mass += v
		steps += v * w.steps[m]
		area += v * w.area[m]
	}
	for m, v := range e.walked[:n+1] {
		area += v * float64(m) * float64(rem) / float64(e.ts)
	}
	if t0 > 0 {
		steps += mass
	}
	t.running += o.p * mass * float64(o.ticks)
	t.batch += o.p * mass * float64(e.n-n)
	t.steps += o.p * steps
	// Queued at L are those that left S since L started.
	t.queued += o.p * (mass*float64(n)*float64(o.ticks-t0) - area*float64(e.ts))
}

// result turns the means of a cycle into rates. Requests visit S and L in the
// ratio P_LS : P_SL, whatever the thresholds.
func (e *pairSetting) result(b []int, t *pairTally) *Result {
	cycle := t.running + t.idle
	rateL := t.batch / cycle
	rateS := rateL * e.c.P[e.slow][e.fast] / e.c.P[e.fast][e.slow]
	out := &Result{B: slices.Clone(b), Feasible: true, States: e.count(), Method: ByCompressed,
		Batch: make([]float64, 2), Busy: make([]float64, 2), Wait: make([]float64, 2)}
	out.Theta = rateL*e.c.kept(e.slow) + rateS*e.c.kept(e.fast)
	out.Batch[e.slow], out.Busy[e.slow] = t.batch, t.running/cycle
	out.Batch[e.fast], out.Busy[e.fast] = rateS*cycle/t.steps, t.steps/cycle*float64(e.ts)
	queuedL := t.queued / cycle
	inSteps := rateS*float64(e.ts) + t.batch*t.running/cycle
	out.Wait[e.slow] = queuedL / rateL
	out.Wait[e.fast] = max(0, float64(e.n)-queuedL-inSteps) / rateS
	return out
}
