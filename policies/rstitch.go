package policies

// DefaultRStitchThreshold is the paper's τ for Qwen3-0.6B and 32B.
const DefaultRStitchThreshold = 0.03

// rStitch hands over where the small model is unsure and stays with the large
// one while it is unsure too.
//
// Uncertainty is the entropy of the raw softmax over the real vocabulary
// divided by ln V, in [0, 1]. On the entry model a token above τ is dropped and
// the large model goes on; on the large model a token is always kept, and the
// turn returns with the first token at or below τ.
//
// Source: R-Stitch (arXiv:2507.17307) algorithm 1; TokenRouter paper, table 1.
type rStitch struct {
	defaults
	tau float64
}

func (*rStitch) Spec() Spec { return Spec{Needs: FeatureEntropy} }

func (p *rStitch) Route(b *Batch, r *Result, out []Decision) {
	for i, h := range r.Entropy {
		// A NaN is not sure: the comparison is written so that it counts as unsure.
		sure := float64(h)/float64(r.LogV) <= p.tau
		switch {
		case p.self == Entry && sure:
			out[i] = Decision{To: Entry, Keep: true}
		case p.self == Entry:
			out[i] = Decision{To: 1, Keep: false}
		case sure:
			out[i] = back(b.Reqs[i])
		default:
			out[i] = Decision{To: p.self, Keep: true}
		}
	}
}
