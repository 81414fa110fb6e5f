package policies

// DefaultRStitchThreshold is the paper's τ for Qwen3-0.6B and 32B, and
// DefaultGateThreshold the confidence below which r-stitch+ goes on from there
// unless the network's checkpoint says otherwise.
const (
	DefaultRStitchThreshold = 0.03
	DefaultGateThreshold    = 0.5
)

// rStitch hands over where the small model is unsure and stays with the large
// one while it is unsure too.
//
// Uncertainty is the entropy of the raw softmax over the real vocabulary
// divided by ln V, in [0, 1]. On the entry model a token above τ is dropped and
// the large model goes on; on the large model a token is always kept, and the
// turn returns with the first token at or below τ.
//
// The two-stage form (r-stitch+) asks a router network besides, on the entry
// model alone: a token above τ is dropped only if the network's confidence that
// the small model suffices is below the gate. The network's shape is not
// published; it is that of CITER here.
//
// Source: R-Stitch (arXiv:2507.17307) algorithm 1; TokenRouter paper, table 1.
type rStitch struct {
	defaults
	tau float64
	// gated says that there is a second stage; net and gate are its network and threshold.
	gated bool
	net   string
	gate  float32
}

func buildRStitch(k *kind, set *Set, _ int, s *Settings) (err error) {
	if set.Threshold, err = k.scale.pick("threshold", DefaultRStitchThreshold, s.Threshold); err != nil {
		return err
	}
	p := rStitch{tau: set.Threshold, gated: k.scored, net: s.Net}
	if p.gated {
		gate, err := unit.pick("router_threshold", DefaultGateThreshold, s.NetThreshold, s.Checkpoint)
		if err != nil {
			return err
		}
		p.gate = float32(gate)
	}
	set.build = func(self ModelID) Policy {
		q := p
		q.self = self
		return &q
	}
	return nil
}

func (p *rStitch) Spec() Spec {
	if p.gated && p.self == Entry {
		return Spec{Needs: FeatureEntropy | FeatureScore, Net: p.net}
	}
	return Spec{Needs: FeatureEntropy}
}

func (p *rStitch) Route(b *Batch, r *Result, out []Decision) {
	for i, h := range r.Entropy {
		q := b.Reqs[i]
		// A NaN is not sure: the comparison is written so that it counts as unsure.
		sure := float64(h)/float64(r.LogV) <= threshold(q, p.tau)
		switch {
		case p.self == Entry && (sure || p.gated && r.Score[i] >= p.gate):
			out[i] = Decision{To: Entry, Keep: true}
		case p.self == Entry:
			out[i] = Decision{To: 1, Keep: false}
		case sure:
			out[i] = back(q)
		default:
			out[i] = Decision{To: p.self, Keep: true}
		}
	}
}
