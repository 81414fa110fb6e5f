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
	e.picks, e.counted = e.picks[:0], e.counted[:0]
	at := int32(0)
	for i := range b.Rows {
		e.plan(int32(i), &b.Rows[i], at)
		at += int32(len(b.Rows[i].Tokens))
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

// plan notes the outputs that row i wants and moves its slot on. at is the index of
// its first token in the step.
func (e *Executor) plan(i int32, r *step.Row, at int32) {
	sl := &e.slots[r.Slot]
	if c := sl.seq.Counts; c != nil {
		c.Truncate(int(sl.length))
		c.Push(r.Prefix...)
		e.counted = append(e.counted, counted{r, c})
	}
	n := int32(len(r.Tokens))
	sl.length = r.Start + n
	for j, id := range r.Given {
		e.picks = append(e.picks, pick{row: i, token: at + int32(j), position: r.Start + int32(j) + 1, given: id, seq: sl.seq})
	}
	for mask := r.Sample; mask != 0; {
		bit := int32(bits.Len64(mask)) - 1 // the highest bit is the earliest position
		mask &^= 1 << bit
		e.picks = append(e.picks, pick{row: i, token: at + n - 1 - bit, position: r.Start + n - bit, given: -1, seq: sl.seq})
	}
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
	if err := e.admitStart(r, sl); err != nil {
		return err
	}
	end := int(r.Start) + n
	if end > e.cfg.MaxContext {
		return fmt.Errorf("positions: expected at most %d, found %d", e.cfg.MaxContext, end)
	}
	if n < 64 && r.Sample>>n != 0 {
		return fmt.Errorf("sample: expected bits below %d, found %b", n, r.Sample)
	}
	if err := e.admitIDs("token", r.Tokens); err != nil {
		return err
	}
	for i, page := range sl.table[:pagesFor(end, e.cfg.PageSize)] {
		if page < 0 {
			return fmt.Errorf("page %d of the table is missing", i)
		}
	}
	return e.admitOutputs(r)
}

// admitStart checks where the row begins: behind the valid positions or, while
// there are none, behind adopted pages. That these hold the right ids is up to the
// caller.
func (e *Executor) admitStart(r *step.Row, sl *slot) error {
	adopts := sl.length == 0 && r.Start > 0 && int(r.Start)%e.cfg.PageSize == 0
	switch {
	case r.Start != sl.length && !adopts:
		return fmt.Errorf("start: expected %d, found %d", sl.length, r.Start)
	case len(r.Prefix) > 0 && !adopts:
		return fmt.Errorf("prefix: expected none, found %d ids", len(r.Prefix))
	case len(r.Prefix) > 0 && len(r.Prefix) != int(r.Start), adopts && len(r.Prefix) == 0 && sl.seq.Counts != nil:
		return fmt.Errorf("prefix: expected %d ids, found %d", r.Start, len(r.Prefix))
	}
	return e.admitIDs("prefix", r.Prefix)
}

func (e *Executor) admitIDs(what string, ids []int32) error {
	for _, id := range ids {
		if id < 0 || int(id) >= e.cfg.Vocab {
			return fmt.Errorf("%s: expected 0 to %d, found %d", what, e.cfg.Vocab-1, id)
		}
	}
	return nil
}

// admitOutputs checks what the row wants.
func (e *Executor) admitOutputs(r *step.Row) error {
	if extra := r.Want &^ (e.info.Features & step.Outputs); extra != 0 {
		return fmt.Errorf("features: %b is not offered", extra)
	}
	if r.Want&step.FScore != 0 && int(r.Net) >= len(e.info.Nets) {
		return fmt.Errorf("net: expected one of %d, found number %d", len(e.info.Nets), r.Net)
	}
	if err := executor.CheckMix(r.Mix, &e.info); err != nil {
		return err
	}
	if r.Want&step.FTopK != 0 && (r.TopK < 0 || int(r.TopK) > e.cfg.Vocab) {
		return fmt.Errorf("top-k: expected 0 to %d, found %d", e.cfg.Vocab, r.TopK)
	}
	if r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs {
		return fmt.Errorf("log-probabilities: expected -1 to %d, found %d", sampling.MaxLogprobs, r.Logprobs)
	}
	if len(r.Given) == 0 {
		return nil
	}
	left := len(r.Tokens) - len(r.Given) // positions that may be sampled
	switch {
	case left < 0:
		return fmt.Errorf("given: expected at most %d ids, found %d", len(r.Tokens), len(r.Given))
	case left < 64 && r.Sample>>left != 0:
		return fmt.Errorf("sample: expected bits below %d beside given ids, found %b", left, r.Sample)
	case r.Logprobs < 0:
		return fmt.Errorf("given: log-probabilities are not wanted")
	}
	return e.admitIDs("given", r.Given)
}

// compute runs the step in flight on the step loop.
func (e *Executor) compute() {
	e.fwd.run()
	e.result.Out = growOut(e.result.Out, len(e.picks))
	for at := 0; at < len(e.picks); at += headBlock {
		n := min(headBlock, len(e.picks)-at)
		e.sample(e.picks[at:at+n], e.result.Out[at:at+n])
	}
	for _, c := range e.counted {
		c.push(c.row.Start + int32(len(c.row.Tokens)))
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
		if p.given >= 0 {
			e.sampler.Score(e.logits[i*v:(i+1)*v], p.given, int(row.Logprobs), o)
			continue
		}
		if p.seq.Counts != nil {
			counted{row, p.seq.Counts}.push(p.position)
		}
		if row.Want&step.FHidden != 0 {
			o.Hidden = append(o.Hidden, e.hidden[i*c:(i+1)*c]...)
		}
		e.sampler.Next(e.logits[i*v:(i+1)*v], &p.seq.Sequence, row, o)
	}
	e.score(picks, out)
}

func (e *Executor) table(s step.Slot) []int32 { return e.slots[s].table }
