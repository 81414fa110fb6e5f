package cpuexec

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// undo is a page table entry before a patch.
type undo struct {
	entry *int32
	page  int32
}

// Launch implements executor.Executor. It checks the batch and leaves the work
// to the step loop.
func (e *Executor) Launch(b *step.Batch) (executor.Ticket, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if e.flight != nil {
		return 0, fmt.Errorf("cpuexec: launch: step %d is in flight and the depth is 1", e.flight.batch.Step)
	}
	if err := e.admit(b); err != nil {
		// Nothing was run, so nothing of the batch may stay.
		for i := len(e.undo) - 1; i >= 0; i-- {
			*e.undo[i].entry = e.undo[i].page
		}
		return 0, fmt.Errorf("%w: step %d: %w", executor.ErrBadBatch, b.Step, err)
	}
	e.picks = e.picks[:0]
	at := int32(0)
	for i := range b.Rows {
		r := &b.Rows[i]
		n := int32(len(r.Tokens))
		e.slots[r.Slot].length = r.Start + n
		for mask := r.Sample; mask != 0; {
			bit := int32(bits.Len64(mask)) - 1 // the highest bit is the earliest position
			mask &^= 1 << bit
			e.picks = append(e.picks, pick{row: int32(i), token: at + n - 1 - bit, position: r.Start + n - bit, seq: e.slots[r.Slot].cfg})
		}
		at += n
	}
	e.fwd.gather(b, e.table)
	e.ticket++
	e.flying = flight{ticket: e.ticket, batch: b, started: time.Now()}
	e.flight = &e.flying
	e.steps.Add(1)
	e.tokens.Add(uint64(at))
	e.rows.Add(uint64(len(b.Rows)))
	e.launch <- struct{}{}
	return e.ticket, nil
}

// admit applies the patches and checks the whole batch.
func (e *Executor) admit(b *step.Batch) error {
	e.undo = e.undo[:0]
	if len(b.Rows) == 0 || len(b.Rows) > e.cfg.MaxRows {
		return fmt.Errorf("rows: expected 1 to %d, found %d", e.cfg.MaxRows, len(b.Rows))
	}
	for _, p := range b.Patches {
		sl := e.slot(p.Slot)
		if sl == nil {
			return fmt.Errorf("patch: slot %d is not open", p.Slot)
		}
		if p.Index < 0 || int(p.Index) >= len(sl.table) {
			return fmt.Errorf("patch of slot %d: index: expected 0 to %d, found %d", p.Slot, len(sl.table)-1, p.Index)
		}
		if p.Page < 0 || int(p.Page) >= e.cfg.Pages {
			return fmt.Errorf("patch of slot %d: page: expected 0 to %d, found %d", p.Slot, e.cfg.Pages-1, p.Page)
		}
		entry := &sl.table[p.Index]
		e.undo = append(e.undo, undo{entry, *entry})
		*entry = p.Page
	}
	total := 0
	e.mark++
	for i := range b.Rows {
		r := &b.Rows[i]
		if err := e.admitRow(r); err != nil {
			return fmt.Errorf("row %d of slot %d: %w", i, r.Slot, err)
		}
		if total += len(r.Tokens); total > e.cfg.MaxTokens {
			return fmt.Errorf("tokens: expected at most %d in a step, found more", e.cfg.MaxTokens)
		}
	}
	return nil
}

func (e *Executor) admitRow(r *step.Row) error {
	sl := e.slot(r.Slot)
	if sl == nil {
		return fmt.Errorf("not open")
	}
	if e.seen[r.Slot] == e.mark {
		return fmt.Errorf("a second row of the slot")
	}
	e.seen[r.Slot] = e.mark
	n := len(r.Tokens)
	if n == 0 || n > e.cfg.MaxTokens {
		return fmt.Errorf("tokens: expected 1 to %d, found %d", e.cfg.MaxTokens, n)
	}
	if r.Start != sl.length {
		return fmt.Errorf("start: expected %d, found %d", sl.length, r.Start)
	}
	end := int(r.Start) + n
	if end > e.cfg.MaxContext {
		return fmt.Errorf("positions: expected at most %d, found %d", e.cfg.MaxContext, end)
	}
	if n < 64 && r.Sample>>n != 0 {
		return fmt.Errorf("sample: expected bits below %d, found %b", n, r.Sample)
	}
	for _, id := range r.Tokens {
		if id < 0 || int(id) >= e.cfg.Vocab {
			return fmt.Errorf("token: expected 0 to %d, found %d", e.cfg.Vocab-1, id)
		}
	}
	for i, page := range sl.table[:pagesFor(end, e.cfg.PageSize)] {
		if page < 0 {
			return fmt.Errorf("page %d of the table is missing", i)
		}
	}
	if extra := r.Want &^ e.info.Features; extra != 0 {
		return fmt.Errorf("features: %b is not offered", extra)
	}
	if r.Want&step.FTopK != 0 && (r.TopK < 0 || int(r.TopK) > e.cfg.Vocab) {
		return fmt.Errorf("top-k: expected 0 to %d, found %d", e.cfg.Vocab, r.TopK)
	}
	if r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs {
		return fmt.Errorf("log-probabilities: expected -1 to %d, found %d", sampling.MaxLogprobs, r.Logprobs)
	}
	return nil
}

// compute runs the step in flight on the step loop.
func (e *Executor) compute() {
	e.fwd.run()
	e.result.Out = growOut(e.result.Out, len(e.picks))
	for at := 0; at < len(e.picks); at += headBlock {
		n := min(headBlock, len(e.picks)-at)
		e.sample(e.picks[at:at+n], e.result.Out[at:at+n])
	}
}

// sample runs the output head over at most headBlock positions.
func (e *Executor) sample(picks []pick, out []step.Out) {
	c, v := e.info.Hidden, e.cfg.Vocab
	for i := range picks {
		e.fwd.sampled(e.hidden[i*c:(i+1)*c], int(picks[i].token))
	}
	e.fwd.matmul(e.logits, e.hidden, &e.w.head, len(picks))
	for i := range picks {
		p, o := &picks[i], &out[i]
		row := &e.flying.batch.Rows[p.row]
		o.Row, o.Position, o.Hidden = p.row, p.position, o.Hidden[:0]
		if row.Want&step.FHidden != 0 {
			o.Hidden = append(o.Hidden, e.hidden[i*c:(i+1)*c]...)
		}
		e.sampler.Sample(e.logits[i*v:(i+1)*v], &p.seq.Sampling, p.seq.Model, row, o)
	}
}

func (e *Executor) table(s step.Slot) []int32 { return e.slots[s].table }
