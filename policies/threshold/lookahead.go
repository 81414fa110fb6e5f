package threshold

import (
	"cmp"
	"context"
	"slices"
)

// DefaultLookAhead is the caution that did best over many systems.
const DefaultLookAhead = 1.25

// LookAhead is the adaptive start rule. Model i holds its q ready requests while
// waiting for a running step is worth it: the requests expected to come from the
// steps that end within d ticks save more by sharing i's step than the q lose by
// waiting d. It needs no solving, and with the rule that an idle system starts
// its longest queue it cannot deadlock.
type LookAhead struct {
	// Caution is c: how much the gain must exceed the loss.
	Caution float64
	// P is the routing, as in Case.
	P [][]float64
	// Floor[i] is the fewest requests that may start a step of i at all; nil: 1.
	Floor []int
}

// Running is a step that runs now.
type Running struct {
	Model int
	Batch int
	// Due is the time until it ends, in the unit of Holds' step; at least 0.
	Due float64
}

// Holds says whether idle model i should keep its q ready requests waiting,
// given the time of a step with them and what else runs. Models with shorter
// steps decide first, and what they start counts as running for the others.
func (l *LookAhead) Holds(i, q int, step float64, running []Running) bool {
	if l.Floor != nil && q < l.Floor[i] {
		return true
	}
	for _, j := range running {
		d := j.Due
		var expected float64
		for _, k := range running {
			if k.Due <= d {
				expected += float64(k.Batch) * l.P[k.Model][i]
			}
		}
		if expected*(step-d) > l.Caution*float64(q)*d {
			return true
		}
	}
	return false
}

// EvaluateLookAhead computes exactly what the rule does in a case.
func EvaluateLookAhead(ctx context.Context, c *Case, l *LookAhead) (*Result, error) {
	e, err := newEvaluator(c)
	if err != nil {
		return nil, err
	}
	if l.Floor != nil {
		if err := c.checkSetting(l.Floor); err != nil {
			return nil, err
		}
	}
	if err := square("look-ahead p", l.P, len(c.P), 1); err != nil {
		return nil, err
	}
	order := make([]int, len(c.P))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(c.T[a][0], c.T[b][0]) })
	return e.byRule(ctx, &looking{c: c, l: l, order: order})
}

// looking is LookAhead as a rule of the chain.
type looking struct {
	c       *Case
	l       *LookAhead
	order   []int // models, shortest step first
	running []Running
}

func (r *looking) choose(q, x, left []int32, expired, start []bool) {
	r.running = r.running[:0]
	for i, n := range x {
		if n > 0 {
			r.running = append(r.running, Running{i, int(n), float64(left[i])})
		}
	}
	longest := -1
	for _, i := range r.order {
		if x[i] > 0 || q[i] == 0 {
			continue
		}
		if longest < 0 || q[i] > q[longest] {
			longest = i
		}
		batch := min(int(q[i]), r.c.limit(i))
		step := r.c.meanStep(i, batch)
		if expired[i] || !r.l.Holds(i, int(q[i]), step, r.running) {
			start[i] = true
			r.running = append(r.running, Running{i, batch, step})
		}
	}
	if len(r.running) == 0 && longest >= 0 {
		start[longest] = true
	}
}
