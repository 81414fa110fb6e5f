package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// simulatedSteps is the length of --simulate, in steps of all models.
const simulatedSteps = 1_000_000

type solveCmd struct {
	File     string  `short:"f" required:"" env:"TRCTL_SOLVE_FILE" placeholder:"FILE" help:"Cases in JSON, one or one a line; - is standard input. docs/scheduling.md has the fields."`
	All      bool    `help:"Also print every setting that was evaluated."`
	Table    bool    `help:"Also print the best thresholds for every number of live requests up to n."`
	Simulate bool    `help:"Also simulate the best setting, as a second opinion."`
	Check    bool    `help:"Compare with the expected values in the case (best, theta, evals, deadlock, look_theta, dynamic); exit with 4 when one does not hold."`
	Exact    bool    `help:"No default jitter, for cases that do not say so themselves."`
	Tick     float64 `placeholder:"MS" help:"Unit of all rounding in milliseconds, for cases without their own."`
	Plot     string  `placeholder:"FILE" help:"Write an SVG of throughput against the slow model's threshold, one line a case."`
	Output   string  `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}; json is one line a case."`
}

// solveReport is what is printed of one case. Times are in milliseconds and
// theta is in tokens per millisecond.
type solveReport struct {
	ID         string    `json:"id,omitempty"`
	N          int       `json:"n"`
	Best       []int     `json:"best,omitempty"`
	Theta      *float64  `json:"theta,omitempty"`
	PerSecond  *float64  `json:"tokens_per_s,omitempty"`
	Gap        *float64  `json:"gap,omitempty"`
	Batch      []float64 `json:"batch,omitempty"`
	Busy       []float64 `json:"busy,omitempty"`
	Wait       []float64 `json:"wait,omitempty"`
	Search     string    `json:"search,omitempty"`
	Evaluated  int       `json:"evaluated,omitempty"`
	Method     string    `json:"method,omitempty"`
	States     int       `json:"states,omitempty"`
	Tick       float64   `json:"tick"`
	SlowJitter float64   `json:"slow_jitter"`
	LookTheta  *float64  `json:"look_theta,omitempty"`

	Simulated *simReport    `json:"simulated,omitempty"`
	All       []solvedPoint `json:"all,omitempty"`
	Table     []tableLine   `json:"table,omitempty"`
}

// solvedPoint is one setting of the thresholds.
type solvedPoint struct {
	B        []int   `json:"b"`
	Theta    float64 `json:"theta"`
	Feasible bool    `json:"feasible"`
	Deadlock bool    `json:"deadlock,omitempty"`
}

type tableLine struct {
	N     int     `json:"n"`
	B     []int   `json:"b"`
	Theta float64 `json:"theta"`
}

// simReport is what a simulation saw; Error is half of the 95 % interval.
type simReport struct {
	Theta       float64   `json:"theta"`
	Error       float64   `json:"error"`
	Batch       []float64 `json:"batch"`
	Busy        []float64 `json:"busy"`
	Wait        []float64 `json:"wait"`
	LongestWait []float64 `json:"longest_wait"`
}

// Run solves every case and prints a report of each as soon as it has one.
func (c *solveCmd) Run(ctx context.Context, p process) error {
	inputs, err := c.inputs(p)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	var curves []curve
	var faults []error
	for k, in := range inputs {
		report, err := c.solve(ctx, in)
		if err != nil {
			return fmt.Errorf("case %s: %w", caseName(in, k), err)
		}
		if err := c.print(p.out, report); err != nil {
			return err
		}
		if c.Check {
			if err := check(ctx, in, report); err != nil {
				faults = append(faults, fmt.Errorf("case %s: %w", caseName(in, k), err))
			}
		}
		if c.Plot != "" {
			line, err := curveOf(ctx, in, report, caseName(in, k))
			if err != nil {
				return fmt.Errorf("plot case %s: %w", caseName(in, k), err)
			}
			curves = append(curves, *line)
		}
	}
	if c.Plot != "" {
		if err := writePlot(c.Plot, curves); err != nil {
			return err
		}
	}
	if err := errors.Join(faults...); err != nil {
		return &boundError{err}
	}
	return nil
}

func caseName(in *threshold.Input, k int) string {
	if in.ID != "" {
		return in.ID
	}
	return fmt.Sprint(k + 1)
}

