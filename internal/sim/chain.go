package sim

import (
	"math"

	"github.com/tokenrouter/tokenrouter/policies"
)

// chain is the policy of the throughput model: after a step on i a request goes
// to j with probability P[i][j], and its token is kept with probability Commit[i][j].
// A draw depends on the request's seed and on the number of its steps on i alone,
// so that schedules and thresholds change nothing about it.
type chain struct {
	p, commit [][]float64
	self      policies.ModelID
	// visits counts the steps of every request on this model.
	visits map[uint64]uint64
}

func newChain(c *Config, self policies.ModelID) *chain {
	return &chain{p: c.P, commit: c.Commit, self: self, visits: map[uint64]uint64{}}
}

// checkChain checks the routing of Config.P and Config.Commit: rows of
// probabilities, and no request that moves for ever without a token.
func (c *Config) checkChain(bad func(string, ...any) error) error {
	n := len(c.Models)
	if len(c.P) != n || c.Commit != nil && len(c.Commit) != n {
		return bad("routing of %d models, want %d", len(c.P), n)
	}
	keeps := false
	for i, row := range c.P {
		if len(row) != n || c.Commit != nil && len(c.Commit[i]) != n {
			return bad("routing from model %d to %d models, want %d", i, len(row), n)
		}
		sum := 0.0
		for j, p := range row {
			if !(p >= 0 && p <= 1) {
				return bad("routing from model %d to %d: probability %g", i, j, p)
			}
			sum += p
			kept := 1.0
			if c.Commit != nil {
				kept = c.Commit[i][j]
			}
			keeps = keeps || p > 0 && kept > 0
			if i == j && p > 0 && kept < 1 {
				return bad("model %d stays and drops its token", i)
			}
		}
		if math.Abs(sum-1) > 1e-6 {
			return bad("routing from model %d: probabilities add up to %g", i, sum)
		}
	}
	if !keeps {
		return bad("no token is ever kept")
	}
	return nil
}

// Spec implements policies.Policy.
func (p *chain) Spec() policies.Spec { return policies.Spec{} }

// Route implements policies.Policy.
func (p *chain) Route(b *policies.Batch, _ *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		n := p.visits[q.ID]
		p.visits[q.ID] = n + 1
		draw := mix(q.Sampling.Seed ^ mix(n<<8|uint64(p.self)+1))
		u := unit(draw)
		to := 0
		for j, share := range p.p[p.self] {
			if share == 0 {
				continue
			}
			to = j
			if u -= share; u < 0 {
				break
			}
		}
		keep := p.commit == nil || p.commit[p.self][to] >= 1 || unit(mix(draw+1)) < p.commit[p.self][to]
		out[i] = policies.Decision{To: policies.ModelID(to), Keep: keep}
	}
}

// Send implements policies.Policy.
func (p *chain) Send(*policies.Req, policies.Decision, *policies.Handoff) {}

// Receive implements policies.Policy.
func (p *chain) Receive(*policies.Req, *policies.Handoff) (policies.Verdict, policies.ModelID) {
	return policies.Run, p.self
}

// noting is a policy whose decisions are noted.
type noting struct {
	policies.Policy
	self   policies.ModelID
	result *Result
}

// Route implements policies.Policy.
func (p *noting) Route(b *policies.Batch, r *policies.Result, out []policies.Decision) {
	p.Policy.Route(b, r, out)
	for i, q := range b.Reqs {
		list := &p.result.Visits[q.ID-1]
		*list = append(*list, Visit{p.self, out[i].Keep})
	}
}
