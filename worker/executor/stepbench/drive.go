package stepbench

import (
	"context"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// bench is a run.
type bench struct {
	cfg   Config
	e     executor.Executor
	info  executor.Info
	model *model.Config
	seqs  []*sequence
	ids   []int32
	r     step.Result
	last  uint64 // number of the last step launched
	gaps  []time.Duration
}

// sequence is an open slot with its own run of pages.
type sequence struct {
	slot          step.Slot
	length, pages int
	first         int
}

// open opens sequences and prefills them, up to n.
func (b *bench) open(ctx context.Context, n int) error {
	for _, s := range b.seqs[:min(n, len(b.seqs))] { // a prefill may have cut one short
		if err := b.prefill(ctx, s, b.cfg.Context); err != nil {
			return err
		}
	}
	for len(b.seqs) < n {
		slot, err := b.e.Open(executor.SeqConfig{Sampling: b.cfg.Sampling})
		if err != nil {
			return err
		}
		s := &sequence{slot: slot, first: len(b.seqs) * b.each()}
		b.seqs = append(b.seqs, s)
		if err := b.prefill(ctx, s, b.cfg.Context); err != nil {
			return err
		}
	}
	return nil
}

// grow adds a row to a batch.
func (b *bench) grow(to *step.Batch, s *sequence, r step.Row) {
	r.Slot, r.Start, r.Logprobs, r.Want = s.slot, int32(s.length), -1, step.FEntropy
	s.length += len(r.Tokens)
	for ; s.pages*b.info.PageSize < s.length; s.pages++ {
		to.Patches = append(to.Patches, step.PagePatch{Slot: s.slot, Index: int32(s.pages), Page: int32(s.first + s.pages)})
	}
	to.Rows = append(to.Rows, r)
}

// cut makes a sequence shorter. Pages beyond it are patched in again when it grows.
func (b *bench) cut(s *sequence, length int) error {
	s.length, s.pages = length, (length+b.info.PageSize-1)/b.info.PageSize
	return b.e.Truncate(s.slot, length)
}

// prefill feeds n tokens in as few steps as possible; the last one samples.
func (b *bench) prefill(ctx context.Context, s *sequence, n int) error {
	for s.length < n {
		part := b.ids[s.length:min(n, s.length+b.info.MaxTokens)]
		row := step.Row{Tokens: part}
		if s.length+len(part) == n {
			row.Sample = 1
		}
		var batch step.Batch
		b.grow(&batch, s, row)
		if _, err := b.step(ctx, &batch); err != nil {
			return err
		}
	}
	return nil
}

// step launches and waits, and returns the time inside Launch.
func (b *bench) step(ctx context.Context, batch *step.Batch) (time.Duration, error) {
	ticket, launch, err := b.launch(batch)
	if err != nil {
		return launch, err
	}
	return launch, b.e.Wait(ctx, ticket, &b.r)
}

// launch numbers and launches a step.
func (b *bench) launch(batch *step.Batch) (executor.Ticket, time.Duration, error) {
	b.last++
	batch.Step = b.last
	start := time.Now()
	ticket, err := b.e.Launch(batch)
	return ticket, time.Since(start), err
}
