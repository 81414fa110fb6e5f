package policies

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/internal/philox"
)

// ensemble (me) draws the model of every token from fixed weights. Averaged over
// draws, the next token follows the mixture Σ λ_i P_i, at one forward pass a
// token. No token is ever dropped. The first model is drawn too, so that the
// realised shares are not biased towards the entry model.
//
// The law holds for untruncated sampling; under greedy decoding it is a mix of
// models, not an ensemble.
//
// The draw of a position is keyed by (seed, position) and by no model, so that
// whoever makes it gets the same answer, also after a move.
//
// Source: mixture-model-like ensemble (arXiv:2605.00419).
type ensemble struct {
	defaults
	// upTo[k] is the sum of the normalised weights of models 0 to k.
	upTo []float64
}

// draw returns the model of the next answer token of q.
func (p *ensemble) draw(q *Req, committed int) ModelID {
	u := philox.Uniform(q.Sampling.Seed, uint32(q.PromptLen+committed), 0, philox.Route)
	for k, sum := range p.upTo {
		if u < sum {
			return ModelID(k)
		}
	}
	return ModelID(len(p.upTo) - 1) // rounding left the last sum below 1
}

func (p *ensemble) Route(b *Batch, _ *Result, out []Decision) {
	for i, q := range b.Reqs {
		out[i] = Decision{To: p.draw(q, len(q.Out)+1), Keep: true}
	}
}

func (p *ensemble) Receive(q *Req, h *Handoff) (Verdict, ModelID) {
	if h.From != Client {
		return Run, p.self
	}
	if k := p.draw(q, len(q.Out)); k != p.self {
		return Bounce, k
	}
	return Run, p.self
}

// cumulative checks weights, one for each model, and returns their normalised running sums.
func cumulative(weights []float64, models int) ([]float64, error) {
	if len(weights) == 0 {
		weights = make([]float64, models)
		for i := range weights {
			weights[i] = 1
		}
	}
	if len(weights) != models {
		return nil, fmt.Errorf("weights: %d values for %d models", len(weights), models)
	}
	sum := 0.0
	upTo := make([]float64, models)
	for i, w := range weights {
		if !(w >= 0 && w <= 1e9) {
			return nil, fmt.Errorf("weights[%d]: is %v, must be a number from 0", i, w)
		}
		sum += w
		upTo[i] = sum
	}
	if sum == 0 {
		return nil, fmt.Errorf("weights: all are 0")
	}
	for i := range upTo {
		upTo[i] /= sum
	}
	return upTo, nil
}
