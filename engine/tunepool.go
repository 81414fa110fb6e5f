package engine

import (
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// leastVariance is how much the share of company must differ between runs for them to
// tell what company costs.
const leastVariance = 0.003

// leastSlowdown is the least that is believed: models that take turns let each other's
// threads and caches go cold, but not by more. Less is taken for chance.
const leastSlowdown = 0.95

// Pool is what several runs of one deployment have measured together. Runs under
// different schedules and thresholds are in company for different shares of their time,
// and what that does to the mean times of their steps is a better measure of the
// slowdown than what happens within a run: there a step that chance makes longer is
// less in company, as the others run out of work. Nil without runs.
func Pool(runs []*Group) *Group {
	var out *Group
	for _, g := range runs {
		switch {
		case g == nil || out != nil && len(g.Models) != len(out.Models):
		case out == nil:
			out = g
		default:
			sum := &Group{Deployment: out.Deployment, Models: make([]subservice.Estimate, len(out.Models))}
			for i := range out.Models {
				sum.Models[i] = mergeEstimates(&out.Models[i], &g.Models[i])
			}
			out = sum
		}
	}
	if out == nil || len(runs) < 3 {
		return out
	}
	for i := range out.Models {
		if s, ok := slowdownBetween(runs, i, out.Models[i].All); ok {
			out.Models[i].Slowdown = s
		}
	}
	return out
}

// slowdownBetween regresses the mean time of model i's steps on their share of company,
// both by run and relative to all runs' means for the batch size. all are those means.
func slowdownBetween(runs []*Group, i int, all []subservice.StepEstimate) (slowdown float64, ok bool) {
	var weight, share, variance, with float64
	for _, g := range runs {
		if g == nil || i >= len(g.Models) {
			continue
		}
		for b, e := range g.Models[i].All {
			if e.N < measured.LeastSteps || all[b].Mean <= 0 {
				continue
			}
			w, dx, dy := float64(e.Total), e.Company-all[b].Company, float64(e.Mean-all[b].Mean)/float64(all[b].Mean)
			weight, share = weight+w, share+w*e.Company
			variance, with = variance+w*dx*dx, with+w*dx*dy
		}
	}
	if weight == 0 || variance/weight < leastVariance {
		return 0, false
	}
	slope := with / variance
	s := 1 + slope/max(0.1, 1-slope*share/weight)
	if s < leastSlowdown {
		s = 1
	}
	return min(s, 5), true
}
