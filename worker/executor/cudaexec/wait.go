package cudaexec

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// spinFor is how long Wait watches the step's number before it goes to sleep. Sleeping and waking costs tens of
// microseconds, which a short step would notice and a long one does not.
const spinFor = 200 * time.Microsecond

// Wait implements executor.Executor. After an error of ctx the step goes on, and Wait may be called again for the same
// ticket.
func (e *Executor) Wait(ctx context.Context, t executor.Ticket, r *step.Result) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.flight == nil || e.flight.ticket != t {
		return fmt.Errorf("cudaexec: wait: ticket %d is not in flight", t)
	}
	if e.flight.asleep || !e.watch() {
		if err := e.doze(ctx); err != nil {
			return err
		}
	}
	e.busy.Add(int64(time.Since(e.flight.started)))
	e.report(e.flight.batch, r)
	e.flight = nil
	e.flying.batch = nil
	return nil
}

// watch spins on the flag for a while and reports whether the step is done.
func (e *Executor) watch() bool {
	for start := time.Now(); ; {
		for range 64 {
			if atomic.LoadUint64(e.res.flag) == uint64(e.ticket) {
				return true
			}
		}
		if time.Since(start) > spinFor {
			return false
		}
	}
}

// doze sleeps until the step's event, on the sleeper's thread.
func (e *Executor) doze(ctx context.Context) error {
	if !e.flight.asleep {
		e.flight.asleep = true
		e.sleep <- struct{}{}
	}
	var err error
	select {
	case err = <-e.woke:
	case <-ctx.Done():
		// A step that has just ended counts, so that a late caller gets its result.
		select {
		case err = <-e.woke:
		default:
			return ctx.Err()
		}
	}
	e.flight.asleep = false
	if err != nil {
		err = &StepError{Step: e.flight.batch.Step, Layer: -1, Err: err}
	} else if got := atomic.LoadUint64(e.res.flag); got != uint64(e.ticket) {
		err = &StepError{Step: e.flight.batch.Step, Op: "publish", Layer: -1,
			Err: fmt.Errorf("the device has ended and reported step number %d instead of %d", got, e.ticket)}
	}
	if err != nil {
		e.flight = nil
		return e.fail(err)
	}
	return nil
}

// report copies the published results into the caller's buffers.
func (e *Executor) report(b *step.Batch, r *step.Result) {
	r.Out = growOut(r.Out, len(e.picks))
	for i, p := range e.picks {
		o, row, s := &r.Out[i], &b.Rows[p.row], &e.res.stats[i]
		*o = step.Out{Row: p.row, Position: p.position, Given: p.given, Top: o.Top[:0], Hidden: o.Hidden[:0], Logits: o.Logits[:0]}
		if p.given {
			e.reportGiven(o, i)
			continue
		}
		if row.Want&step.FHidden != 0 {
			o.Hidden = append(o.Hidden, e.res.hidden[i*e.model.Hidden:(i+1)*e.model.Hidden]...)
		}
		if row.Want&step.FLogits != 0 {
			o.Logits = append(o.Logits, e.res.logits[i*e.cfg.Vocab:(i+1)*e.cfg.Vocab]...)
		}
		if s.Flags != 0 {
			o.Flags |= step.FlagNaN
			continue
		}
		o.Token, o.Margin, o.Score = s.Token, s.Margin, s.Score
		if row.Want&step.FEntropy != 0 {
			o.Entropy, o.LogV = s.Entropy, e.logV()
		}
		if row.Logprobs >= 0 {
			o.Logprob = s.Logprob
		}
		e.reportTop(o, i)
	}
}

// reportTop copies the top list of output i.
func (e *Executor) reportTop(o *step.Out, i int) {
	for _, t := range e.res.top[i*kernels.MaxTop : i*kernels.MaxTop+int(e.picks[i].top)] {
		o.Top = append(o.Top, step.TopEntry{ID: t.ID, Logit: t.Logit, Logprob: t.Logit - e.res.stats[i].LSE})
	}
}

// reportGiven copies output i of a given id.
func (e *Executor) reportGiven(o *step.Out, i int) {
	s := &e.res.stats[i]
	if s.Flags != 0 {
		o.Token, o.Flags = int32(e.desc.samples[i].Given), step.FlagNaN
		return
	}
	o.Token, o.Logprob = s.Token, s.Logprob
	e.reportTop(o, i)
}

// growOut returns out with length n, keeping the buffers of its elements.
func growOut(out []step.Out, n int) []step.Out {
	out = out[:cap(out)]
	for len(out) < n {
		out = append(out, step.Out{})
	}
	return out[:n]
}
