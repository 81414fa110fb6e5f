package executor

import (
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Check says whether a model with these limits can open the sequence. Every
// Open begins with it. Errors wrap ErrUnsupported or a *sampling.FieldError
// where the cause is one of these.
func (c *SeqConfig) Check(in *Info) error {
	p := &c.Sampling
	if err := p.Check(in.Vocab); err != nil {
		return fmt.Errorf("sampling: %w", err)
	}
	if c.PromptLen < 0 {
		return fmt.Errorf("prompt length: expected at least 0, found %d", c.PromptLen)
	}
	if (p.Adjusts() || p.MinP > 0) && in.Features&step.FAdjust == 0 {
		return fmt.Errorf("%w: min-p, penalties, bias or minimum length", ErrUnsupported)
	}
	return nil
}

// CheckMix says whether a model with these limits can mix m, which may be nil, into
// a draw.
func CheckMix(m *step.Mixture, in *Info) error {
	switch {
	case m == nil:
		return nil
	case in.Features&step.FMix == 0:
		return errors.New("mixture: not offered")
	case !(m.Weight >= 0 && m.Weight <= 1):
		return fmt.Errorf("mixture: weight: expected 0 to 1, found %v", m.Weight)
	}
	if len(m.Entries) > in.Vocab {
		return fmt.Errorf("mixture: entries: expected at most %d, found %d", in.Vocab, len(m.Entries))
	}
	for _, e := range m.Entries {
		if e.ID < 0 || int(e.ID) >= in.Vocab {
			return fmt.Errorf("mixture: id %d, vocabulary %d", e.ID, in.Vocab)
		}
		if e.Logprob != e.Logprob || e.Logprob > 1 {
			return fmt.Errorf("mixture: id %d has log-probability %v", e.ID, e.Logprob)
		}
	}
	return nil
}
