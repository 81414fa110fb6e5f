package executortest

import (
	"context"
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

func (s *suite) limits(t *testing.T) {
	o := standard()
	in := s.driver(t, o).e.Info()
	if in.PageSize != o.PageSize || in.Pages < o.Pages || in.MaxSlots < o.MaxSlots || in.MaxTokens < o.MaxTokens ||
		in.MaxRows < o.MaxRows || in.MaxContext < o.MaxContext {
		t.Errorf("info %+v falls short of %+v", in, o)
	}
	if in.Vocab < 1 || in.Hidden < 1 || in.Layers < 1 || in.Depth < 1 || in.Device == "" {
		t.Errorf("info %+v is not complete", in)
	}
}

func (s *suite) slots(t *testing.T) {
	d := s.driver(t, standard())
	n := d.e.Info().MaxSlots
	seen := map[step.Slot]bool{}
	var last *seq
	for range n {
		last = d.open(greedyParams())
		if seen[last.slot] || last.slot < 0 || int(last.slot) >= n {
			t.Fatalf("slot %d is out of range or open already", last.slot)
		}
		seen[last.slot] = true
	}
	if _, err := d.e.Open(executor.SeqConfig{Sampling: greedyParams()}); !errors.Is(err, executor.ErrNoSlot) {
		t.Errorf("error %v, want ErrNoSlot", err)
	}
	d.e.Close(last.slot)
	if again := d.open(greedyParams()); again.slot != last.slot {
		t.Errorf("slot %d, want the one that was closed, %d", again.slot, last.slot)
	}
}

// reusedSlot checks that neither length nor pages survive Close.
func (s *suite) reusedSlot(t *testing.T) {
	d := s.driver(t, standard())
	want := d.prefill(d.ids(20, 1))
	var open []*seq
	for range d.e.Info().MaxSlots {
		a := d.open(greedyParams())
		d.feed(part{a, d.ids(3, 2), 0})
		open = append(open, a)
	}
	for _, a := range open {
		d.e.Close(a.slot)
	}
	a := d.open(greedyParams())
	bare := d.batch(part{a, d.ids(3, 3), 1})
	patches := bare.Patches
	bare.Patches = nil
	if _, err := d.e.Launch(bare); !errors.Is(err, executor.ErrBadBatch) {
		t.Fatalf("a row without pages: error %v, want ErrBadBatch", err)
	}
	b := d.batch(part{a, d.ids(20, 1), 1<<tail - 1})
	b.Patches = append(patches, b.Patches...)
	s.sameAll(t, "in a reused slot", d.run(b), want)
}

func (s *suite) badBatches(t *testing.T) {
	o := standard()
	o.MaxContext = 64 // below MaxTokens, so that a row can pass the one and not the other
	d := s.driver(t, o)
	in := d.e.Info()
	ids := d.ids(20, 1)
	want := d.prefill(append(ids[:20:20], d.ids(5, 2)...))
	a, other := d.open(greedyParams()), d.open(greedyParams())
	d.feed(part{a, ids, 1}, part{other, ids[:1], 1})
	closed := d.open(greedyParams())
	d.e.Close(closed.slot)
	row := func(change func(*step.Row)) *step.Batch {
		r := step.Row{Slot: a.slot, Start: 20, Tokens: d.ids(5, 2), Sample: 1, Logprobs: -1}
		change(&r)
		return &step.Batch{Rows: []step.Row{r}}
	}
	patch := func(p step.PagePatch) *step.Batch {
		b := row(func(*step.Row) {})
		b.Patches = []step.PagePatch{p}
		return b
	}
	tests := []struct {
		name  string
		batch *step.Batch
	}{
		{"no rows", &step.Batch{}},
		{"no tokens", row(func(r *step.Row) { r.Tokens, r.Sample = nil, 0 })},
		{"start too early", row(func(r *step.Row) { r.Start = 19 })},
		{"start too late", row(func(r *step.Row) { r.Start = 21 })},
		{"negative start", row(func(r *step.Row) { r.Start = -1 })},
		{"page missing", row(func(r *step.Row) { r.Tokens = d.ids(2*in.PageSize, 2) })},
		{"slot not open", row(func(r *step.Row) { r.Slot = closed.slot })},
		{"negative slot", row(func(r *step.Row) { r.Slot = -1 })},
		{"slot out of range", row(func(r *step.Row) { r.Slot = step.Slot(in.MaxSlots) })},
		{"slot twice at one position", &step.Batch{Rows: []step.Row{
			{Slot: a.slot, Start: 20, Tokens: ids[:1], Logprobs: -1}, {Slot: a.slot, Start: 20, Tokens: ids[:1], Logprobs: -1}}}},
		{"slot twice, one behind the other", &step.Batch{Rows: []step.Row{
			{Slot: a.slot, Start: 20, Tokens: ids[:1], Logprobs: -1}, {Slot: a.slot, Start: 21, Tokens: ids[:1], Logprobs: -1}}}},
		{"negative id", row(func(r *step.Row) { r.Tokens = []int32{-1} })},
		{"id of a padded row", row(func(r *step.Row) { r.Tokens = []int32{int32(in.Vocab)} })},
		{"sample before the row", row(func(r *step.Row) { r.Sample = 1 << 5 })},
		{"unknown feature", row(func(r *step.Row) { r.Want = 1 << 31 })},
		{"negative top-k", row(func(r *step.Row) { r.Want, r.TopK = step.FTopK, -1 })},
		{"top-k beyond the vocabulary", row(func(r *step.Row) { r.Want, r.TopK = step.FTopK, int32(in.Vocab)+1 })},
		{"too many log-probabilities", row(func(r *step.Row) { r.Logprobs = 1 << 20 })},
		{"too many tokens", row(func(r *step.Row) { r.Tokens = d.ids(in.MaxTokens+1, 2) })},
		{"context exceeded", &step.Batch{
			Patches: manyPatches(a.slot, in), Rows: []step.Row{{Slot: a.slot, Start: 20, Tokens: d.ids(in.MaxContext-19, 2), Logprobs: -1}}}},
		{"page out of range", patch(step.PagePatch{Slot: a.slot, Index: 1, Page: int32(in.Pages)})},
		{"negative page", patch(step.PagePatch{Slot: a.slot, Index: 1, Page: -1})},
		{"patch index out of range", patch(step.PagePatch{Slot: a.slot, Index: 1 << 30, Page: 0})},
		{"patch of a closed slot", patch(step.PagePatch{Slot: closed.slot, Index: 0, Page: 0})},
		{"a good patch with a bad row", &step.Batch{
			Patches: []step.PagePatch{{Slot: a.slot, Index: 0, Page: d.free[5]}, {Slot: a.slot, Index: 1, Page: d.free[6]}},
			Rows:    []step.Row{{Slot: a.slot, Start: 19, Tokens: ids[:1], Logprobs: -1}}}},
		{"a good row with a bad row", &step.Batch{Rows: []step.Row{
			{Slot: other.slot, Start: 1, Tokens: ids[:1], Logprobs: -1}, {Slot: a.slot, Start: 0, Tokens: ids[:1], Logprobs: -1}}}},
	}
	for _, tc := range tests {
		if _, err := d.e.Launch(tc.batch); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("%s: error %v, want ErrBadBatch", tc.name, err)
		}
	}
	s.sameAll(t, "after refusals", d.feed(part{a, d.ids(5, 2), 1<<5 - 1}), want[tail-5:])
}

