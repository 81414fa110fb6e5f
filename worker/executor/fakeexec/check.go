package fakeexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
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
	adopted := make(map[step.Slot]int) // positions that slots start with
	for i := range b.Rows {
		r := &b.Rows[i]
		if q := e.open(r.Slot); q != nil && len(q.ids) == 0 && int(r.Start) <= in.MaxContext && int(r.Start)%in.PageSize == 0 {
			adopted[r.Slot] = int(r.Start)
		}
	}
	patched, err := e.checkPatches(b.Patches, adopted)
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
		if err := e.checkRow(r, patched, adopted); err != nil {
			return fmt.Errorf("row %d, slot %d: %w", i, r.Slot, err)
		}
	}
	return nil
}

func (e *Executor) checkPatches(patches []step.PagePatch, adopted map[step.Slot]int) (map[tableIndex]int32, error) {
	in := &e.cfg.Info
	limit := in.Pages // each page once, and again wherever it is adopted
	for _, n := range adopted {
		limit += n / in.PageSize
	}
	if len(patches) > limit {
		return nil, fmt.Errorf("%d patches, %d pages", len(patches), in.Pages)
	}
	entries := make(map[tableIndex]int32, len(patches))
	fresh := make(map[int32]bool, len(patches))
	for _, p := range patches {
		q := e.open(p.Slot)
		at := tableIndex{p.Slot, p.Index}
		_, twice := entries[at]
		switch {
		case q == nil:
			return nil, fmt.Errorf("patch of slot %d, which is not open", p.Slot)
		case p.Index < 0 || int(p.Index) > (in.MaxContext-1)/in.PageSize:
			return nil, fmt.Errorf("patch of slot %d: index %d", p.Slot, p.Index)
		case p.Page < 0 || int(p.Page) >= in.Pages:
			return nil, fmt.Errorf("patch of slot %d: page %d of %d", p.Slot, p.Page, in.Pages)
		case twice:
			return nil, fmt.Errorf("patch of slot %d: index %d twice", p.Slot, p.Index)
		case int(p.Index)*in.PageSize < len(q.ids):
			return nil, fmt.Errorf("patch of slot %d: index %d holds valid positions", p.Slot, p.Index)
		}
		entries[at] = p.Page
		if int(p.Index)*in.PageSize < adopted[p.Slot] {
			continue // only read
		}
		page := &e.memory.pages[p.Page]
		switch {
		case fresh[p.Page]:
			return nil, fmt.Errorf("page %d patched twice", p.Page)
		case page.refs > 0:
			return nil, fmt.Errorf("patch of slot %d: page %d is in use", p.Slot, p.Page)
		case page.lastUse > e.waited && page.lastGen != q.gen:
			return nil, fmt.Errorf("patch of slot %d: page %d is used by a step in flight", p.Slot, p.Page)
		}
		fresh[p.Page] = true
	}
	for at, page := range entries {
		if fresh[page] && int(at.index)*in.PageSize < adopted[at.slot] {
			return nil, fmt.Errorf("patch of slot %d: page %d is written by this step", at.slot, page)
		}
	}
	return entries, nil
}

