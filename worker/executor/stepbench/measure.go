package stepbench

import (
	"context"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// again runs a shape once more.
func (b *bench) again(ctx context.Context, s Shape) error {
	if s.Rows > 0 {
		return b.steps(ctx, s, 1, 0, nil)
	}
	if err := b.cut(b.seqs[0], 0); err != nil {
		return err
	}
	return b.prefill(ctx, b.seqs[0], s.Tokens)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// seen is when the results of the step that was waited for were there: for an executor that cannot tell, now.
func (b *bench) seen() time.Time {
	if e, ok := b.e.(interface{ Seen() time.Time }); ok {
		return e.Seen()
	}
	return time.Now()
}

// begun is when the device could begin the step that was launched just now: for an executor that cannot tell, when it
// was launched.
func (b *bench) begun(launched time.Time) time.Time {
	if e, ok := b.e.(interface{ Begun() time.Time }); ok && !e.Begun().IsZero() {
		return e.Begun()
	}
	return launched
}

// gap notes how long after the results of a step the next one was launched.
func (b *bench) gap(seen, launched time.Time) { b.gaps = append(b.gaps, max(0, launched.Sub(seen))) }

// steps repeats a step by cutting its tokens off again.
func (b *bench) steps(ctx context.Context, s Shape, warm, rounds int, note func(step, launch time.Duration)) error {
	var batch step.Batch
	var seen time.Time
	for i := range warm + rounds {
		batch = step.Batch{Rows: batch.Rows[:0], Patches: batch.Patches[:0]}
		for _, q := range b.seqs[:s.Rows] {
			if err := b.cut(q, b.cfg.Context); err != nil {
				return err
			}
			b.grow(&batch, q, step.Row{Tokens: b.ids[:s.Tokens], Sample: 1})
		}
		start := time.Now()
		launch, err := b.step(ctx, &batch)
		if err != nil {
			return err
		}
		if i >= warm {
			note(time.Since(start), launch)
			b.gap(seen, b.begun(start.Add(launch)))
		}
		seen = b.seen()
	}
	return nil
}

// ahead decodes with the next step launched before the results of one are known.
func (b *bench) ahead(ctx context.Context, s Shape, warm, rounds int, note func(step, launch time.Duration)) error {
	var batches [2]step.Batch
	launch := func(i int) (executor.Ticket, time.Duration, error) {
		batch := &batches[i%2]
		*batch = step.Batch{Rows: batch.Rows[:0], Patches: batch.Patches[:0]}
		for _, q := range b.seqs[:s.Rows] {
			b.grow(batch, q, step.Row{Tokens: b.ids[:1], Continue: i > 0, Sample: 1})
		}
		return b.launch(batch)
	}
	for _, q := range b.seqs[:s.Rows] {
		if err := b.cut(q, b.cfg.Context); err != nil {
			return err
		}
	}
	ticket, _, err := launch(0)
	if err != nil {
		return err
	}
	last := time.Now()
	for i := range warm + rounds {
		next, took, err := launch(i + 1)
		if err != nil {
			return err
		}
		launched := b.begun(time.Now())
		if err := b.e.Wait(ctx, ticket, &b.r); err != nil {
			return err
		}
		now := time.Now()
		if i >= warm {
			b.gap(b.seen(), launched)
		}
		if i >= warm {
			note(now.Sub(last), took)
		}
		ticket, last = next, now
	}
	return b.e.Wait(ctx, ticket, &b.r)
}

// prefills repeats a whole prefill, fewer times: it is long.
func (b *bench) prefills(ctx context.Context, s Shape, warm, rounds int, note func(step, launch time.Duration)) error {
	q := b.seqs[0]
	for i := range min(warm, 2) + max(rounds/4, 5) {
		if err := b.cut(q, 0); err != nil {
			return err
		}
		start := time.Now()
		if err := b.prefill(ctx, q, s.Tokens); err != nil {
			return err
		}
		if i >= min(warm, 2) {
			note(time.Since(start), 0)
		}
	}
	return nil
}

// phases asks the executor for the parts of the last step.
func (b *bench) phases(ctx context.Context, line *Line) error {
	p, ok := b.e.(interface {
		Phases(context.Context) (map[string]time.Duration, error)
	})
	if !b.cfg.Phases || !ok {
		return nil
	}
	parts, err := p.Phases(ctx)
	if err != nil {
		return err
	}
	line.Phases = map[string]float64{}
	for name, d := range parts {
		line.Phases[name] = ms(d)
	}
	return nil
}
