package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/worker/schedule"
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
	thresholds := "-"
	if s.B != nil {
		thresholds = setting(s.B)
	}
	columns := []string{
		fmt.Sprintf("%4d", s.N), fmt.Sprintf("%-10s", s.Schedule), fmt.Sprintf("%-10s", thresholds), fmt.Sprintf("%9.1f", s.PerSecond),
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

// spread is how far the slowest and the fastest repeat are apart, relative to the median.
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

// summary is about one kind of prediction: how far off it is, and by how much the
// thresholds that it says are best are slower than the best measured. Schedules are not
// compared: it is thresholds that a prediction chooses.
func (o *sweepOutput) summary(kind string, of func(*sweepPoint) *float64) {
	var order []int
	byN := map[int][]*sweepPoint{}
	var all []*sweepPoint
	for _, s := range o.points {
		if of(s) == nil {
			continue
		}
		if byN[s.N] == nil {
			order = append(order, s.N)
		}
		byN[s.N], all = append(byN[s.N], s), append(all, s)
	}
	if len(all) == 0 {
		return
	}
	fmt.Fprintf(o.p.out, "\nmean error of the %s values %.1f %%\n", kind, meanError(all, of))
	for _, n := range order {
		fmt.Fprintf(o.p.out, "n %d: mean error %.1f %%", n, meanError(byN[n], of))
		var best, chosen *sweepPoint
		for _, s := range byN[n] {
			if s.rule != schedule.Delayed {
				continue
			}
			if best == nil || s.PerSecond > best.PerSecond {
				best = s
			}
			if chosen == nil || *of(s) > *of(chosen) {
				chosen = s
			}
		}
		if best != nil {
			fmt.Fprintf(o.p.out, "; best %s with %.1f tokens/s; the %s best %s makes %.1f %% less",
				setting(best.B), best.PerSecond, kind, setting(chosen.B), 100*(1-chosen.PerSecond/best.PerSecond))
		}
		fmt.Fprintln(o.p.out)
	}
}

// meanError is the mean distance of predictions, in percent of what was seen.
func meanError(points []*sweepPoint, of func(*sweepPoint) *float64) float64 {
	var off float64
	for _, s := range points {
		off += math.Abs(*of(s)/s.PerSecond - 1)
	}
	return 100 * off / float64(len(points))
}
