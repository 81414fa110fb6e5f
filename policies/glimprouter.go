package policies

import (
	"errors"
	"fmt"
	"math"
)

// DefaultGlimpThreshold is τ of glimp-router in nats, as its authors' script sets it.
const DefaultGlimpThreshold = 0.9

// Bounds of glimp-router, in tokens.
const (
	DefaultStepTokens  = 512
	DefaultThinkTokens = 8192
	maxThinkTokens     = 1 << 20
)

// glimpTop is the number of logits that the entropy of a step's first token is of.
const glimpTop = 20

// glimp gives whole steps of the reasoning to one model or the other. A step goes
// up to and including a blank line. Where a step begins, the entropy of the entry
// model's distribution over its 20 largest logits, renormalised, in nats, says who
// writes it: from τ on the candidate is dropped and the other model writes until
// the step ends, or has 512 tokens; its last token is kept and the turn returns.
// Below τ the entry model writes the step, its candidate included.
//
// The reasoning ends with </think>, after 8192 tokens, or when a step repeats the
// one before; what the models have not written of "\n</think>\n\n" is then put into
// the text. The answer after it is always the large model's.
//
// Where a request stands follows from its committed ids alone (see progress). The
// state that travels saves the work of reading them again.
//
// Source: GlimpRouter (arXiv:2601.05110), section 6 of the routing notes: the
// efficient token-level form of the loop, which has the same law.
type glimp struct {
	defaults
	tau   float64
	steps stepper
}

// ErrNoThinking says that a policy needs to see the reasoning end, but the models'
// vocabulary has no </think>.
var ErrNoThinking = errors.New("the models' vocabulary has no token </think>")

func buildGlimp(k *kind, set *Set, _ int, s *Settings) (err error) {
	if set.Threshold, err = k.scale.pick("threshold", DefaultGlimpThreshold, s.Threshold); err != nil {
		return err
	}
	steps := stepper{stepTokens: DefaultStepTokens, thinkTokens: DefaultThinkTokens, thinkStart: -1, thinkEnd: -1}
	for _, b := range []struct {
		setting string
		given   int
		bound   *int
	}{{"step_tokens", s.StepTokens, &steps.stepTokens}, {"think_tokens", s.ThinkTokens, &steps.thinkTokens}} {
		if b.given < 0 || b.given > maxThinkTokens {
			return fmt.Errorf("%s: is %d, must be between 1 and %d", b.setting, b.given, maxThinkTokens)
		}
		if b.given > 0 {
			*b.bound = b.given
		}
	}
	if t := s.Text; t != nil {
		if !t.thinks() || len(t.Close) == 0 {
			return ErrNoThinking
		}
		steps.thinkStart, steps.thinkEnd, steps.close = t.ThinkStart, t.ThinkEnd, t.Close
		steps.lines = newLineBreaks(t)
	}
	set.build = func(self ModelID) Policy { return &glimp{defaults{self}, set.Threshold, steps} }
	return nil
}

func (p *glimp) Spec() Spec {
	spec := Spec{Stateful: true}
	if p.self == Entry {
		spec.Needs, spec.TopK = FeatureTopK, glimpTop
	}
	return spec
}

// injects is the length of what ends a reasoning.
func (p *glimp) injects() int { return len(p.steps.close) }

func (p *glimp) Route(b *Batch, r *Result, out []Decision) {
	for i, q := range b.Reqs {
		at := p.steps.catchUp(q)
		next := at
		if at.thinking {
			p.steps.advance(&next, r.Token[i])
		}
		probe := at.thinking && at.tokens == 0 && p.self == Entry
		switch {
		case probe && !(topEntropy(r.Top[i]) < threshold(q, p.tau)):
			out[i] = Decision{To: 1, Keep: false}
		case !at.thinking:
			// The answer is the large model's.
			out[i] = Decision{To: 1, Keep: p.self != Entry}
		case !next.thinking:
			// The reasoning ends with this token, which may be </think> itself.
			out[i] = Decision{To: 1, Keep: true, Inject: p.steps.closing(r.Token[i])}
		case next.tokens == 0 && p.self != Entry:
			out[i] = back(q) // the step is complete
		default:
			out[i] = Decision{To: p.self, Keep: true}
		}
	}
}

func (p *glimp) Send(q *Req, _ Decision, h *Handoff) {
	at := p.steps.catchUp(q)
	at.store(&h.State)
}

// topEntropy is the entropy in nats of the softmax over the largest logits alone.
// It is NaN if one of them is.
func topEntropy(top []TopEntry) float64 {
	if len(top) == 0 {
		return math.NaN()
	}
	most := float64(top[0].Logit)
	var sum, moment float64
	for _, e := range top {
		d := float64(e.Logit) - most
		w := math.Exp(d)
		sum += w
		if w > 0 {
			moment += d * w
		} else if d != d {
			return math.NaN()
		}
	}
	return math.Log(sum) - moment/sum
}
