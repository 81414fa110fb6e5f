package sampler

import (
	"math"

	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// saved is a logit before it was changed.
type saved struct {
	id int32
	z  float32
}

// adjust changes the logits of a sequence in place: penalties, then bias, then
// banned ids. restore takes all of it back. Only ids that something applies to
// are touched, so the cost does not depend on the vocabulary.
func (s *Sampler) adjust(z []float32, q *Sequence, position int32) {
	p := q.Params
	s.saved = s.saved[:0]
	if q.Counts != nil && p.Penalizes() {
		s.penalize(z, p, q.Counts)
	}
	for _, b := range p.LogitBias {
		if v := s.change(z, b.ID); v != nil {
			*v += b.Value
		}
	}
	if p.MinTokens > 0 && position-q.PromptLen < p.MinTokens {
		for _, id := range p.StopIDs {
			if v := s.change(z, id); v != nil {
				*v = float32(math.Inf(-1))
			}
		}
	}
}

// change notes the logit of an id and returns where it is, nil if the model has no such id.
func (s *Sampler) change(z []float32, id int32) *float32 {
	if id < 0 || int(id) >= len(z) {
		return nil
	}
	s.saved = append(s.saved, saved{id, z[id]})
	return &z[id]
}

// penalize changes the logits of the ids that were counted. The conversions keep
// every operation a float32 one of its own, with no fused multiply-add.
func (s *Sampler) penalize(z []float32, p *sampling.Params, c *Counts) {
	repeats := p.Repeats()
	for _, id := range c.listed {
		if c.total[id] == 0 {
			continue
		}
		v := s.change(z, id)
		if v == nil {
			continue
		}
		if repeats {
			if *v > 0 {
				*v /= p.RepetitionPenalty
			} else {
				*v = float32(*v * p.RepetitionPenalty)
			}
		}
		if n := c.answer[id]; n > 0 {
			*v -= float32(p.FrequencyPenalty * float32(n))
			*v -= p.PresencePenalty
		}
	}
}

// restore undoes adjust. An id may have been changed more than once: the oldest value wins.
func (s *Sampler) restore(z []float32) {
	for i := len(s.saved) - 1; i >= 0; i-- {
		z[s.saved[i].id] = s.saved[i].z
	}
}
