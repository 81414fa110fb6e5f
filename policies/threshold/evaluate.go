package threshold

import (
	"context"
	"errors"
	"slices"
)

// Result is what one setting of the thresholds does in the long run.
type Result struct {
	B []int
	// Theta is the throughput in tokens per tick; 0 of an infeasible setting.
	Theta float64
	// Feasible says that the setting cannot deadlock (Case.Feasible).
	Feasible bool
	// Deadlock says that a deadlock was reached, by a path of positive probability.
	Deadlock bool
	// By model: mean batch of a step, share of time busy, and mean ticks that a
	// request waits before its step.
	Batch, Busy, Wait []float64
	// States is the size of the chain that was solved.
	States int
	Method Method
}

// Method is how a result was computed.
type Method string

// deadlockSteps is how long a simulation looks for a deadlock.
const deadlockSteps = 20_000

// The methods.
const (
	ByChain      Method = "chain"
	ByCompressed Method = "compressed"
)

// Evaluate computes what thresholds b do, exactly. An infeasible setting is not
// an error: the result says so, and whether the deadlock was met.
func Evaluate(ctx context.Context, c *Case, b []int) (*Result, error) {
	e, err := newEvaluator(c)
	if err != nil {
		return nil, err
	}
	return e.evaluate(ctx, b)
}

// Approximate is Evaluate in bounded time: a case whose chain would be large, or whose
// chain's law is not found, is simulated.
func Approximate(ctx context.Context, c *Case, b []int) (*Result, error) {
	e, err := newEvaluator(c)
	if err != nil {
		return nil, err
	}
	e.maxStates = searchStates
	r, err := e.evaluate(ctx, b)
	if err == nil || errors.Is(err, ErrInvalid) || ctx.Err() != nil {
		return r, err
	}
	return e.simulate(ctx, b, approximateSteps)
}

// simulate stands in for the chain. One seed for all settings makes them comparable.
func (e *evaluator) simulate(ctx context.Context, b []int, steps int) (*Result, error) {
	sim, err := Simulate(ctx, e.c, b, SimOptions{Steps: steps, Seed: 1})
	if err != nil {
		return nil, err
	}
	return &Result{B: slices.Clone(b), Feasible: true, Theta: sim.Theta, Batch: sim.Batch, Busy: sim.Busy, Wait: sim.Wait, Method: BySimulation}, nil
}

// evaluator evaluates settings of one case and keeps what they share.
type evaluator struct {
	c     *Case
	route *router
	pair  *pair // of the compressed solver, nil where it does not apply
	count int   // settings evaluated
	// maxStates bounds the chain.
	maxStates int
}

func newEvaluator(c *Case) (*evaluator, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return &evaluator{c: c, route: newRouter(c), pair: newPair(c), maxStates: MaxStates}, nil
}

func (e *evaluator) evaluate(ctx context.Context, b []int) (*Result, error) {
	if err := e.c.checkSetting(b); err != nil {
		return nil, err
	}
	e.count++
	if !e.c.Feasible(b) {
		return e.infeasible(ctx, b)
	}
	if e.pair != nil {
		return e.pair.evaluate(ctx, b)
	}
	r, err := e.byRule(ctx, fixed{b})
	if err != nil {
		return nil, err
	}
	r.B = slices.Clone(b)
	return r, nil
}

// infeasible looks for the deadlock of an infeasible setting: where chance leads
// first, and then in every state, for routing with too little chance in it.
func (e *evaluator) infeasible(ctx context.Context, b []int) (*Result, error) {
	out := &Result{B: slices.Clone(b), Method: BySimulation}
	sim, err := Simulate(ctx, e.c, b, SimOptions{Steps: deadlockSteps, Seed: 1})
	if err != nil {
		return nil, err
	}
	if out.Deadlock = sim.Deadlock; out.Deadlock {
		return out, nil
	}
	h, err := newChain(ctx, e.c, fixed{b}, e.route, e.maxStates)
	if err != nil {
		return nil, err
	}
	out.Deadlock, out.States, out.Method = h.deadlock, h.len(), ByChain
	return out, nil
}

// byRule evaluates a start rule by the chain.
func (e *evaluator) byRule(ctx context.Context, start rule) (*Result, error) {
	h, err := newChain(ctx, e.c, start, e.route, e.maxStates)
	if err != nil {
		return nil, err
	}
	if h.deadlock {
		return &Result{Deadlock: true, States: h.len(), Method: ByChain}, nil
	}
	pi, err := h.law(ctx)
	if err != nil {
		return nil, err
	}
	r := h.result(pi)
	r.Feasible, r.Method = true, ByChain
	return r, nil
}