// inputs reads and checks all cases, so that a wrong one stops the run before
// any work.
func (c *solveCmd) inputs(p process) ([]*threshold.Input, error) {
	if c.Tick < 0 || math.IsNaN(c.Tick) {
		return nil, usagef("--tick must be more than 0")
	}
	if err := checkSVG("--plot", c.Plot); err != nil {
		return nil, err
	}
	from := p.in
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return nil, &usageError{fmt.Errorf("read cases: %w", err)}
		}
		defer file.Close()
		from = file
	}
	inputs, err := threshold.ParseInputs(from)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read cases: %w", err)}
	}
	if c.Plot != "" && len(inputs) > maxCurves {
		return nil, usagef("--plot draws at most %d cases, there are %d", maxCurves, len(inputs))
	}
	for k, in := range inputs {
		in.Exact = in.Exact || c.Exact
		if in.Tick == nil && c.Tick > 0 {
			in.Tick = &c.Tick
		}
		if _, err := in.System(); err != nil { // the flags may not fit the case
			return nil, &usageError{fmt.Errorf("case %s: %w", caseName(in, k), err)}
		}
	}
	return inputs, nil
}

func (c *solveCmd) solve(ctx context.Context, in *threshold.Input) (*solveReport, error) {
	system, err := in.System()
	if err != nil {
		return nil, err
	}
	o := threshold.Options{SkipSearch: in.Search != nil && !*in.Search, All: c.All}
	for _, e := range in.Evals {
		o.Evals = append(o.Evals, e.B)
	}
	found, err := threshold.Solve(ctx, system.Case, o)
	if err != nil {
		return nil, err
	}
	report := &solveReport{ID: in.ID, N: in.N, Tick: system.Tick, SlowJitter: float64(system.SlowJitter) * system.Tick}
	if found.Best != nil {
		report.setBest(found, system.Tick)
	}
	if c.All || len(o.Evals) > 0 {
		for _, r := range found.All {
			report.All = append(report.All, solvedPoint{r.B, r.Theta / system.Tick, r.Feasible, r.Deadlock})
		}
	}
	if in.Look > 0 {
		r, err := threshold.EvaluateLookAhead(ctx, system.Case, &threshold.LookAhead{Caution: in.Look, P: system.P})
		if err != nil {
			return nil, fmt.Errorf("look-ahead rule: %w", err)
		}
		theta := r.Theta / system.Tick
		report.LookTheta = &theta
	}
	return report, c.extras(ctx, system, report)
}

func (r *solveReport) setBest(found *threshold.Solution, tick float64) {
	best := found.Best
	theta := best.Theta / tick
	perSecond := theta * 1000
	r.Best, r.Theta, r.PerSecond = best.B, &theta, &perSecond
	if !math.IsNaN(found.Gap) {
		r.Gap = &found.Gap
	}
	r.Batch, r.Busy, r.Wait = best.Batch, best.Busy, inMillis(best.Wait, tick)
	r.Search, r.Evaluated, r.Method, r.States = string(found.Search), found.Evaluated, string(best.Method), best.States
}

func inMillis(ticks []float64, tick float64) []float64 {
	out := slices.Clone(ticks)
	for i := range out {
		out[i] *= tick
	}
	return out
}

// extras adds what --simulate and --table ask for.
func (c *solveCmd) extras(ctx context.Context, system *threshold.System, report *solveReport) error {
	tick := system.Tick
	if c.Simulate && report.Best != nil {
		sim, err := threshold.Simulate(ctx, system.Case, report.Best, threshold.SimOptions{Steps: simulatedSteps, Seed: 1})
		if err != nil {
			return fmt.Errorf("simulate: %w", err)
		}
		report.Simulated = &simReport{sim.Theta / tick, sim.Error / tick, sim.Batch, sim.Busy, inMillis(sim.Wait, tick), inMillis(sim.LongestWait, tick)}
	}
	if c.Table {
		table, err := threshold.Table(ctx, system.Case)
		if err != nil {
			return fmt.Errorf("table: %w", err)
		}
		for _, e := range table {
			report.Table = append(report.Table, tableLine{e.N, e.B, e.Theta / tick})
		}
	}
	return nil
}

func (c *solveCmd) print(w io.Writer, r *solveReport) error {
	if c.Output == "json" {
		return json.NewEncoder(w).Encode(r)
	}
	return r.write(w)
}
