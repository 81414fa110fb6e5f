package cudaexec

import (
	"fmt"
	"math/bits"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// undo is a page table entry before a patch.
type undo struct {
	entry *int32
	page  int32
}

// admit applies the patches to the host's tables and checks the whole batch. After an error nothing of it stays.
func (e *Executor) admit(b *step.Batch) (err error) {
	e.undo = e.undo[:0]
	defer func() {
		if err == nil {
			return
		}
		for i := len(e.undo) - 1; i >= 0; i-- {
			*e.undo[i].entry = e.undo[i].page
		}
		err = fmt.Errorf("%w: step %d: %w", executor.ErrBadBatch, b.Step, err)
	}()
	if len(b.Rows) == 0 || len(b.Rows) > e.cfg.MaxRows {
		return fmt.Errorf("rows: expected 1 to %d, found %d", e.cfg.MaxRows, len(b.Rows))
	}
	if len(b.Patches) > len(e.desc.patches) {
		return fmt.Errorf("patches: expected at most %d, found %d", len(e.desc.patches), len(b.Patches))
	}
	for i := range b.Patches {
		if err := e.patch(&b.Patches[i]); err != nil {
			return err
		}
	}
	e.mark++
	total, samples := 0, 0
	for i := range b.Rows {
		r := &b.Rows[i]
		if err := e.admitRow(r); err != nil {
			return fmt.Errorf("row %d of slot %d: %w", i, r.Slot, err)
		}
		if total += len(r.Tokens); total > e.cfg.MaxTokens {
			return fmt.Errorf("tokens: expected at most %d in a step, found more", e.cfg.MaxTokens)
		}
		samples += bits.OnesCount64(r.Sample)
		if r.Want&step.FLogits != 0 && samples > e.res.logitRows {
			return fmt.Errorf("row %d: logits: expected among the first %d sampled positions", i, e.res.logitRows)
		}
	}
	return nil
}

func (e *Executor) patch(p *step.PagePatch) error {
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
	if limit := min(e.cfg.Vocab, kernels.MaxTop); r.Want&step.FTopK != 0 && (r.TopK < 0 || int(r.TopK) > limit) {
		return fmt.Errorf("top-k: expected 0 to %d, found %d", limit, r.TopK)
	}
	if r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs {
		return fmt.Errorf("log-probabilities: expected -1 to %d, found %d", sampling.MaxLogprobs, r.Logprobs)
	}
	return nil
}

// describe writes the step's descriptor and remembers what to report. The batch has been admitted.
func (e *Executor) describe(b *step.Batch) {
	d := e.desc
	e.picks = e.picks[:0]
	e.attn.Reset(e.set.Dims, e.cfg.Partials)
	at := 0
	for i := range b.Rows {
		r := &b.Rows[i]
		n, sl := len(r.Tokens), &e.slots[r.Slot]
		copy(d.ids[at:], r.Tokens)
		for j := range n {
			d.pos[at+j], d.owner[at+j] = r.Start+int32(j), int32(r.Slot)
		}
		e.attn.Add(at, n, int(r.Start), int(r.Slot))
		for mask := r.Sample; mask != 0; {
			bit := bits.Len64(mask) - 1 // the highest bit is the earliest position
			mask &^= 1 << bit
			e.addSample(int32(i), r, at+n-1-bit, r.Start+int32(n-bit), &sl.cfg)
		}
		sl.length = r.Start + int32(n)
		at += n
	}
	for i, p := range b.Patches {
		d.patches[i] = kernels.Patch{Slot: int32(p.Slot), Index: p.Index, Page: p.Page}
	}
	copy(d.items, e.attn.Items)
	copy(d.combines, e.attn.Combines)
	*d.head = kernels.StepHead{
		Step: uint64(e.ticket), Tokens: int32(at), Samples: int32(len(e.picks)), Items: int32(len(e.attn.Items)),
		Combines: int32(len(e.attn.Combines)), Patches: int32(len(b.Patches)),
	}
}

func (e *Executor) addSample(row int32, r *step.Row, token int, position int32, cfg *executor.SeqConfig) {
	top := max(r.Logprobs, 0)
	if r.Want&step.FTopK != 0 {
		top = max(top, r.TopK)
	}
	top = min(top, int32(e.cfg.Vocab))
	var want uint32
	if r.Want&step.FScore != 0 {
		want |= kernels.WantScore
	}
	if r.Want&step.FHidden != 0 {
		want |= kernels.WantHidden
	}
	if r.Want&step.FLogits != 0 {
		want |= kernels.WantLogits
	}
	p := &cfg.Sampling
	e.desc.samples[len(e.picks)] = kernels.Sample{
		Token: int32(token), Position: uint32(position), SeedLo: uint32(p.Seed), SeedHi: uint32(p.Seed >> 32), Model: uint32(cfg.Model),
		Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, Top: top, Want: want,
	}
	e.picks = append(e.picks, pick{row: row, position: position, top: top})
}
