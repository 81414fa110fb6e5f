package engine

import (
	"context"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/floor"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Group is what was measured about the routing group of a deployment.
type Group struct {
	Deployment string
	// Models are the measurements by model, of the replica that has routed most.
	Models []subservice.Estimate
}

// Groups returns what was measured about every deployment of several models.
func (e *Engine) Groups() []Group {
	var list []Group
	for _, d := range e.cfg.Deployments {
		if len(d.Models) < 2 {
			continue
		}
		g := Group{Deployment: d.Name}
		for _, name := range d.Models {
			g.Models = append(g.Models, e.measured(d.Name, name))
		}
		list = append(list, g)
	}
	return list
}

func (e *Engine) measured(deployment, model string) subservice.Estimate {
	var best subservice.Estimate
	for _, r := range e.list() {
		sub := r.current.Load()
		if sub == nil || r.model.cfg.Name != model {
			continue
		}
		for _, m := range sub.Estimates() {
			if m.Deployment == deployment && (best.Deployment == "" || m.Routed > best.Routed) {
				best = m
			}
		}
	}
	return best
}

// Input is what the threshold solver needs to know about the group at n live
// requests. It reports false while the entry model has routed fewer than least
// sequences, another one fewer than a tenth of that, or no time of one is known.
func (g *Group) Input(n int, least uint64) (*threshold.Input, bool) {
	list := make([]measured.Model, len(g.Models))
	for i := range g.Models {
		list[i] = modelOf(&g.Models[i])
	}
	return measured.Input(list, n, least)
}

// prefillEach is Estimate.PrefillEach over all steps.
func prefillEach(m *subservice.Estimate) time.Duration {
	sequences := m.Prefill.N
	for i, e := range m.All {
		sequences += uint64(i+1) * e.N
	}
	if sequences == 0 {
		return 0
	}
	return m.Prefill.Total / time.Duration(sequences)
}

// Predict is the throughput, in tokens a second, that the model of delayed batching
// gives for thresholds b with n live requests.
func Predict(ctx context.Context, in *threshold.Input, b []int) (float64, error) {
	return measured.Predict(ctx, in, b)
}

// Floor is what the floor of a recorded run needs to know: the executors' own step
// times in seconds, by batch size up to n, and how much company slows them down. It
// reports false if too little is known.
func (g *Group) Floor(n int) (floor.Models, bool) {
	var m floor.Models
	for i := range g.Models {
		g := &g.Models[i]
		bare := fit(undisturbed(g.Bare, g.Slowdown))
		if bare == nil {
			return m, false
		}
		times := bare.Times(n)
		for k := range times {
			times[k] /= 1000
		}
		m.Step = append(m.Step, times)
		m.Slowed = append(m.Slowed, max(1, g.Slowdown))
	}
	return m, true
}

// Lifetime is the same with means over all steps instead of the last ones: for runs
// in which nothing drifts.
func (g *Group) Lifetime() *Group {
	out := &Group{Deployment: g.Deployment, Models: slices.Clone(g.Models)}
	for i := range out.Models {
		m := &out.Models[i]
		m.All, m.Alone, m.Busy, m.Bare = lifetime(m.All), lifetime(m.Alone), lifetime(m.Busy), lifetime(m.Bare)
		m.Prefill, m.Hop, m.PrefillEach = lifetimeOf(m.Prefill), lifetimeOf(m.Hop), prefillEach(m)
	}
	return out
}

func lifetime(list []subservice.StepEstimate) []subservice.StepEstimate {
	out := slices.Clone(list)
	for i, e := range out {
		out[i] = lifetimeOf(e)
	}
	return out
}

func lifetimeOf(e subservice.StepEstimate) subservice.StepEstimate {
	if e.N > 0 {
		e.Mean, e.Company = e.Total/time.Duration(e.N), e.CompanyTotal/float64(e.N)
	}
	return e
}

func mergeEstimates(a, b *subservice.Estimate) subservice.Estimate {
	out := *a
	if a.Routed == 0 || len(a.To) != len(b.To) {
		return *b
	}
	out.Routed = a.Routed + b.Routed
	wa, wb := float64(a.Routed)/float64(out.Routed), float64(b.Routed)/float64(out.Routed)
	out.To, out.Kept = make([]float64, len(a.To)), make([]float64, len(a.To))
	for k := range out.To {
		out.To[k] = wa*a.To[k] + wb*b.To[k]
		if out.To[k] > 0 {
			out.Kept[k] = (wa*a.To[k]*a.Kept[k] + wb*b.To[k]*b.Kept[k]) / out.To[k]
		}
	}
	out.All, out.Bare = mergeSteps(a.All, b.All), mergeSteps(a.Bare, b.Bare)
	out.Prefill, out.Hop = mergeStep(a.Prefill, b.Prefill), mergeStep(a.Hop, b.Hop)
	out.PrefillEach = prefillEach(&out)
	out.Spread = wa*a.Spread + wb*b.Spread
	out.Alone, out.Busy = mergeSteps(a.Alone, b.Alone), mergeSteps(a.Busy, b.Busy)
	out.Slowdown = wa*a.Slowdown + wb*b.Slowdown
	return out
}

func mergeSteps(a, b []subservice.StepEstimate) []subservice.StepEstimate {
	out := make([]subservice.StepEstimate, max(len(a), len(b)))
	for i := range out {
		var x, y subservice.StepEstimate
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		out[i] = mergeStep(x, y)
	}
	return out
}

func mergeStep(x, y subservice.StepEstimate) subservice.StepEstimate {
	out := subservice.StepEstimate{N: x.N + y.N, Total: x.Total + y.Total, CompanyTotal: x.CompanyTotal + y.CompanyTotal}
	if out.N > 0 {
		n := float64(out.N)
		out.Mean = time.Duration((float64(x.N)*float64(x.Mean) + float64(y.N)*float64(y.Mean)) / n)
		out.Company = (float64(x.N)*x.Company + float64(y.N)*y.Company) / n
	}
	return out
}

// Since is what the same engine has measured after an earlier look at it, with means
// over all of that. Routing, slowdown and spread are those of the last steps all the same.
func (g *Group) Since(before *Group) *Group {
	if before == nil || len(before.Models) != len(g.Models) {
		return g.Lifetime()
	}
	out := &Group{Deployment: g.Deployment, Models: slices.Clone(g.Models)}
	for i := range out.Models {
		m, old := &out.Models[i], &before.Models[i]
		m.Routed -= min(m.Routed, old.Routed)
		m.All, m.Bare = stepsSince(m.All, old.All), stepsSince(m.Bare, old.Bare)
		m.Alone, m.Busy = stepsSince(m.Alone, old.Alone), stepsSince(m.Busy, old.Busy)
		m.Prefill, m.Hop = stepSince(m.Prefill, old.Prefill), stepSince(m.Hop, old.Hop)
	}
	return out.Lifetime()
}

func stepsSince(now, old []subservice.StepEstimate) []subservice.StepEstimate {
	out := slices.Clone(now)
	for i := range min(len(out), len(old)) {
		out[i] = stepSince(out[i], old[i])
	}
	return out
}

func stepSince(now, old subservice.StepEstimate) subservice.StepEstimate {
	now.N, now.Total, now.CompanyTotal = now.N-old.N, now.Total-old.Total, now.CompanyTotal-old.CompanyTotal
	return now
}

// Work is what an engine's models have done since they were started.
type Work struct {
	// At is the time of the engine.
	At time.Duration
	// Models are the sums over the replicas of each model, in order of the configuration.
	Models []subservice.Stats
}

// Work counts. Replicas that are being restarted do not count.
func (e *Engine) Work() Work {
	w := Work{At: e.clock()}
	for _, m := range e.models {
		var sum subservice.Stats
		for _, r := range e.list() {
			if sub := r.current.Load(); sub != nil && r.model == m {
				s := sub.Stats()
				sum.Steps, sum.Rows, sum.Tokens = sum.Steps+s.Steps, sum.Rows+s.Rows, sum.Tokens+s.Tokens
				sum.Committed, sum.StepTime, sum.Handoffs = sum.Committed+s.Committed, sum.StepTime+s.StepTime, sum.Handoffs+s.Handoffs
			}
		}
		w.Models = append(w.Models, sum)
	}
	return w
}
