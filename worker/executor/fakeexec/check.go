package fakeexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// tableIndex is an entry of a slot's page table.
type tableIndex struct {
	slot  step.Slot
	index int32
}

// check verifies every rule of step.Batch without changing anything.
func (e *Executor) check(b *step.Batch) error {
	in := &e.cfg.Info
	switch {
	case len(e.flights) >= in.Depth:
		return fmt.Errorf("%d steps in flight, depth %d", len(e.flights), in.Depth)
	case b.Step != e.step+1:
		return fmt.Errorf("step follows %d", e.step)
	case len(b.Rows) < 1 || len(b.Rows) > in.MaxRows:
		return fmt.Errorf("%d rows, want 1 to %d", len(b.Rows), in.MaxRows)
	case b.Tokens() > in.MaxTokens:
		return fmt.Errorf("%d tokens, limit %d", b.Tokens(), in.MaxTokens)
	}
	patched, err := e.checkPatches(b.Patches)
	if err != nil {
		return err
	}
	seen := make(map[step.Slot]bool, len(b.Rows))
	for i := range b.Rows {
		r := &b.Rows[i]
		if seen[r.Slot] {
			return fmt.Errorf("row %d: slot %d twice", i, r.Slot)
		}
		seen[r.Slot] = true
		if err := e.checkRow(r, patched); err != nil {
			return fmt.Errorf("row %d, slot %d: %w", i, r.Slot, err)
		}
	}
	return nil
}

func (e *Executor) checkPatches(patches []step.PagePatch) (map[tableIndex]bool, error) {
	in := &e.cfg.Info
	if len(patches) > in.Pages {
		return nil, fmt.Errorf("%d patches, %d pages", len(patches), in.Pages)
	}
	entries := make(map[tableIndex]bool, len(patches))
	pages := make(map[int32]bool, len(patches))
	for _, p := range patches {
		q := e.open(p.Slot)
		switch {
		case q == nil:
			return nil, fmt.Errorf("patch of slot %d, which is not open", p.Slot)
		case p.Index < 0 || int(p.Index) > (in.MaxContext-1)/in.PageSize:
			return nil, fmt.Errorf("patch of slot %d: index %d", p.Slot, p.Index)
		case p.Page < 0 || int(p.Page) >= in.Pages:
			return nil, fmt.Errorf("patch of slot %d: page %d of %d", p.Slot, p.Page, in.Pages)
		case entries[tableIndex{p.Slot, p.Index}]:
			return nil, fmt.Errorf("patch of slot %d: index %d twice", p.Slot, p.Index)
		case pages[p.Page]:
			return nil, fmt.Errorf("page %d patched twice", p.Page)
		case int(p.Index)*in.PageSize < len(q.ids):
			return nil, fmt.Errorf("patch of slot %d: index %d holds valid positions", p.Slot, p.Index)
		}
		page := &e.memory.pages[p.Page]
		if page.gen != 0 {
			return nil, fmt.Errorf("patch of slot %d: page %d is in use by generation %d", p.Slot, p.Page, page.gen)
		}
		if page.lastUse > e.waited && page.lastGen != q.gen {
			return nil, fmt.Errorf("patch of slot %d: page %d is used by a step in flight", p.Slot, p.Page)
		}
		entries[tableIndex{p.Slot, p.Index}] = true
		pages[p.Page] = true
	}
	return entries, nil
}

func (e *Executor) checkRow(r *step.Row, patched map[tableIndex]bool) error {
	in := &e.cfg.Info
	q := e.open(r.Slot)
	if q == nil {
		return fmt.Errorf("not open")
	}
	end := int(r.Start) + len(r.Tokens)
	switch {
	case len(r.Tokens) == 0:
		return fmt.Errorf("no tokens")
	case int(r.Start) != len(q.ids):
		return fmt.Errorf("start %d, but %d positions are valid", r.Start, len(q.ids))
	case end > in.MaxContext:
		return fmt.Errorf("ends at %d, context %d", end, in.MaxContext)
	case len(r.Tokens) < 64 && r.Sample>>len(r.Tokens) != 0:
		return fmt.Errorf("sample mask %#x over %d tokens", r.Sample, len(r.Tokens))
	case r.Want&^in.Features != 0:
		return fmt.Errorf("features %#x, offered %#x", r.Want, in.Features)
	case r.TopK < 0 || int(r.TopK) > in.Vocab || r.Want&step.FTopK != 0 && r.TopK == 0:
		return fmt.Errorf("top %d of %d", r.TopK, in.Vocab)
	case r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs:
		return fmt.Errorf("%d log-probabilities", r.Logprobs)
	}
	for _, id := range r.Tokens {
		if id < 0 || int(id) >= in.Vocab {
			return fmt.Errorf("id %d, vocabulary %d", id, in.Vocab)
		}
	}
	for i := 0; i*in.PageSize < end; i++ {
		if (i >= len(q.table) || q.table[i] < 0) && !patched[tableIndex{r.Slot, int32(i)}] {
			return fmt.Errorf("page table entry %d is not patched", i)
		}
	}
	return e.memory.checkContext(q)
}
