package engine

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// undisturbed are the times that steps would take alone: what was measured, less
// what company has added to it.
func undisturbed(list []subservice.StepEstimate, slowdown float64) []subservice.StepEstimate {
	out := slices.Clone(list)
	for i, e := range out {
		out[i].Mean = time.Duration(float64(e.Mean) / (1 + (slowdown-1)*e.Company))
	}
	return out
}

// fit is the time of a step by batch size, nil if nothing is known.
func fit(list []subservice.StepEstimate) *measured.Curve { return measured.Fit(stepsOf(list)) }

func stepsOf(list []subservice.StepEstimate) []measured.Step {
	out := make([]measured.Step, len(list))
	for i, e := range list {
		out[i] = measured.Step{N: e.N, MS: milliseconds(e.Mean)}
	}
	return out
}

// modelOf is an estimate as the solver's inputs are made from it.
func modelOf(m *subservice.Estimate) measured.Model {
	return measured.Model{
		Routed: m.Routed, To: m.To, Kept: m.Kept, Steps: stepsOf(undisturbed(m.All, m.Slowdown)), Slowdown: m.Slowdown, Prefill: milliseconds(m.PrefillEach),
	}
}
