package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/floor"
	"github.com/tokenrouter/tokenrouter/internal/sim"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// maxRepeat bounds --repeat.
const maxRepeat = 100

type sweepCmd struct {
	Simulate bool `help:"Do not run models: play the real scheduler in virtual time, with the step times of --step or of the cases in --file."`
	nodeFlags
	N          []int           `short:"n" name:"n" default:"1,2,4,8" placeholder:"N" help:"Requests in flight."`
	Thresholds []int           `placeholder:"B" help:"Thresholds of the last model (1 to n, at most 16 of them)."`
	Rules      []schedule.Rule `name:"schedules" placeholder:"RULE" help:"Schedules (delayed)."`
	Tokens     int             `default:"300" help:"Tokens of an answer."`
	Duration   time.Duration   `default:"3s" help:"Time of a measurement, after a third of it to warm up."`
	Repeat     int             `default:"1" placeholder:"R" help:"Measure every setting so often, in turns, and take the median."`

	File     string    `short:"f" env:"TRCTL_SWEEP_FILE" placeholder:"FILE" help:"With --simulate: cases as for trctl solve; - is standard input. They replace -n, --p and --step."`
	P        float64   `default:"0.35" help:"With --simulate: share of the small model's steps after which the large one writes a token."`
	Step     []float64 `default:"6,27.9" placeholder:"MS" help:"With --simulate: time of a step of the small and of the large model in milliseconds."`
	Requests int       `default:"0" placeholder:"N" help:"With --simulate: requests of a point (40 for each in flight, at least 200)."`
	Output   string    `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}; json is one line a point."`
}

// sweepPoint is one setting and what it made.
type sweepPoint struct {
	Case      string  `json:"case,omitempty"`
	N         int     `json:"n"`
	Schedule  string  `json:"schedule"`
	B         []int   `json:"b,omitempty"`
	PerSecond float64 `json:"tokens_per_s"`
	// Runs are the repeats that PerSecond is the median of.
	Runs []float64 `json:"runs,omitempty"`
	// Predicted is what was to be expected: of a simulation by the solver, of a
	// measurement by a simulation with what was measured. Solver is the solver's number
	// for a measurement.
	Predicted *float64 `json:"predicted_tokens_per_s,omitempty"`
	Solver    *float64 `json:"solver_tokens_per_s,omitempty"`
	// Floor is the most that the run's requests and hand-offs could have made with
	// the models' bare steps, Efficiency what was made of it.
	Floor      *float64  `json:"floor_tokens_per_s,omitempty"`
	Efficiency *float64  `json:"routed_efficiency,omitempty"`
	Batch      []float64 `json:"mean_batch"`
	Busy       []float64 `json:"busy,omitempty"`

	rule  schedule.Rule
	trace floor.Trace
	group *engine.Group // what the run has measured
}

// Run measures or simulates every point and compares with the model of delayed
// batching.
func (c *sweepCmd) Run(ctx context.Context, p process) error {
	if err := c.check(); err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	if len(c.Rules) == 0 {
		c.Rules = []schedule.Rule{schedule.Delayed}
	}
	if c.Simulate {
		return c.simulateAll(ctx, p)
	}
	return c.measureAll(ctx, p)
}

func (c *sweepCmd) check() error {
	switch {
	case c.Tokens < 1 || c.Tokens > sim.MaxTokens/2:
		return usagef("--tokens is %d, want 1 to %d", c.Tokens, sim.MaxTokens/2)
	case c.Requests < 0 || c.Requests > sim.MaxRequests:
		return usagef("--requests is %d, want at most %d", c.Requests, sim.MaxRequests)
	case c.Repeat < 1 || c.Repeat > maxRepeat:
		return usagef("--repeat is %d, want 1 to %d", c.Repeat, maxRepeat)
	case c.Duration < 100*time.Millisecond:
		return usagef("--duration is %s, want at least 100ms", c.Duration)
	case !(c.P >= 0 && c.P <= 1):
		return usagef("--p is %g, want 0 to 1", c.P)
	case len(c.Step) != 2:
		return usagef("--step has %d times, want 2: the small and the large model's; --file takes more models", len(c.Step))
	case !c.Simulate && c.File != "":
		return usagef("--file needs --simulate")
	}
	for _, n := range c.N {
		if n < 1 || n > sim.MaxConcurrency {
			return usagef("-n is %d, want 1 to %d", n, sim.MaxConcurrency)
		}
	}
	return nil
}

// settings are the thresholds to try with n requests under a rule: all models but
// the last start at once. A rule without thresholds has one setting, nil. Adaptive
// beside others has the floor of 1 alone.
func (c *sweepCmd) settings(rule schedule.Rule, n, models int) [][]int {
	if rule == schedule.Adaptive && len(c.Rules) > 1 {
		return [][]int{slices.Repeat([]int{1}, models)}
	}
	if rule != schedule.Delayed && rule != schedule.Adaptive || models < 2 {
		return [][]int{nil}
	}
	list := c.Thresholds
	if len(list) == 0 {
		const most = 16
		for k := range min(n, most) {
			list = append(list, 1+k*n/min(n, most))
		}
	}
	var out [][]int
	for _, b := range list {
		if b < 1 || b > n {
			continue // it would be lowered to n
		}
		set := slices.Repeat([]int{1}, models)
		set[models-1] = b
		out = append(out, set)
	}
	return out
}

