package policies

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DefaultCoLLMThreshold is η where neither configuration nor checkpoint has one.
const DefaultCoLLMThreshold = 0.15

// Modes of co-llm.
const (
	modeDefer   = "defer"
	modeCompose = "compose"
)

// composeTop is the number of ids whose probabilities travel in compose mode.
const composeTop = 64

// maxWarmup bounds the tokens of a warm-up.
const maxWarmup = 1 << 20

// coLLM hands over where the entry model's own deferral head wants help. The score
// is p = sigmoid(d) of one extra output row that is never sampled; it is no
// probability of the vocabulary. p > η (strictly) drops the candidate, and the
// other model writes one token.
//
// In defer mode that token is the other model's own. In compose mode it is drawn
// from (1-p)·P + p·P', with P the entry model's distribution, cut to its most
// probable ids, and P' the other's, both at temperature 1; temperature and
// truncation apply to the mixture. The hand-off carries p and P.
//
// η may fall from 1 to its value over the first tokens of the answer.
//
// Source: Co-LLM (arXiv:2403.03870), section 4 of the routing notes.
type coLLM struct {
	defaults
	eta     float64
	net     string
	compose bool
	// warmup is the number of tokens until η is reached, by shape.
	warmup int
	shape  string
}

func buildCoLLM(k *kind, set *Set, _ int, s *Settings) (err error) {
	if set.Threshold, err = k.scale.pick("threshold", DefaultCoLLMThreshold, s.Threshold, s.Checkpoint); err != nil {
		return err
	}
	mode, shape := s.Mode, s.WarmupShape
	if mode == "" {
		mode = modeDefer
	}
	if shape == "" {
		shape = "linear"
	}
	if err := oneOf("mode", mode, modeDefer, modeCompose); err != nil {
		return err
	}
	if err := oneOf("warmup_shape", shape, "linear", "cosine", "exponential"); err != nil {
		return err
	}
	if s.Warmup < 0 || s.Warmup > maxWarmup {
		return fmt.Errorf("warmup: is %d, must be between 0 and %d tokens", s.Warmup, maxWarmup)
	}
	p := coLLM{eta: set.Threshold, net: s.Net, compose: mode == modeCompose, warmup: s.Warmup, shape: shape}
	set.build = func(self ModelID) Policy {
		q := p
		q.self = self
		return &q
	}
	return nil
}

func (p *coLLM) Spec() Spec {
	spec := scoreSpec(p.self, p.net)
	switch {
	case !p.compose:
	case p.self == Entry:
		spec.Needs, spec.TopK = spec.Needs|FeatureTopK, composeTop
	default:
		spec.Mixes = true
	}
	return spec
}

// warm is η after t tokens of the answer.
func warm(eta float64, t, tokens int, shape string) float64 {
	if t >= tokens {
		return eta
	}
	x := float64(t) / float64(tokens)
	switch shape {
	case "cosine":
		return eta + (1-eta)*(1+math.Cos(math.Pi*x))/2
	case "exponential":
		return math.Pow(eta, x)
	}
	return 1 + (eta-1)*x
}

func (p *coLLM) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		if p.self != Entry {
			out[i] = back(q)
			continue
		}
		eta := warm(threshold(q, p.eta), len(q.Out), p.warmup, p.shape)
		out[i] = keepOrDrop(r.Score[i] <= float32(eta))
		if p.compose && !out[i].Keep {
			out[i].Blob = appendMixture(nil, r.Score[i], r.Top[i])
		}
	}
}

func (p *coLLM) Send(_ *Req, d Decision, h *Handoff) { h.Blob = d.Blob }

// Receive takes the distribution to mix in. A blob that cannot be read changes
// nothing: the other model then writes its own token.
func (p *coLLM) Receive(q *Req, h *Handoff) (Verdict, ModelID) {
	if p.compose && p.self != Entry {
		q.Mix = parseMixture(h.Blob)
	}
	return Run, p.self
}

// appendMixture encodes the probability of deferral and the entry model's most
// probable ids: p f32, then (id i32, log-probability f32) for each, little-endian.
func appendMixture(dst []byte, p float32, top []TopEntry) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(p))
	for _, e := range top {
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.ID))
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(e.Logprob))
	}
	return dst
}

// parseMixture decodes appendMixture's bytes; nil if they are none.
func parseMixture(b []byte) *Mixture {
	if len(b) < 12 || len(b)%8 != 4 || len(b) > MaxBlob {
		return nil
	}
	m := &Mixture{Weight: math.Float32frombits(binary.LittleEndian.Uint32(b))}
	if !(m.Weight >= 0 && m.Weight <= 1) {
		return nil
	}
	for b = b[4:]; len(b) > 0; b = b[8:] {
		e := TopEntry{ID: int32(binary.LittleEndian.Uint32(b)), Logprob: math.Float32frombits(binary.LittleEndian.Uint32(b[4:]))}
		if e.ID < 0 || !(e.Logprob <= roundUp) {
			return nil
		}
		m.Entries = append(m.Entries, e)
	}
	return m
}

// roundUp is how far above 0 rounding may bring a log-probability.
const roundUp = 1e-3