// manyPatches fills a whole page table after the two pages in use.
func manyPatches(slot step.Slot, in executor.Info) []step.PagePatch {
	var out []step.PagePatch
	for i := 2; i < (in.MaxContext+in.PageSize-1)/in.PageSize; i++ {
		out = append(out, step.PagePatch{Slot: slot, Index: int32(i), Page: int32(i % in.Pages)})
	}
	return out
}

func (s *suite) badTruncate(t *testing.T) {
	d := s.driver(t, standard())
	a := d.open(greedyParams())
	d.feed(part{a, d.ids(5, 1), 1})
	for _, n := range []int{-1, 6, 1 << 40} {
		if err := d.e.Truncate(a.slot, n); err == nil {
			t.Errorf("truncate to %d of 5: no error", n)
		}
	}
	for _, slot := range []step.Slot{-1, a.slot + 1, 1 << 20} {
		if err := d.e.Truncate(slot, 0); err == nil {
			t.Errorf("truncate slot %d: no error", slot)
		}
	}
	if err := d.e.Truncate(a.slot, 5); err != nil {
		t.Errorf("truncate to the present length: %v", err)
	}
	d.feed(part{a, d.ids(5, 1), 1})
}

// waitContext checks that a wait given up does not lose the step.
func (s *suite) waitContext(t *testing.T) {
	want := s.driver(t, standard()).prefill(s.driver(t, standard()).ids(30, 1))
	d := s.driver(t, standard())
	a := d.open(greedyParams())
	ticket, err := d.e.Launch(d.batch(part{a, d.ids(30, 1), 1<<tail - 1}))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var r step.Result
	switch err := d.e.Wait(ctx, ticket, &r); {
	case errors.Is(err, context.Canceled):
		if err := d.e.Wait(context.Background(), ticket, &r); err != nil {
			t.Fatalf("second wait: %v", err)
		}
	case err != nil: // no error: the step was done already
		t.Fatalf("error %v, want none or context.Canceled", err)
	}
	s.sameAll(t, "after a wait given up", r.Out, want)
	if err := d.e.Wait(context.Background(), ticket, &r); err == nil {
		t.Error("waiting twice for one ticket: no error")
	}
}

