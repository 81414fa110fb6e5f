package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// sweepOutput prints points as they come and what they show at the end.
type sweepOutput struct {
	p    process
	json bool
	// measured says that models were run, so that predictions are of two kinds.
	measured bool
	points   []*sweepPoint
}

func (o *sweepOutput) add(s *sweepPoint) error {
	o.points = append(o.points, s)
	if o.json {
		return writeJSONLine(o.p, s)
	}
	columns := []string{
		fmt.Sprintf("%4d", s.N), fmt.Sprintf("%-10s", s.Schedule), fmt.Sprintf("%-10s", named(s, "")), fmt.Sprintf("%9.1f", s.PerSecond),
	}
	head := []string{"   n", "schedule  ", "thresholds", " tokens/s"}
	if o.measured {
		head, columns = append(head, "spread"), append(columns, fmt.Sprintf("%6s", spread(s.Runs)))
	}
	head, columns = append(head, "predicted", "  error"), append(columns, beside(s.Predicted, s.PerSecond)...)
	if o.measured {
		head, columns = append(head, "   solver", "  error"), append(columns, beside(s.Solver, s.PerSecond)...)
	}
	of := "-"
	if s.Efficiency != nil {
		of = fmt.Sprintf("%.0f %%", 100**s.Efficiency)
	}
	head, columns = append(head, "of floor", "mean batch"), append(columns, fmt.Sprintf("%8s", of), batches(s.Batch))
	if len(o.points) == 1 {
		fmt.Fprintln(o.p.out, strings.Join(head, "  "))
	}
	_, err := fmt.Fprintln(o.p.out, strings.Join(columns, "  "))
	return err
}

// beside are the columns of a prediction: its value and how far off it is.
func beside(predicted *float64, seen float64) []string {
	if predicted == nil {
		return []string{"        -", "      -"}
	}
	return []string{fmt.Sprintf("%9.1f", *predicted), fmt.Sprintf("%+5.1f %%", 100*(*predicted/seen-1))}
}

// spread is how far repeats are apart, relative to their median: half of it to either side.
func spread(runs []float64) string {
	if len(runs) < 2 {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", 100*(slices.Max(runs)-slices.Min(runs))/median(runs))
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

func batches(list []float64) string {
	text := make([]string, len(list))
	for i, b := range list {
		text[i] = fmt.Sprintf("%.2f", b)
	}
	return strings.Join(text, " ")
}

// named is what a setting is called: its thresholds, or else its schedule.
func named(s *sweepPoint, schedule string) string {
	switch {
	case s.B == nil && schedule == "":
		return "-"
	case s.B == nil:
		return schedule
	case schedule != "" && schedule != "delayed":
		return schedule + " " + setting(s.B)
	}
	return setting(s.B)
}

// end prints the summary: how far off predictions are, and what trusting them costs.
func (o *sweepOutput) end() error {
	if o.json {
		return nil
	}
	o.summary("predicted", func(s *sweepPoint) *float64 { return s.Predicted })
	if o.measured {
		o.summary("solver's", func(s *sweepPoint) *float64 { return s.Solver })
	}
	return nil
}

// summary is about one kind of prediction.
func (o *sweepOutput) summary(kind string, of func(*sweepPoint) *float64) {
	var order []int
	byN := map[int][]*sweepPoint{}
	var wrong float64
	count := 0
	for _, s := range o.points {
		v := of(s)
		if v == nil {
			continue
		}
		wrong, count = wrong+math.Abs(*v/s.PerSecond-1), count+1
		if byN[s.N] == nil {
			order = append(order, s.N)
		}
		byN[s.N] = append(byN[s.N], s)
	}
	if count == 0 {
		return
	}
	fmt.Fprintf(o.p.out, "\nmean error of the %s values %.1f %%\n", kind, 100*wrong/float64(count))
	for _, n := range order {
		list := byN[n]
		best, chosen, off := list[0], list[0], 0.0
		for _, s := range list {
			off += math.Abs(*of(s)/s.PerSecond - 1)
			if s.PerSecond > best.PerSecond {
				best = s
			}
			if *of(s) > *of(chosen) {
				chosen = s
			}
		}
		fmt.Fprintf(o.p.out, "n %d: mean error %.1f %%; best %s with %.1f tokens/s; the %s best %s makes %.1f %% less\n",
			n, 100*off/float64(len(list)), named(best, best.Schedule), best.PerSecond, kind, named(chosen, chosen.Schedule), 100*(1-chosen.PerSecond/best.PerSecond))
	}
}
