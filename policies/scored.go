package policies

// Defaults of the policies that only compare a score, where neither configuration
// nor checkpoint has a threshold: that of R2R's server and of CITER's script.
const (
	DefaultR2RThreshold   = 0.5
	DefaultCITERThreshold = 0.95
)

// scored is r2r and citer: every step of the entry model is scored by a router
// network. A routed token is dropped, the other model writes one token in its
// place, unconditionally, and returns the turn; its token is never judged.
//
// The score of r2r is the probability that the candidate diverges from what the
// large model would mean: routed at or above τ. That of citer is the confidence
// that the small model suffices: routed below τ. Scores are single precision, and
// so is τ where they are compared. A score that is no number is routed.
//
// Source: R2R (arXiv:2505.21600) section 1.1 of the routing notes; CITER
// (arXiv:2502.01976) section 2.
type scored struct {
	defaults
	tau float64
	net string
	// confident says that a high score speaks for the small model.
	confident bool
}

func buildScored(k *kind, set *Set, _ int, s *Settings) (err error) {
	confident, otherwise := false, DefaultR2RThreshold
	if k.name == "citer" {
		confident, otherwise = true, DefaultCITERThreshold
	}
	if set.Threshold, err = k.scale.pick("threshold", otherwise, s.Threshold, s.Checkpoint); err != nil {
		return err
	}
	net := s.Net
	set.build = func(self ModelID) Policy { return &scored{defaults{self}, set.Threshold, net, confident} }
	return nil
}

func (p *scored) Spec() Spec { return scoreSpec(p.self, p.net) }

// scoreSpec is the need of a policy that judges the entry model's tokens alone.
func scoreSpec(self ModelID, net string) Spec {
	if self != Entry {
		return Spec{}
	}
	return Spec{Needs: FeatureScore, Net: net}
}

func (p *scored) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.self != Entry {
			out[i] = back(q)
			continue
		}
		tau := float32(threshold(q, p.tau))
		stay := r.Score[i] < tau
		if p.confident {
			stay = r.Score[i] >= tau
		}
		out[i] = keepOrDrop(stay)
	}
}

// keepOrDrop is a decision of the entry model of two about its candidate.
func keepOrDrop(keep bool) Decision {
	if keep {
		return Decision{To: Entry, Keep: true}
	}
	return Decision{To: 1, Keep: false}
}