func (s *suite) depth(t *testing.T) {
	d := s.driver(t, standard())
	depth := d.e.Info().Depth
	var seqs []*seq
	for range d.e.Info().MaxSlots {
		seqs = append(seqs, d.open(greedyParams()))
	}
	if depth >= len(seqs) {
		t.Skip("more depth than slots")
	}
	var tickets []executor.Ticket
	for i := range depth {
		ticket, err := d.e.Launch(d.batch(part{seqs[i], d.ids(4, i), 1}))
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	extra := d.batch(part{seqs[depth], d.ids(4, depth), 1})
	if _, err := d.e.Launch(extra); err == nil {
		t.Error("one launch beyond the depth: no error")
	}
	for _, ticket := range tickets {
		if err := d.e.Wait(context.Background(), ticket, &d.res); err != nil {
			t.Fatal(err)
		}
	}
	d.run(extra)
}

func (s *suite) stats(t *testing.T) {
	d := s.driver(t, standard())
	a, b := d.open(greedyParams()), d.open(greedyParams())
	d.feed(part{a, d.ids(7, 1), 0}, part{b, d.ids(3, 1), 1})
	d.feed(part{a, d.ids(1, 1), 1})
	d.e.Close(b.slot)
	st := d.e.Stats()
	if st.Steps != 2 || st.Tokens != 11 || st.Rows != 3 || st.OpenSlots != 1 || st.StepTime <= 0 {
		t.Errorf("stats %+v, want 2 steps, 11 tokens, 3 rows, 1 slot", st)
	}
}

func (s *suite) shutdown(t *testing.T) {
	d := s.driver(t, standard())
	a := d.open(greedyParams())
	b := d.batch(part{a, d.ids(30, 1), 1})
	ticket, err := d.e.Launch(b)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.e.Shutdown(); err != nil {
			t.Fatalf("shutdown: %v", err)
		}
	}
	if _, err := d.e.Open(executor.SeqConfig{Sampling: greedyParams()}); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("open: error %v, want ErrClosed", err)
	}
	if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("launch: error %v, want ErrClosed", err)
	}
	if err := d.e.Truncate(a.slot, 0); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("truncate: error %v, want ErrClosed", err)
	}
	if err := d.e.Wait(context.Background(), ticket, &d.res); !errors.Is(err, executor.ErrClosed) {
		t.Errorf("wait: error %v, want ErrClosed", err)
	}
	d.e.Close(a.slot)
}
