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
	if len(b.Patches) > e.desc.layout.maxPatches {
		return fmt.Errorf("patches: expected at most %d, found %d", e.desc.layout.maxPatches, len(b.Patches))
	}
	for i := range b.Patches {
		if err := e.patch(&b.Patches[i]); err != nil {
			return err
		}
	}
	e.mark++
	total, samples, adjusted := 0, 0, 0
	for i := range b.Rows {
		r := &b.Rows[i]
		if err := e.admitRow(r); err != nil {
			return fmt.Errorf("row %d of slot %d: %w", i, r.Slot, err)
		}
		if total += len(r.Tokens); total > e.cfg.MaxTokens {
			return fmt.Errorf("tokens: expected at most %d in a step, found more", e.cfg.MaxTokens)
		}
		sampled := bits.OnesCount64(r.Sample)
		samples += sampled + len(r.Given)
		adjusted += sampled * mixSize(r.Mix)
		if sl := &e.slots[r.Slot]; sampled > 0 && sl.cfg.Sampling.Adjusts() {
			adjusted += sampled * adjusts(&sl.cfg.Sampling, min(len(sl.past.counts)+len(r.Prefix)+len(r.Tokens), e.cfg.Vocab))
		}
		if adjusted > e.desc.adjusts {
			return fmt.Errorf("row %d: adjusted logits: expected at most %d in a step, found up to %d", i, e.desc.adjusts, adjusted)
		}
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
	if r.Continue {
		if err := e.admitContinue(r, sl); err != nil {
			return err
		}
	} else if err := e.admitIDs("token", r.Tokens); err != nil {
		return err
	}
	for i, page := range sl.table[:pagesFor(end, e.cfg.PageSize)] {
		if page < 0 {
			return fmt.Errorf("page %d of the table is missing", i)
		}
	}
	return e.admitOutputs(r)
}

// admitStart checks where the row begins: behind the valid positions or, while there are none, behind adopted pages.
func (e *Executor) admitStart(r *step.Row, sl *slot) error {
	adopts := sl.length == 0 && r.Start > 0 && int(r.Start)%e.cfg.PageSize == 0
	switch {
	case r.Start != sl.length && !adopts:
		return fmt.Errorf("start: expected %d, found %d", sl.length, r.Start)
	case len(r.Prefix) > 0 && !adopts:
		return fmt.Errorf("prefix: expected none, found %d ids", len(r.Prefix))
	case len(r.Prefix) > 0 && len(r.Prefix) != int(r.Start), adopts && len(r.Prefix) == 0 && sl.cfg.Sampling.Penalizes():
		return fmt.Errorf("prefix: expected %d ids, found %d", r.Start, len(r.Prefix))
	}
	return e.admitIDs("prefix", r.Prefix)
}

