package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// expectedWithin is how far, relatively, a value may be from the expected one
// when the case has no tol of its own.
const expectedWithin = 1e-4

// write prints a report for people.
func (r *solveReport) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	title := fmt.Sprintf("n %d", r.N)
	if r.ID != "" {
		title = r.ID + ": " + title
	}
	fmt.Fprintf(t, "%s, tick %s ms, slow step ± %s ms\n", title, short(r.Tick), short(r.SlowJitter))
	if r.Best != nil {
		fmt.Fprintf(t, "best thresholds %s: %.1f tokens/s, %s search of %d settings, by %s of %d states\n",
			setting(r.Best), *r.PerSecond, r.Search, r.Evaluated, r.Method, r.States)
		if r.Gap != nil {
			fmt.Fprintf(t, "the next best is %.2g %% slower\n", 100**r.Gap)
		}
		fmt.Fprintln(t, "model\tthreshold\tmean batch\tbusy\tmean wait")
		for i, b := range r.Best {
			fmt.Fprintf(t, "%d\t%d\t%.2f\t%.1f %%\t%.2f ms\n", i, b, r.Batch[i], 100*r.Busy[i], r.Wait[i])
		}
	}
	if s := r.Simulated; s != nil {
		fmt.Fprintf(t, "simulated: %.1f ± %.1f tokens/s, longest waits", 1000*s.Theta, 1000*s.Error)
		for _, ms := range s.LongestWait {
			fmt.Fprintf(t, " %s", short(ms))
		}
		fmt.Fprintln(t, " ms")
	}
	if r.LookTheta != nil {
		fmt.Fprintf(t, "look-ahead rule: %.1f tokens/s\n", 1000**r.LookTheta)
	}
	if len(r.All) > 0 {
		fmt.Fprintln(t, "thresholds\ttokens/s")
	}
	for _, e := range r.All {
		switch {
		case e.Feasible:
			fmt.Fprintf(t, "%s\t%.1f\n", setting(e.B), 1000*e.Theta)
		case e.Deadlock:
			fmt.Fprintf(t, "%s\tdeadlock\n", setting(e.B))
		default:
			fmt.Fprintf(t, "%s\tnot feasible\n", setting(e.B))
		}
	}
	if len(r.Table) > 0 {
		fmt.Fprintln(t, "live\tthresholds\ttokens/s")
	}
	for _, e := range r.Table {
		fmt.Fprintf(t, "%d\t%s\t%.1f\n", e.N, setting(e.B), 1000*e.Theta)
	}
	return t.Flush()
}

func short(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

// setting prints thresholds as (1,3).
func setting(b []int) string {
	words := make([]string, len(b))
	for i, v := range b {
		words[i] = strconv.Itoa(v)
	}
	return "(" + strings.Join(words, ",") + ")"
}

// check compares a report with what its case expects. A search may find another
// setting than the expected one if it is as good.
func check(ctx context.Context, in *threshold.Input, r *solveReport) error {
	tol := in.Tol
	if tol == 0 {
		tol = expectedWithin
	}
	var faults []error
	expect := func(what string, got *float64, want *float64) {
		switch {
		case want == nil:
		case got == nil:
			faults = append(faults, fmt.Errorf("%s is missing, want %g", what, *want))
		case math.Abs(*got-*want) > tol*math.Abs(*want):
			faults = append(faults, fmt.Errorf("%s is %.7g, want %g", what, *got, *want))
		}
	}
	expect("theta", r.Theta, in.Theta)
	expect("look_theta", r.LookTheta, in.LookTheta)
	for k, e := range in.Evals {
		expect("theta of "+setting(e.B), &r.All[k].Theta, e.Theta)
	}
	if in.Dynamic != nil && r.Theta != nil && *r.Theta > *in.Dynamic*(1+tol) {
		faults = append(faults, fmt.Errorf("theta is %.7g, above the bound %g", *r.Theta, *in.Dynamic))
	}
	system, err := in.System()
	if err != nil {
		return err
	}
	if in.Best != nil && in.Theta != nil {
		e, err := threshold.Evaluate(ctx, system.Case, in.Best)
		if err != nil {
			return fmt.Errorf("evaluate the expected best: %w", err)
		}
		theta := e.Theta / system.Tick
		expect("theta of the expected best "+setting(in.Best), &theta, in.Theta)
	}
	for _, b := range in.Deadlock {
		e, err := threshold.Evaluate(ctx, system.Case, b)
		if err != nil {
			return err
		}
		if !e.Deadlock {
			faults = append(faults, fmt.Errorf("%s does not deadlock", setting(b)))
		}
	}
	return errors.Join(faults...)
}