// cases are those of the file, or those that the flags mean.
func (c *sweepCmd) cases(p process) ([]*threshold.Input, error) {
	if c.File != "" {
		return (&solveCmd{File: c.File}).inputs(p)
	}
	var list []*threshold.Input
	for _, n := range c.N {
		in := &threshold.Input{
			N: n, P: [][]float64{{1 - c.P, c.P}, {1, 0}}, Commit: [][]float64{{1, 0}, {1, 0}},
			T: [][]float64{{c.Step[0]}, {c.Step[1]}}, Exact: true,
		}
		if _, err := in.System(); err != nil {
			return nil, &usageError{err}
		}
		list = append(list, in)
	}
	return list, nil
}

func (c *sweepCmd) simulateAll(ctx context.Context, p process) error {
	cases, err := c.cases(p)
	if err != nil {
		return err
	}
	out := &sweepOutput{p: p, json: c.Output == "json"}
	for _, in := range cases {
		for _, rule := range c.Rules {
			for _, b := range c.settings(rule, in.N, len(in.P)) {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				point, err := c.simulate(ctx, in, rule, b)
				if err != nil {
					return err
				}
				if err := out.add(point); err != nil {
					return err
				}
			}
		}
	}
	return out.end()
}

// simulate plays one setting of a case.
func (c *sweepCmd) simulate(ctx context.Context, in *threshold.Input, rule schedule.Rule, b []int) (*sweepPoint, error) {
	requests := c.Requests
	if requests == 0 {
		requests = max(200, 40*in.N)
	}
	cfg := sim.Config{
		P: in.P, Commit: in.Commit, Schedule: rule, Visits: true, Requests: sim.Closed(requests, 1, c.Tokens), Concurrency: in.N, Seed: 1,
	}
	for i := range in.T {
		m := sim.Model{Name: fmt.Sprint("model ", i), LongestWait: 24 * time.Hour}
		for _, ms := range in.T[i] {
			m.Step = append(m.Step, time.Duration(ms*float64(time.Millisecond)))
		}
		if in.Speed != nil {
			m.Slowed = 1 / in.Speed[i][len(in.Speed[i])-1]
		}
		if i < len(in.Hold) && in.Hold[i] > 0 {
			m.LongestWait = time.Duration(in.Hold[i] * float64(time.Millisecond))
		}
		if i < len(in.BMax) {
			m.MaxRows = in.BMax[i]
		}
		if b != nil {
			m.Threshold = b[i]
		}
		cfg.Models = append(cfg.Models, m)
	}
	r, err := sim.Run(cfg)
	if err != nil {
		return nil, fmt.Errorf("simulate n %d, %s %v: %w", in.N, rule, b, err)
	}
	point := &sweepPoint{Case: in.ID, N: in.N, Schedule: rule.String(), rule: rule, B: b, PerSecond: r.Throughput()}
	var trace floor.Trace
	for _, visits := range r.Visits {
		list := make([]floor.Visit, len(visits))
		for i, v := range visits {
			list[i] = floor.Visit{Model: uint8(v.Model), Kept: v.Kept}
		}
		trace.Requests = append(trace.Requests, list)
	}
	var bare floor.Models
	for i := range cfg.Models {
		m := &cfg.Models[i]
		bare.Slowed = append(bare.Slowed, max(1, m.Slowed))
		var steps []float64
		for _, d := range m.Step {
			steps = append(steps, d.Seconds())
		}
		bare.Step = append(bare.Step, steps)
	}
	if err := point.setFloor(&trace, &bare); err != nil {
		return nil, err
	}
	for i := range r.Models {
		point.Batch = append(point.Batch, r.Models[i].MeanBatch())
		point.Busy = append(point.Busy, r.Models[i].Busy.Seconds()/r.Elapsed.Seconds())
	}
	point.Predicted, err = solverSays(ctx, in, rule, b)
	return point, err
}

// setFloor compares with the least time that the same could have taken.
func (s *sweepPoint) setFloor(t *floor.Trace, m *floor.Models) error {
	v, err := floor.Throughput(t, m, s.N)
	if err != nil {
		return err
	}
	efficiency := s.PerSecond / v
	s.Floor, s.Efficiency = &v, &efficiency
	return nil
}

// solverSays is what the model of delayed batching says, nil where it says nothing.
func solverSays(ctx context.Context, in *threshold.Input, rule schedule.Rule, b []int) (*float64, error) {
	switch rule {
	case schedule.Eager:
		b = slices.Repeat([]int{1}, len(in.P))
	case schedule.Delayed:
	default:
		return nil, nil
	}
	v, err := engine.Predict(ctx, in, b)
	if err != nil {
		return nil, fmt.Errorf("predict n %d, %v: %w", in.N, b, err)
	}
	return &v, nil
}
