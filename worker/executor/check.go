package executor

import (
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
