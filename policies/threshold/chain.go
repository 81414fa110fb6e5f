package threshold

import (
	"context"
	"fmt"
	"math"
)

// Bounds of the chain. A state costs about 100 bytes and a transition 12, so the
// largest chain takes some 300 MB.
const (
	MaxStates      = 400_000
	MaxTransitions = 12_000_000
)

// rarest is the probability below which an outcome of one event is left out. It
// moves the throughput by far less than the solver's own tolerance.
const rarest = 1e-15

// chain is the system from event to event. A state is what holds just after the
// starts of an event are decided, three numbers a model:
//
//	q  requests queued
//	x  requests in the running batch, 0 if idle
//	r  ticks of work left of the batch; of an idle model, of its hold timer (0: none runs)
//
// Invariant: Σ (q + x) = N. The time to the next event, who ends a step then and
// the tokens kept of it depend on the state alone; where the requests go and how
// long new steps take is chance, and gives the transitions.
type chain struct {
	c     *Case
	m     int
	rule  rule
	route *router

	states []int32 // 3m a state: all q, all x, all r
	index  stateIndex

	// Transitions by rows: those of state s are [rows[s], rows[s+1]).
	rows []int
	to   []int32
	prob []float64

	// What a state is worth: time to the next event, and by model the requests
	// whose step ends then.
	tau  []float64
	done []int32 // m a state

	// first are the states that the system can start in, with their probabilities.
	first     []int32
	firstProb []float64
	deadlock  bool

	laws [][]chance // laws[i*(N+1)+b], where it has been asked for: stepLaw(i, b)

	// Scratch of one expansion.
	next           []int32 // the state in the making
	base, ended    []int32
	start, expired []bool
	place          []int // place+1 of a target within the present row
	touched        []int32
	maxStates      int
}

// rule decides which idle models start. It sees the queues, batches and work
// left after an event, and which hold timers have run out, and sets start.
type rule interface {
	choose(q, x, r []int32, expired, start []bool)
}

// fixed is the rule of delayed batching: start from b requests on.
type fixed struct{ b []int }

func (f fixed) choose(q, x, _ []int32, expired, start []bool) {
	for i := range q {
		start[i] = x[i] == 0 && q[i] > 0 && (int(q[i]) >= f.b[i] || expired[i])
	}
}

// newChain finds every state that can be reached. It stops at a deadlock.
func newChain(ctx context.Context, c *Case, r rule, route *router, maxStates int) (*chain, error) {
	m := len(c.P)
	h := &chain{
		c: c, m: m, rule: r, route: route, maxStates: maxStates,
		next: make([]int32, 3*m), base: make([]int32, 3*m), ended: make([]int32, m), start: make([]bool, m), expired: make([]bool, m),
		laws: make([][]chance, m*(c.N+1)),
	}
	h.index.width = 3 * m
	h.next[0] = int32(c.N)
	if err := h.settle(1); err != nil {
		return nil, err
	}
	h.first, h.firstProb, h.to, h.prob = h.to, h.prob, nil, nil
	h.rows = []int{0}
	h.clearRow()
	for s := 0; s < h.len(); s++ {
		if s%256 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := h.expand(s); err != nil {
			return nil, err
		}
		if h.deadlock {
			return h, nil
		}
	}
	return h, nil
}

func (h *chain) len() int { return len(h.states) / (3 * h.m) }

func (h *chain) state(s int) (q, x, r []int32) {
	v := h.states[3*h.m*s:]
	return v[:h.m], v[h.m : 2*h.m], v[2*h.m : 3*h.m]
}

// mask is the set of busy models.
func mask(x []int32) int {
	set := 0
	for i, v := range x {
		if v > 0 {
			set |= 1 << i
		}
	}
	return set
}

// speed is the work per tick of model i; a hold timer runs in real time.
func (h *chain) speed(i, busy int) float64 {
	if h.c.Speed == nil || busy>>i&1 == 0 {
		return 1
	}
	return h.c.Speed[i][busy]
}

// holding is the time from a state to its next event, +Inf in a deadlock.
func (h *chain) holding(x, r []int32) float64 {
	busy, tau := mask(x), math.Inf(1)
	for i, v := range r {
		if v > 0 {
			tau = min(tau, float64(v)/h.speed(i, busy))
		}
	}
	return tau
}

