package executortest

import (
	"errors"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// table is the page table of a sequence, collected from its patches.
type table []int32

// collect adds the patches of a slot to a table.
func (tb table) collect(b *step.Batch, slot step.Slot) table {
	for _, p := range b.Patches {
		if p.Slot == slot {
			tb = append(tb, p.Page)
		}
	}
	return tb
}

// adoptive opens a sequence that will begin behind the first n pages of a table.
// The patches go into the batch of its first row.
func (d *driver) adoptive(c executor.SeqConfig, from table, n int) (*seq, []step.PagePatch) {
	d.t.Helper()
	a := d.openWith(c)
	a.pages, a.length = n, n*d.e.Info().PageSize
	var patches []step.PagePatch
	for i, page := range from[:n] {
		patches = append(patches, step.PagePatch{Slot: a.slot, Index: int32(i), Page: page})
	}
	return a, patches
}

// adopts checks that slots which begin with the pages of others go on as if they
// had computed them, while the others go on too or have left.
func (s *suite) adopts(t *testing.T) {
	ids := s.driver(t, standard()).ids(70, 6) // four pages and a bit
	want := s.driver(t, standard()).prefill(ids)
	d := s.driver(t, standard())
	d.needs(step.FAdopt, "adopted pages")

	a := d.open(greedyParams())
	b := d.batch(part{a, ids[:60], 0}) // fills three pages
	pages := table{}.collect(b, a.slot)
	d.run(b)
	a.length = 60
	// One of two adopts three pages, the other two, in one step with the writer.
	x, first := d.adoptive(executor.SeqConfig{Sampling: greedyParams()}, pages, 3)
	y, second := d.adoptive(executor.SeqConfig{Sampling: greedyParams()}, pages, 2)
	both := d.batch(part{x, ids[48:], 1<<tail - 1}, part{a, ids[60:], 1<<tail - 1}, part{y, ids[32:40], 0})
	both.Patches = append(both.Patches, append(first, second...)...)
	out := d.run(both)
	if len(out) != 2*tail {
		t.Fatalf("%d outputs, want %d", len(out), 2*tail)
	}
	s.sameAll(t, "adopted three pages", out[:tail], want)
	s.sameAll(t, "beside two that adopt", out[tail:], want)
	// The writer leaves; one that adopted goes on, also after a cut to a page's start.
	d.e.Close(a.slot)
	y.length = 40
	s.sameAll(t, "adopted two pages", d.feed(part{y, ids[40:], 1<<tail - 1}), want)
	if err := d.e.Truncate(y.slot, 48); err != nil {
		t.Fatal(err)
	}
	y.length = 48
	s.sameAll(t, "adopted two pages, cut and fed again", d.feed(part{y, ids[48:], 1<<tail - 1}), want)
	d.e.Close(x.slot)
	// Cut to nothing, a slot may adopt again.
	if err := d.e.Truncate(y.slot, 0); err != nil {
		t.Fatal(err)
	}
	y.length = 16
	s.sameAll(t, "its own first page", d.feed(part{y, ids[16:], 1<<tail - 1}), want)
}

// adoptsCounted checks that the ids of adopted positions count for penalties.
func (s *suite) adoptsCounted(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FAdopt|step.FAdjust, "adopted pages with adjusted logits")
	p := sampling.Params{FrequencyPenalty: -2, MaxTokens: 1 << 20, Logprobs: -1}
	cfg := executor.SeqConfig{Sampling: p, PromptLen: 20}
	ids := d.ids(50, 8)
	for i := 20; i < 32; i++ {
		ids[i] = 5 // all but certain to follow from here, as long as it is counted
	}
	straight := d.openWith(cfg)
	b := d.batch(part{straight, ids, 0b111})
	pages := table{}.collect(b, straight.slot)
	want := d.run(b)

	bad := map[string][]int32{
		"no prefix": nil, "short": ids[:31], "long": ids[:33],
		"negative id":        append([]int32{-1}, ids[1:32]...),
		"id of a padded row": append([]int32{int32(d.e.Info().Vocab)}, ids[1:32]...),
	}
	a, patches := d.adoptive(cfg, pages, 2)
	again := d.batch(part{a, ids[32:], 0b111})
	again.Patches = append(again.Patches, patches...)
	for name, prefix := range bad {
		again.Rows[0].Prefix = prefix
		if _, err := d.e.Launch(again); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("%s: error %v, want ErrBadBatch", name, err)
		}
	}
	again.Rows[0].Prefix = slices.Clone(ids[:32])
	s.sameAll(t, "adopted and penalized", d.run(again), want)
	// Cut into the adopted ids: the rest of them still counts.
	if err := d.e.Truncate(a.slot, 32); err != nil {
		t.Fatal(err)
	}
	a.length = 32
	s.sameAll(t, "cut and fed again", d.feed(part{a, ids[32:], 0b111}), want)
}

// badAdoptions checks where a row may start.
func (s *suite) badAdoptions(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FAdopt, "adopted pages")
	size := d.e.Info().PageSize
	ids := d.ids(3*size, 8)
	a := d.open(greedyParams())
	b := d.batch(part{a, ids, 0})
	pages := table{}.collect(b, a.slot)
	d.run(b)
	tests := []struct {
		name   string
		change func(*step.Batch)
	}{
		{"inside a page", func(b *step.Batch) { b.Rows[0].Start++ }},
		{"negative", func(b *step.Batch) { b.Rows[0].Start = int32(-size) }},
		{"beyond the context", func(b *step.Batch) { b.Rows[0].Start = int32(d.e.Info().MaxContext) }},
		{"a page is missing", func(b *step.Batch) { b.Patches = b.Patches[:len(b.Patches)-1] }},
		{"prefix of another length", func(b *step.Batch) { b.Rows[0].Prefix = ids[:3] }},
	}
	x, patches := d.adoptive(executor.SeqConfig{Sampling: greedyParams()}, pages, 2)
	own := d.batch(part{x, ids[2*size:], 1})
	for _, tc := range tests {
		b := &step.Batch{Step: own.Step, Rows: slices.Clone(own.Rows), Patches: append(slices.Clone(own.Patches), patches...)}
		tc.change(b)
		if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("%s: error %v, want ErrBadBatch", tc.name, err)
		}
	}
	own.Patches = append(own.Patches, patches...)
	d.run(own)
	// A slot with valid positions cannot adopt any more.
	later := d.batch(part{x, ids[:1], 1})
	later.Rows[0].Start = int32(4 * size)
	later.Patches = append(later.Patches, step.PagePatch{Slot: x.slot, Index: 3, Page: pages[0]}, step.PagePatch{Slot: x.slot, Index: 4, Page: pages[1]})
	if _, err := d.e.Launch(later); !errors.Is(err, executor.ErrBadBatch) {
		t.Errorf("behind valid positions: error %v, want ErrBadBatch", err)
	}
}
