package engine

import (
	"math"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/sim"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// surpriseWait is a longest wait that never ends one.
const surpriseWait = time.Hour

// Virtual is the simulation of the group with n requests in flight, as measured: step
// times by batch, company, spread, what prompts take, and the way of a hand-off. It
// reports false where Input does. The caller adds schedule, thresholds and requests.
func (g *Group) Virtual(n int, least uint64) (*sim.Config, bool) {
	in, ok := g.Input(n, least)
	if !ok {
		return nil, false
	}
	cfg := &sim.Config{P: in.P, Commit: in.Commit, Concurrency: n, Seed: 1}
	for i := range g.Models {
		m := &g.Models[i]
		v := sim.Model{
			Slowed: m.Slowdown, Jitter: min(0.9, math.Sqrt(3)*m.Spread), // a uniform law of that deviation
			LongestWait: surpriseWait, Prefill: m.Prefill.Mean,
		}
		for _, ms := range fit(undisturbed(m.All, m.Slowdown)).Times(n) {
			v.Step = append(v.Step, time.Duration(ms*float64(time.Millisecond)))
		}
		cfg.Models = append(cfg.Models, v)
		cfg.Commit[i][i] = 1 // one that stays has kept its token
	}
	cfg.Transit, _ = g.Transit()
	return cfg, true
}

// Transit is the mean time of a hand-off. It reports false if none was seen, as under
// Eager.
func (g *Group) Transit() (time.Duration, bool) {
	var hops uint64
	var way time.Duration
	for i := range g.Models {
		hops, way = hops+g.Models[i].Hop.N, way+g.Models[i].Hop.Total
	}
	if hops == 0 {
		return 0, false
	}
	return way / time.Duration(hops), true
}

// PredictVirtual is the throughput, in tokens a second, of answers of so many tokens
// under a schedule, by a simulation with the real scheduler. b are the thresholds, or
// nil.
func PredictVirtual(cfg sim.Config, rule schedule.Rule, b []int, tokens, requests int) (float64, error) {
	cfg.Models = append([]sim.Model(nil), cfg.Models...)
	for i := range cfg.Models {
		if i < len(b) {
			cfg.Models[i].Threshold = b[i]
		}
	}
	cfg.Schedule, cfg.Requests = rule, sim.Closed(requests, 1, tokens)
	r, err := sim.Run(cfg)
	if err != nil {
		return 0, err
	}
	return r.Throughput(), nil
}
