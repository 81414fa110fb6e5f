package policies

import "github.com/tokenrouter/tokenrouter/internal/philox"

// DefaultRandomThreshold is the share of entry steps that random hands over.
const DefaultRandomThreshold = 0.1

// random hands over a share p of the entry model's steps, drawn independently
// for each position; the other model writes one token and returns the turn. It
// is the floor that any informed policy must beat, and gives a system under
// test any routing rate without trained weights.
//
// The draw is keyed by (seed, position), so it depends on nothing else.
type random struct {
	defaults
	p float64
}

func (p *random) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		switch {
		case p.self != Entry:
			out[i] = back(q)
		case philox.Uniform(q.Sampling.Seed, uint32(q.PromptLen+len(q.Out)), uint8(p.self), philox.Route) < threshold(q, p.p):
			out[i] = Decision{To: 1, Keep: false}
		default:
			out[i] = Decision{To: Entry, Keep: true}
		}
	}
}
