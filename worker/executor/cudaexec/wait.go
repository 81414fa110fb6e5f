package cudaexec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Wait implements executor.Executor. After an error of ctx the step goes on, and Wait may be called again for the same
// ticket.
func (e *Executor) Wait(ctx context.Context, t executor.Ticket, r *step.Result) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.inFlight == 0 || e.oldest().ticket != t {
		return fmt.Errorf("cudaexec: wait: ticket %d is not the oldest in flight", t)
	}
	f := e.oldest()
	if err := e.waiter.wait(ctx, uint64(t), stepKind(int(f.entry.head.Tokens)), f.done, f.wait); err != nil {
		if errors.Is(err, errStopped) {
			return ctx.Err()
		}
		return e.lost(f, err)
	}
	if !f.done() {
		return e.lost(f, nil)
	}
	now := time.Now()
	e.busy.Add(int64(now.Sub(later(f.started, e.idleSince))))
	e.idleSince = now
	e.report(f, r)
	e.inFlight--
	f.batch = nil
	return nil
}

// Seen is when Wait last saw that a step was done. Its results were copied after that.
func (e *Executor) Seen() time.Time { return e.idleSince }

// Begun is when the device could begin the last step launched: the first of its graphs was enqueued. It is zero for a step
// without graphs.
func (e *Executor) Begun() time.Time { return e.begun }

// later returns the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// lost is the failure of a step whose event came with an error, or without results.
func (e *Executor) lost(f *flight, err error) error {
	failure := &StepError{Step: f.batch.Step, Layer: -1, Err: err}
	if err == nil {
		failure.Op = "publish"
		failure.Err = fmt.Errorf("the device has ended and reported step number %d instead of %d", atomic.LoadUint64(e.res.flag), f.ticket)
	}
	e.inFlight = 0
	return e.fail(failure)
}

// report copies the published results into the caller's buffers.
func (e *Executor) report(f *flight, r *step.Result) {
	res := &e.res.entries[f.ring]
	r.Out = growOut(r.Out, len(f.picks))
	for i, p := range f.picks {
		o, row, s := &r.Out[i], &f.batch.Rows[p.row], &res.stats[i]
		*o = step.Out{Row: p.row, Position: p.position, Given: p.given, Top: o.Top[:0], Hidden: o.Hidden[:0], Logits: o.Logits[:0]}
		if p.given {
			o.Token, o.Logprob = s.Token, s.Logprob
			if s.Flags != 0 {
				o.Token, o.Logprob, o.Flags = f.entry.samples[i].Given, 0, step.FlagNaN
				continue
			}
			res.copyTop(o, i, p.top)
			continue
		}
		if row.Want&step.FHidden != 0 {
			o.Hidden = append(o.Hidden, res.hidden[i*e.model.Hidden:(i+1)*e.model.Hidden]...)
		}
		if row.Want&step.FLogits != 0 {
			o.Logits = append(o.Logits, res.logits[i*e.cfg.Vocab:(i+1)*e.cfg.Vocab]...)
		}
		if s.Flags != 0 {
			o.Flags |= step.FlagNaN
			continue
		}
		o.Token, o.Margin, o.Score = s.Token, s.Margin, s.Score
		if row.Want&step.FEntropy != 0 {
			o.Entropy, o.LogV = s.Entropy, e.logV
		}
		if row.Logprobs >= 0 {
			o.Logprob = s.Logprob
		}
		res.copyTop(o, i, p.top)
	}
}

// copyTop copies the n entries of the top list of output i.
func (r *outcome) copyTop(o *step.Out, i int, n int32) {
	for _, t := range r.top[i*kernels.MaxTop : i*kernels.MaxTop+int(n)] {
		o.Top = append(o.Top, step.TopEntry{ID: t.ID, Logit: t.Logit, Logprob: t.Logit - r.stats[i].LSE})
	}
}

// growOut returns out with length n, keeping the buffers of its elements.
func growOut(out []step.Out, n int) []step.Out {
	out = out[:cap(out)]
	for len(out) < n {
		out = append(out, step.Out{})
	}
	return out[:n]
}