// expand writes the row of state s.
func (h *chain) expand(s int) error {
	q, x, r := h.state(s)
	tau := h.holding(x, r)
	if math.IsInf(tau, 1) {
		h.deadlock = true
		return nil
	}
	h.tau = append(h.tau, tau)
	base, ended, busy := h.base, h.ended, mask(x)
	clear(base)
	clear(ended)
	for i := range h.m {
		base[i], base[h.m+i] = q[i], x[i]
		h.expired[i] = false
		if r[i] == 0 {
			continue
		}
		left := float64(r[i]) - tau*h.speed(i, busy)
		switch {
		case left > 1e-9*float64(r[i]):
			base[2*h.m+i] = int32(max(1, math.Round(left)))
		case x[i] > 0:
			ended[i], base[h.m+i] = x[i], 0
		default:
			h.expired[i] = true
		}
	}
	h.done = append(h.done, ended...)
	outcomes, err := h.route.outcomes(ended)
	if err != nil {
		return err
	}
	for _, o := range outcomes {
		copy(h.next, base)
		for i, v := range o.arrive {
			h.next[i] += v
		}
		if err := h.settle(o.p); err != nil {
			return err
		}
	}
	h.clearRow()
	h.rows = append(h.rows, len(h.to))
	if len(h.to) > MaxTransitions {
		return fmt.Errorf("%w: more than %d transitions after %d states", ErrTooLarge, MaxTransitions, h.len())
	}
	return nil
}

// settle applies the start rule to next and adds the states that come of it to
// the present row, with probability p in all.
func (h *chain) settle(p float64) error {
	q, x, r := h.next[:h.m], h.next[h.m:2*h.m], h.next[2*h.m:]
	for i := range h.start {
		h.start[i] = false
	}
	h.rule.choose(q, x, r, h.expired, h.start)
	for i := range h.m {
		switch {
		case h.start[i]:
			b := min(q[i], int32(h.c.limit(i)))
			q[i], x[i], r[i] = q[i]-b, b, 0
		case x[i] == 0 && q[i] == 0:
			r[i] = 0
		case x[i] == 0 && r[i] == 0:
			r[i] = int32(h.c.hold(i))
		}
	}
	return h.draw(0, p)
}

// draw gives every started model from i on the ticks of its step, one state for
// each way to do so.
func (h *chain) draw(i int, p float64) error {
	for i < h.m && !h.start[i] {
		i++
	}
	if i == h.m {
		return h.add(p)
	}
	law := &h.laws[i*(h.c.N+1)+int(h.next[h.m+i])]
	if *law == nil {
		*law = h.c.stepLaw(i, int(h.next[h.m+i]))
	}
	for _, o := range *law {
		h.next[2*h.m+i] = int32(o.ticks)
		if err := h.draw(i+1, p*o.p); err != nil {
			return err
		}
	}
	return nil
}

// add puts next into the present row.
func (h *chain) add(p float64) error {
	s, isNew := h.index.find(&h.states, h.next)
	if isNew {
		if h.len() > h.maxStates {
			return fmt.Errorf("%w: more than %d states", ErrTooLarge, h.maxStates)
		}
		h.place = append(h.place, 0)
	}
	if k := h.place[s]; k > 0 {
		h.prob[k-1] += p
		return nil
	}
	h.to, h.prob = append(h.to, int32(s)), append(h.prob, p)
	h.place[s] = len(h.to)
	h.touched = append(h.touched, int32(s))
	return nil
}

// clearRow forgets which states the present row has.
func (h *chain) clearRow() {
	for _, s := range h.touched {
		h.place[s] = 0
	}
	h.touched = h.touched[:0]
}

// result turns a stationary law into what the setting does.
func (h *chain) result(pi []float64) *Result {
	m := h.m
	out := &Result{Batch: make([]float64, m), Busy: make([]float64, m), Wait: make([]float64, m), States: h.len()}
	var elapsed, tokens float64
	steps, queued, served := make([]float64, m), make([]float64, m), make([]float64, m)
	for s, p := range pi {
		if p == 0 {
			continue
		}
		q, x, _ := h.state(s)
		t := p * h.tau[s]
		elapsed += t
		for i := range m {
			queued[i] += t * float64(q[i])
			if x[i] > 0 {
				out.Busy[i] += t
			}
			if n := h.done[s*m+i]; n > 0 {
				steps[i] += p
				served[i] += p * float64(n)
			}
		}
	}
	for i := range m {
		tokens += served[i] * h.c.kept(i)
		out.Busy[i] /= elapsed
		if served[i] > 0 {
			out.Batch[i] = served[i] / steps[i]
			out.Wait[i] = queued[i] / served[i] // Little: queue length over arrival rate
		}
	}
	out.Theta = tokens / elapsed
	return out
}