func (e *Executor) checkRow(r *step.Row, patched map[tableIndex]int32, adopted map[step.Slot]int) error {
	in := &e.cfg.Info
	q := e.open(r.Slot)
	if q == nil {
		return fmt.Errorf("not open")
	}
	end := int(r.Start) + len(r.Tokens)
	switch {
	case len(r.Tokens) == 0:
		return fmt.Errorf("no tokens")
	case int(r.Start) != max(len(q.ids), adopted[r.Slot]):
		return fmt.Errorf("start %d, but %d positions are valid", r.Start, len(q.ids))
	case end > in.MaxContext:
		return fmt.Errorf("ends at %d, context %d", end, in.MaxContext)
	case len(r.Tokens) < 64 && r.Sample>>len(r.Tokens) != 0:
		return fmt.Errorf("sample mask %#x over %d tokens", r.Sample, len(r.Tokens))
	case r.Want&^(in.Features&step.Outputs) != 0:
		return fmt.Errorf("features %#x, offered %#x", r.Want, in.Features)
	case r.Want&step.FScore != 0 && int(r.Net) >= max(len(in.Nets), 1):
		return fmt.Errorf("net %d of %d", r.Net, len(in.Nets))
	case r.TopK < 0 || int(r.TopK) > in.Vocab || r.Want&step.FTopK != 0 && r.TopK == 0:
		return fmt.Errorf("top %d of %d", r.TopK, in.Vocab)
	case r.Logprobs < -1 || r.Logprobs > sampling.MaxLogprobs:
		return fmt.Errorf("%d log-probabilities", r.Logprobs)
	}
	if r.Continue {
		if err := e.checkContinue(r, q); err != nil {
			return err
		}
	}
	for _, ids := range [][]int32{r.Tokens, r.Given, r.Prefix} {
		for _, id := range ids {
			if id < 0 || int(id) >= in.Vocab {
				return fmt.Errorf("id %d, vocabulary %d", id, in.Vocab)
			}
		}
	}
	if err := executor.CheckMix(r.Mix, in); err != nil {
		return err
	}
	if err := e.checkGiven(r); err != nil {
		return err
	}
	pages := make([]int32, 0, (end-1)/in.PageSize+1)
	for i := 0; i*in.PageSize < end; i++ {
		page, ok := patched[tableIndex{r.Slot, int32(i)}]
		if !ok && i < len(q.table) {
			page, ok = q.table[i], q.table[i] >= 0
		}
		if !ok {
			return fmt.Errorf("page table entry %d is not patched", i)
		}
		pages = append(pages, page)
	}
	if n := int(r.Start); n%in.PageSize != 0 && e.memory.pages[pages[n/in.PageSize]].refs > 1 {
		return fmt.Errorf("position %d is in page %d, which other slots have too", n, pages[n/in.PageSize])
	}
	if err := e.memory.checkContext(q); err != nil {
		return err
	}
	if n := len(r.Prefix); n != 0 && n != adopted[r.Slot] || n == 0 && adopted[r.Slot] > 0 && q.cfg.Sampling.Penalizes() {
		return fmt.Errorf("prefix of %d ids, %d adopted", n, adopted[r.Slot])
	}
	return e.memory.checkAdopted(pages[:adopted[r.Slot]/in.PageSize], r.Prefix, e.waited)
}

// checkContinue checks a row that feeds what was last sampled for its slot.
func (e *Executor) checkContinue(r *step.Row, q *sequence) error {
	switch {
	case e.cfg.Info.Features&step.FContinue == 0:
		return fmt.Errorf("continue is not offered")
	case len(r.Tokens) != 1:
		return fmt.Errorf("continue with %d tokens", len(r.Tokens))
	case q.last < 0:
		return fmt.Errorf("continue, but the last position was not sampled")
	case q.cfg.Sampling.Penalizes():
		return fmt.Errorf("continue, but the sequence penalizes ids")
	}
	return nil
}

func (e *Executor) checkGiven(r *step.Row) error {
	if len(r.Given) == 0 {
		return nil
	}
	left := len(r.Tokens) - len(r.Given) // positions that may be sampled
	switch {
	case e.cfg.Info.Features&step.FGiven == 0:
		return fmt.Errorf("given ids are not offered")
	case left < 0:
		return fmt.Errorf("%d given ids for %d tokens", len(r.Given), len(r.Tokens))
	case left < 64 && r.Sample>>left != 0:
		return fmt.Errorf("sample mask %#x beside %d given ids", r.Sample, len(r.Given))
	case r.Logprobs < 0:
		return fmt.Errorf("given ids without log-probabilities")
	}
	return nil
}
