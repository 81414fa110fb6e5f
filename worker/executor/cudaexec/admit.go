package cudaexec

import (
	"fmt"
	"math/bits"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor/slots"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// admit checks the whole batch and applies its patches. After an error nothing of it stays.
func (e *Executor) admit(b *step.Batch) error {
	err := e.seqs.Admit(b)
	if err == nil {
		if err = e.fits(b); err != nil {
			e.seqs.Undo()
		}
	}
	if err != nil {
		return slots.Refused(b, err)
	}
	return nil
}

// fits checks what the descriptor and the results have room for.
func (e *Executor) fits(b *step.Batch) error {
	samples, adjusted := 0, 0
	for i := range b.Rows {
		r := &b.Rows[i]
		sampled := bits.OnesCount64(r.Sample)
		samples += sampled + len(r.Given)
		adjusted += sampled * mixSize(r.Mix)
		if sl := &e.slots[r.Slot]; sampled > 0 && sl.cfg.Sampling.Adjusts() {
			adjusted += sampled * adjusts(&sl.cfg.Sampling, min(len(sl.past.tallies)+len(r.Prefix)+len(r.Tokens), e.cfg.Vocab))
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

// describe writes the step's descriptor into its ring entry and remembers what to report. The batch has been admitted.
func (e *Executor) describe(f *flight) {
	d, b := f.entry, f.batch
	f.picks, f.adjusted, f.scored = f.picks[:0], 0, false
	tokens, longest := 0, 0
	for i := range b.Rows {
		tokens, longest = tokens+len(b.Rows[i].Tokens), max(longest, len(b.Rows[i].Tokens))
	}
	form := kernels.FormOf(tokens, len(b.Rows), longest)
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
	sl, q := &e.slots[r.Slot], e.seqs.At(r.Slot)
	n, counts := len(r.Tokens), q.Penalizes
	if counts {
		sl.past.cut(int(q.Length))
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
	q.Length, q.Sampled = r.Start+int32(n), r.Sample&1 != 0
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