// admitContinue checks a row that feeds what was last sampled for its slot.
func (e *Executor) admitContinue(r *step.Row, sl *slot) error {
	switch {
	case e.cfg.Depth < 2:
		return fmt.Errorf("continue: the depth is 1")
	case len(r.Tokens) != 1:
		return fmt.Errorf("continue: expected 1 token, found %d", len(r.Tokens))
	case !sl.sampled:
		return fmt.Errorf("continue: the slot's last position was not sampled")
	case sl.cfg.Sampling.Penalizes():
		return fmt.Errorf("continue: the sequence penalizes ids, which must be known")
	}
	return nil
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
	if err := executor.CheckMix(r.Mix, &e.info); err != nil {
		return err
	}
	if r.Want&step.FScore != 0 && int(r.Net) >= len(e.info.Nets) {
		return fmt.Errorf("net: expected one of %d, found number %d", len(e.info.Nets), r.Net)
	}
	if limit := min(e.cfg.Vocab, kernels.MaxTop); r.Want&step.FTopK != 0 && (r.TopK < 0 || int(r.TopK) > limit) {
		return fmt.Errorf("top-k: expected 0 to %d, found %d", limit, r.TopK)
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

// describe writes the step's descriptor into its ring entry and remembers what to report. The batch has been admitted.
func (e *Executor) describe(f *flight) {
	d, b := f.entry, f.batch
	f.picks, f.adjusted, f.scored = f.picks[:0], 0, false
	tokens, longest := 0, 0
	for i := range b.Rows {
		tokens, longest = tokens+len(b.Rows[i].Tokens), max(longest, len(b.Rows[i].Tokens))
	}
	form := e.set.Dims.FormOf(tokens, longest)
	e.attn.Reset(e.set.Dims, form, kernels.AttnRoom{Rows: e.cfg.Partials * kernels.PartialRows, Chunks: e.cfg.Partials})
	at := 0
	for i := range b.Rows {
		r := &b.Rows[i]
		n := len(r.Tokens)
		copy(d.ids[at:], r.Tokens)
		source := int32(kernels.SourceGiven)
		if r.Continue {
			source = kernels.SourceLast
		}
		for j := range n {
			d.pos[at+j], d.owner[at+j], d.source[at+j] = r.Start+int32(j), int32(r.Slot), source
		}
		e.attn.Add(at, n, int(r.Start), int(r.Slot))
		e.addSamples(f, int32(i), at)
		at += n
	}
	for i, p := range b.Patches {
		d.patches[i] = kernels.Patch{Slot: int32(p.Slot), Index: p.Index, Page: p.Page}
	}
	e.attn.Finish(e.attentionBlocks(form))
	copy(d.items, e.attn.Items)
	*d.head = kernels.StepHead{
		Step: uint64(f.ticket), Tokens: int32(at), Samples: int32(len(f.picks)), Items: int32(len(e.attn.Items)),
		Patches: int32(len(b.Patches)), Ring: int32(f.ring),
	}
}

// addSamples adds the outputs that row i wants, and moves its slot on. at is the index of its first token in the step.
func (e *Executor) addSamples(f *flight, i int32, at int) {
	r := &f.batch.Rows[i]
	sl := &e.slots[r.Slot]
	n, counts := len(r.Tokens), sl.cfg.Sampling.Penalizes()
	if counts {
		sl.past.cut(int(sl.length))
		sl.past.push(r.Prefix...)
	}
	for j, id := range r.Given {
		top := min(r.Logprobs, int32(e.cfg.Vocab))
		f.entry.samples[len(f.picks)] = kernels.Sample{
			Token: int32(at + j), Position: uint32(int(r.Start) + j + 1), Top: top, Given: id, Slot: -1,
		}
		f.picks = append(f.picks, pick{row: i, position: r.Start + int32(j) + 1, top: top, given: true})
	}
	for mask := r.Sample; mask != 0; {
		bit := bits.Len64(mask) - 1 // the highest bit is the earliest position
		mask &^= 1 << bit
		position := r.Start + int32(n-bit)
		if counts {
			sl.past.push(r.Tokens[len(sl.past.ids)-int(r.Start) : int(position-r.Start)]...)
		}
		e.addSample(f, i, at+n-1-bit, position, bit == 0)
	}
	if counts {
		sl.past.push(r.Tokens[len(sl.past.ids)-int(r.Start):]...)
	}
	sl.length = r.Start + int32(n)
	sl.sampled = r.Sample&1 != 0
}

// addSample adds one sampled position of row i. last says that the slot's next row may continue from it.
func (e *Executor) addSample(f *flight, i int32, token int, position int32, last bool) {
	r := &f.batch.Rows[i]
	sl := &e.slots[r.Slot]
	top := max(r.Logprobs, 0)
	if r.Want&step.FTopK != 0 {
		top = max(top, r.TopK)
	}
	top = min(top, int32(e.cfg.Vocab))
	listed := top // entries that the device lists
	var want uint32
	if r.Want&step.FScore != 0 {
		want |= kernels.WantScore | uint32(r.Net)<<kernels.WantNet
		if top == 0 {
			want |= kernels.WantNoTop
		}
		listed = max(listed, int32(e.cfg.Nets[r.Net].Top()))
		f.scored = true
	}
	if r.Want&step.FHidden != 0 {
		want |= kernels.WantHidden
	}
	if r.Want&step.FLogits != 0 {
		want |= kernels.WantLogits
	}
	p := &sl.cfg.Sampling
	from, mixes, n := f.adjusted, 0, 0
	var weight float32
	if m := r.Mix; m != nil {
		weight = max(m.Weight, kernels.MinMix)
		mixes = e.adjust.mix(f.entry.adjusts[from:], m, e.cfg.Vocab)
	}
	if p.Adjusts() {
		n = e.adjust.fill(f.entry.adjusts[from+mixes:], p, &sl.past, sl.cfg.PromptLen, int(position), e.cfg.Vocab)
	}
	f.adjusted += mixes + n
	s := &f.entry.samples[len(f.picks)]
	*s = kernels.Sample{
		Token: int32(token), Position: uint32(position), SeedLo: uint32(p.Seed), SeedHi: uint32(p.Seed >> 32), Model: uint32(sl.cfg.Model),
		Temperature: p.Temperature, TopP: p.TopP, TopK: p.TopK, Top: listed, Want: want, Given: -1,
		AdjustAt: int32(from), AdjustN: int32(n), MinP: p.MinP, Repetition: p.RepetitionPenalty, Frequency: p.FrequencyPenalty,
		Presence: p.PresencePenalty, Slot: -1, Mix: weight, MixN: int32(mixes),
	}
	if last {
		s.Slot = int32(r.Slot)
	}
	f.picks = append(f.picks, pick{row: i, position: position, top: top})
}
