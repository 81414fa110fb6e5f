package policies

import "math"

// Thresholds of R2R's strategies that need no training: entropy in nats, and
// aleatoric uncertainty.
const (
	DefaultEntropyThreshold   = 0.45
	DefaultAleatoricThreshold = 2.275
)

// entropic routes by the entropy of the entry model's distribution in nats: from
// τ on the token is dropped and the other model writes one.
//
// Source: R2R's strategy "entropy", section 1.6 of the routing notes.
type entropic struct {
	defaults
	tau float64
}

func buildEntropy(k *kind, set *Set, _ int, s *Settings) (err error) {
	set.Threshold, err = k.scale.pick("threshold", DefaultEntropyThreshold, s.Threshold)
	set.build = func(self ModelID) Policy { return &entropic{defaults{self}, set.Threshold} }
	return err
}

func (p *entropic) Spec() Spec {
	if p.self != Entry {
		return Spec{}
	}
	return Spec{Needs: FeatureEntropy}
}

func (p *entropic) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.self != Entry {
			out[i] = back(q)
			continue
		}
		out[i] = keepOrDrop(float64(r.Entropy[i]) < threshold(q, p.tau))
	}
}

// immediateTop is the number of logits that the two uncertainties look at.
const immediateTop = 10

// immediate routes where the evidence in the raw logits is thin: the token is
// dropped if all configured conditions hold. Read as a Dirichlet distribution,
// the ten largest logits x with sum A have the aleatoric uncertainty
// -Σ x/A·(ψ(x+1) - ψ(A+1)) and the epistemic uncertainty 10/(A+10). Where logits
// are so low that these mean nothing (no number), the condition counts as met.
//
// Source: R2R's strategy "immediate", section 1.6 of the routing notes.
type immediate struct {
	defaults
	aleatoric          float64
	epistemic, entropy *float64
}

func buildImmediate(k *kind, set *Set, _ int, s *Settings) (err error) {
	if set.Threshold, err = k.scale.pick("threshold", DefaultAleatoricThreshold, s.Threshold); err != nil {
		return err
	}
	if _, err = unit.pick("epistemic", 0, s.Epistemic); err != nil {
		return err
	}
	if _, err = (interval{0, 100}).pick("entropy", 0, s.Entropy); err != nil {
		return err
	}
	epistemic, entropy := s.Epistemic, s.Entropy
	set.build = func(self ModelID) Policy {
		return &immediate{defaults{self}, set.Threshold, epistemic, entropy}
	}
	return nil
}

func (p *immediate) Spec() Spec {
	if p.self != Entry {
		return Spec{}
	}
	spec := Spec{Needs: FeatureTopK, TopK: immediateTop}
	if p.entropy != nil {
		spec.Needs |= FeatureEntropy
	}
	return spec
}

func (p *immediate) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.self != Entry {
			out[i] = back(q)
			continue
		}
		aleatoric, epistemic := evidence(r.Top[i])
		stay := aleatoric < threshold(q, p.aleatoric) ||
			p.epistemic != nil && epistemic < *p.epistemic ||
			p.entropy != nil && float64(r.Entropy[i]) < *p.entropy
		out[i] = keepOrDrop(stay)
	}
}

// evidence returns the aleatoric and the epistemic uncertainty of the largest logits.
func evidence(top []TopEntry) (aleatoric, epistemic float64) {
	sum := 0.0
	for _, e := range top {
		sum += float64(e.Logit)
	}
	of := digamma(sum + 1)
	for _, e := range top {
		x := float64(e.Logit)
		aleatoric -= x / sum * (digamma(x+1) - of)
	}
	return aleatoric, immediateTop / (sum + immediateTop)
}

// digamma is the derivative of ln Γ, to about 1e-12; NaN at the poles 0, -1, -2, ….
func digamma(x float64) float64 {
	if x <= 0 && x == math.Floor(x) {
		return math.NaN()
	}
	if x < 0 {
		return digamma(1-x) - math.Pi/math.Tan(math.Pi*x)
	}
	shift := 0.0
	for ; x < 10; x++ {
		shift -= 1 / x
	}
	// Asymptotic series with the Bernoulli numbers B2, B4, … over 2n.
	y := 1 / (x * x)
	return shift + math.Log(x) - 0.5/x - y*(1.0/12-y*(1.0/120-y*(1.0/252-y*(1.0/240-y*(1.0/132-y*691.0/32760)))))
}
