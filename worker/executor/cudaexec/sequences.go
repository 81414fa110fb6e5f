package cudaexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// usable returns why no call can succeed any more.
func (e *Executor) usable() error {
	if e.down {
		return executor.ErrClosed
	}
	return e.failed
}

// fail ends the executor.
func (e *Executor) fail(err error) error {
	e.failed = fmt.Errorf("%w: %w", executor.ErrFailed, err)
	return e.failed
}

// Open implements executor.Executor.
func (e *Executor) Open(c executor.SeqConfig) (step.Slot, error) {
	if err := e.usable(); err != nil {
		return -1, err
	}
	if err := c.Check(&e.info); err != nil {
		return -1, fmt.Errorf("cudaexec: open: %w", err)
	}
	c.PromptLen = min(c.PromptLen, e.cfg.MaxContext) // no position is beyond
	s, err := e.seqs.Open(c.Sampling.Penalizes())
	if err != nil {
		return -1, err
	}
	sl := &e.slots[s]
	if sl.cfg = c; c.Sampling.Penalizes() {
		sl.past.reset(c.PromptLen)
	}
	e.openSlots.Add(1)
	return s, nil
}

// Truncate implements executor.Executor. Page table entries stay.
func (e *Executor) Truncate(s step.Slot, length int) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.seqs.Truncate(s, length); err != nil {
		return fmt.Errorf("cudaexec: %w", err)
	}
	return nil
}

// Close implements executor.Executor. Closing a slot that is not open does nothing. A step in flight works on the
// device's page table, which changes with the next launch at the earliest.
func (e *Executor) Close(s step.Slot) {
	if !e.down && e.seqs.Close(s, false) {
		e.openSlots.Add(-1)
	}
}
