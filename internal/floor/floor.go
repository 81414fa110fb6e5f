package floor

import (
	"errors"
	"fmt"
	"math"
)

// Bounds of a trace.
const (
	MaxModels   = 16
	MaxRequests = 1 << 20
	maxInFlight = 4096
)

// ErrTrace says that a trace or its models make no sense.
var ErrTrace = errors.New("floor: bad trace")

// Visit is one step of one request: the model that ran it and whether its token
// was kept.
type Visit struct {
	Model uint8
	Kept  bool
}

// Trace is what was recorded: the steps of every request in order, in order of
// arrival.
type Trace struct{ Requests [][]Visit }

// Models are the bare step times of every model in any unit, by batch size; a
// larger batch takes the last one. Slowed[i], if given, is by how much a step of i
// slows down while another model runs.
type Models struct {
	Step   [][]float64
	Slowed []float64
}

// FromProvenance returns the visits of an answer from the models that wrote its
// tokens. drops says that the entry model spends a step on a token that is dropped
// when it hands over (r2r, citer, random, r-stitch), stays that another model may
// write several tokens in one visit (r-stitch). Without it the turn returns after
// each.
func FromProvenance(models []uint8, drops, stays bool) []Visit {
	list := make([]Visit, 0, len(models))
	for i, m := range models {
		if drops && m != 0 && (i == 0 || models[i-1] == 0 || !stays) {
			list = append(list, Visit{Model: 0})
		}
		list = append(list, Visit{Model: m, Kept: true})
	}
	return list
}

// Throughput returns the most tokens in a unit of time that n requests in flight
// could have made: the best over the fewest waiting requests that start a step of
// the slowest model.
func Throughput(t *Trace, m *Models, n int) (float64, error) {
	if err := check(t, m, n); err != nil {
		return 0, err
	}
	slow := 0
	for i, steps := range m.Step {
		if steps[0] > m.Step[slow][0] {
			slow = i
		}
	}
	best := 0.0
	for least := 1; least <= n; least++ {
		r := run{t: t, m: m, least: least, slow: slow, queue: make([][]*request, len(m.Step)), now: make([]step, len(m.Step))}
		if v := r.throughput(n); v > best {
			best = v
		}
		if least >= 16 {
			least += least / 4 // the surface is flat there
		}
	}
	return best, nil
}

func check(t *Trace, m *Models, n int) error {
	switch {
	case n < 1 || n > maxInFlight:
		return fmt.Errorf("%w: %d requests in flight", ErrTrace, n)
	case len(m.Step) < 1 || len(m.Step) > MaxModels || m.Slowed != nil && len(m.Slowed) != len(m.Step):
		return fmt.Errorf("%w: %d models", ErrTrace, len(m.Step))
	case len(t.Requests) < 1 || len(t.Requests) > MaxRequests:
		return fmt.Errorf("%w: %d requests", ErrTrace, len(t.Requests))
	}
	for i, steps := range m.Step {
		if len(steps) == 0 {
			return fmt.Errorf("%w: model %d has no step times", ErrTrace, i)
		}
		for _, d := range steps {
			if !(d > 0) || math.IsInf(d, 1) {
				return fmt.Errorf("%w: model %d has a step of %g", ErrTrace, i, d)
			}
		}
		if m.Slowed != nil && !(m.Slowed[i] >= 1) {
			return fmt.Errorf("%w: model %d is slowed by %g", ErrTrace, i, m.Slowed[i])
		}
	}
	for i, visits := range t.Requests {
		if len(visits) == 0 {
			return fmt.Errorf("%w: request %d has no steps", ErrTrace, i)
		}
		for _, v := range visits {
			if int(v.Model) >= len(m.Step) {
				return fmt.Errorf("%w: request %d runs on model %d", ErrTrace, i, v.Model)
			}
		}
	}
	return nil
}

// request is one in flight, at a visit.
type request struct {
	visits []Visit
	at     int
}

// step is a model's running step: what is left of it, and who is in it.
type step struct {
	left float64
	rows []*request
}

// run is one simulation.
type run struct {
	t     *Trace
	m     *Models
	least int // requests that start a step of the slow model
	slow  int
	queue [][]*request
	now   []step

	next, tokens int
	time         float64
}

// arrive lets the next request of the trace wait for its first model.
func (r *run) arrive() {
	if r.next < len(r.t.Requests) {
		q := &request{visits: r.t.Requests[r.next]}
		r.next++
		r.queue[q.visits[0].Model] = append(r.queue[q.visits[0].Model], q)
	}
}

// throughput plays the trace. The end, with fewer requests in flight, does not
// count if there was a time before it.
func (r *run) throughput(n int) float64 {
	for range n {
		r.arrive()
	}
	var full, fullTokens float64
	for {
		r.start()
		if !r.advance() {
			break
		}
		if r.next < len(r.t.Requests) {
			full, fullTokens = r.time, float64(r.tokens)
		}
	}
	if full > 0 {
		return fullTokens / full
	}
	return float64(r.tokens) / r.time
}

// start starts idle models; if none would run, the one with the longest queue.
func (r *run) start() {
	longest, busy := -1, false
	for i := range r.now {
		need := 1
		if i == r.slow {
			need = r.least
		}
		if len(r.now[i].rows) == 0 && len(r.queue[i]) >= need {
			r.begin(i)
		}
		busy = busy || len(r.now[i].rows) > 0
		if len(r.queue[i]) > 0 && (longest < 0 || len(r.queue[i]) > len(r.queue[longest])) {
			longest = i
		}
	}
	if !busy && longest >= 0 {
		r.begin(longest)
	}
}

func (r *run) begin(i int) {
	rows := r.queue[i]
	r.queue[i] = nil
	steps := r.m.Step[i]
	r.now[i] = step{steps[min(len(rows), len(steps))-1], rows}
}

// speed is how fast model i works now.
func (r *run) speed(i int) float64 {
	if r.m.Slowed == nil {
		return 1
	}
	for k := range r.now {
		if k != i && len(r.now[k].rows) > 0 {
			return 1 / r.m.Slowed[i]
		}
	}
	return 1
}

// advance goes to the end of the next step; false if none runs.
func (r *run) advance() bool {
	wait := math.Inf(1)
	for i := range r.now {
		if len(r.now[i].rows) > 0 {
			wait = min(wait, r.now[i].left/r.speed(i))
		}
	}
	if math.IsInf(wait, 1) {
		return false
	}
	speeds := make([]float64, len(r.now))
	for i := range r.now {
		speeds[i] = r.speed(i)
	}
	r.time += wait
	for i := range r.now {
		if len(r.now[i].rows) == 0 {
			continue
		}
		if r.now[i].left -= wait * speeds[i]; r.now[i].left > wait*1e-12 {
			continue
		}
		rows := r.now[i].rows
		r.now[i] = step{}
		for _, q := range rows {
			r.leave(q)
		}
	}
	return true
}

// leave sends a request on to its next step, or lets another one arrive.
func (r *run) leave(q *request) {
	if q.visits[q.at].Kept {
		r.tokens++
	}
	if q.at++; q.at == len(q.visits) {
		r.arrive()
		return
	}
	m := q.visits[q.at].Model
	r.queue[m] = append(r.queue[m], q)
}
