package slots

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// limits are those of the tests: four slots of four pages of eight positions.
func limits() executor.Info {
	return executor.Info{
		Vocab: 50, PageSize: 8, Pages: 20, MaxSlots: 4, MaxTokens: 20, MaxRows: 3, MaxContext: 32, Nets: []string{"net"},
		Features: step.FEntropy | step.FTopK | step.FScore | step.FGiven | step.FAdopt | step.FContinue | step.FMix,
	}
}

// patched are patches for the first n pages of a slot.
func patched(s step.Slot, n int) (out []step.PagePatch) {
	for i := range n {
		out = append(out, step.PagePatch{Slot: s, Index: int32(i), Page: int32(4*int(s) + i)})
	}
	return out
}

// open opens a slot whose first n positions, in whole pages, are valid.
func open(t *testing.T, s *Set, penalizes bool, n int) step.Slot {
	t.Helper()
	slot, err := s.Open(penalizes)
	if err != nil {
		t.Fatal(err)
	}
	q := s.At(slot)
	for n > int(q.Length) {
		part := min(n-int(q.Length), s.in.MaxTokens)
		b := &step.Batch{Patches: patched(slot, s.pages(n)), Rows: []step.Row{{Slot: slot, Start: q.Length, Tokens: make([]int32, part), Logprobs: -1}}}
		if err := s.Admit(b); err != nil {
			t.Fatal(err)
		}
		q.Length += int32(part)
		q.Sampled = true
	}
	return slot
}

// row is a good row of a slot of 10 positions, changed.
func row(change func(*step.Row)) *step.Batch {
	r := step.Row{Start: 10, Tokens: []int32{1, 2, 3}, Sample: 1, Logprobs: -1}
	change(&r)
	return &step.Batch{Step: 7, Rows: []step.Row{r}}
}

func TestAdmit(t *testing.T) {
	patch := func(p step.PagePatch) *step.Batch {
		b := row(func(*step.Row) {})
		b.Patches = []step.PagePatch{p}
		return b
	}
	two := func(a, b step.Slot) *step.Batch {
		out := &step.Batch{}
		for _, s := range []step.Slot{a, b} {
			out.Rows = append(out.Rows, step.Row{Slot: s, Start: 10, Tokens: []int32{1}, Logprobs: -1})
		}
		return out
	}
	none := func(*step.Row) {}
	mix := &step.Mixture{Weight: 0.5, Entries: []step.TopEntry{{ID: 3}}}
	// Slot 0 has 10 positions, 1 has as many and penalizes, 2 has none and penalizes, 3 is closed.
	for name, tc := range map[string]struct {
		b    *step.Batch
		want string // of the error; "" for none
	}{
		"good":                    {row(none), ""},
		"good, to the page's end": {row(func(r *step.Row) { r.Tokens = make([]int32, 6) }), ""},
		"good features":           {row(func(r *step.Row) { r.Want, r.TopK, r.Logprobs, r.Mix = step.FTopK|step.FScore, 9, 20, mix }), ""},
		"good given":              {row(func(r *step.Row) { r.Given, r.Logprobs = []int32{4, 5}, 0 }), ""},
		"good continue":           {row(func(r *step.Row) { r.Tokens, r.Continue = []int32{-5}, true }), ""},
		"good adoption":           {row(func(r *step.Row) { r.Slot, r.Start, r.Prefix = 2, 8, make([]int32, 8) }), ""},
		"no rows":                 {&step.Batch{}, "rows: expected 1 to 3, found 0"},
		"many rows":               {&step.Batch{Rows: make([]step.Row, 4)}, "rows: expected 1 to 3, found 4"},
		"closed":                  {row(func(r *step.Row) { r.Slot = 3 }), "not open"},
		"negative slot":           {row(func(r *step.Row) { r.Slot = -1 }), "not open"},
		"slot out of range":       {row(func(r *step.Row) { r.Slot = 4 }), "not open"},
		"twice":                   {two(0, 0), "a second row of the slot"},
		"no tokens":               {row(func(r *step.Row) { r.Tokens, r.Sample = nil, 0 }), "tokens: expected 1 to 20, found 0"},
		"many tokens":             {row(func(r *step.Row) { r.Tokens = make([]int32, 21) }), "tokens: expected 1 to 20, found 21"},
		"many tokens together": {&step.Batch{Patches: patched(2, 2), Rows: []step.Row{
			{Start: 10, Tokens: make([]int32, 6), Logprobs: -1}, {Slot: 1, Start: 10, Tokens: make([]int32, 6), Logprobs: -1}, {Slot: 2, Tokens: make([]int32, 9), Logprobs: -1},
		}}, "tokens: expected at most 20 in a step"},
		"early start":                {row(func(r *step.Row) { r.Start = 9 }), "start: expected 10, found 9"},
		"late start":                 {row(func(r *step.Row) { r.Start = 16 }), "start: expected 10, found 16"},
		"context":                    {row(func(r *step.Row) { r.Slot, r.Start, r.Tokens, r.Prefix = 2, 24, make([]int32, 9), make([]int32, 24) }), "positions: expected at most 32, found 33"},
		"sample before the row":      {row(func(r *step.Row) { r.Sample = 8 }), "sample: expected bits below 3"},
		"negative id":                {row(func(r *step.Row) { r.Tokens[1] = -1 }), "token: expected 0 to 49, found -1"},
		"padded id":                  {row(func(r *step.Row) { r.Tokens[2] = 50 }), "token: expected 0 to 49, found 50"},
		"page missing":               {row(func(r *step.Row) { r.Tokens = make([]int32, 7) }), "page 2 of the table is missing"},
		"prefix of valid positions":  {row(func(r *step.Row) { r.Prefix = make([]int32, 10) }), "prefix: expected none"},
		"adoption between pages":     {row(func(r *step.Row) { r.Slot, r.Start, r.Prefix = 2, 7, make([]int32, 7) }), "start: expected 0, found 7"},
		"adoption without prefix":    {row(func(r *step.Row) { r.Slot, r.Start = 2, 8 }), "prefix: expected 8 ids, found 0"},
		"short prefix":               {row(func(r *step.Row) { r.Slot, r.Start, r.Prefix = 2, 8, make([]int32, 7) }), "prefix: expected 8 ids, found 7"},
		"bad prefix":                 {row(func(r *step.Row) { r.Slot, r.Start, r.Prefix = 2, 8, slices.Repeat([]int32{50}, 8) }), "prefix: expected 0 to 49"},
		"continue of two":            {row(func(r *step.Row) { r.Continue = true }), "continue: expected 1 token"},
		"continue, penalized":        {row(func(r *step.Row) { r.Slot, r.Continue, r.Tokens = 1, true, []int32{0} }), "continue: the sequence penalizes"},
		"continue of nothing":        {row(func(r *step.Row) { r.Slot, r.Start, r.Continue, r.Tokens = 2, 0, true, []int32{0} }), "continue: the slot's last position was not sampled"},
		"feature":                    {row(func(r *step.Row) { r.Want = step.FLogits }), "is not offered"},
		"ability":                    {row(func(r *step.Row) { r.Want = step.FGiven }), "is not offered"},
		"net":                        {row(func(r *step.Row) { r.Want, r.Net = step.FScore, 1 }), "net: expected one of 1, found number 1"},
		"top":                        {row(func(r *step.Row) { r.Want, r.TopK = step.FTopK, 10 }), "top-k: expected 0 to 9, found 10"},
		"negative top":               {row(func(r *step.Row) { r.Want, r.TopK = step.FTopK, -1 }), "top-k: expected 0 to 9, found -1"},
		"log-probabilities":          {row(func(r *step.Row) { r.Logprobs = 1000 }), "log-probabilities: expected"},
		"mixture":                    {row(func(r *step.Row) { r.Mix = &step.Mixture{Weight: 2} }), "mixture: weight"},
		"many given":                 {row(func(r *step.Row) { r.Given, r.Logprobs, r.Sample = make([]int32, 4), 0, 0 }), "given: expected at most 3"},
		"given and sampled":          {row(func(r *step.Row) { r.Given, r.Logprobs, r.Sample = make([]int32, 2), 0, 2 }), "sample: expected bits below 1"},
		"given, not asked for":       {row(func(r *step.Row) { r.Given = make([]int32, 2) }), "given: log-probabilities are not wanted"},
		"bad given":                  {row(func(r *step.Row) { r.Given, r.Logprobs = []int32{77}, 0 }), "given: expected 0 to 49"},
		"patch of a closed slot":     {patch(step.PagePatch{Slot: 3}), "patch: slot 3 is not open"},
		"patch beyond the table":     {patch(step.PagePatch{Index: 4}), "index: expected 0 to 3, found 4"},
		"patch at a negative index":  {patch(step.PagePatch{Index: -1}), "index: expected 0 to 3, found -1"},
		"patch to no page":           {patch(step.PagePatch{Page: 20}), "page: expected 0 to 19, found 20"},
		"patch to a negative page":   {patch(step.PagePatch{Page: -1}), "page: expected 0 to 19, found -1"},
		"many patches":               {&step.Batch{Rows: row(none).Rows, Patches: slices.Repeat(patched(0, 1), 7)}, "patches: expected at most 6, found 7"},
		"a good patch, then bad row": {&step.Batch{Rows: []step.Row{{Slot: 3}}, Patches: patched(0, 4)}, "not open"},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(limits(), Limits{Patches: 6, Top: 9})
			open(t, s, false, 10)
			open(t, s, true, 10)
			open(t, s, true, 0)
			if len(tc.b.Rows) == 1 && tc.b.Rows[0].Slot == 2 {
				tc.b.Patches = patched(2, 4)
			}
			before := tables(s)
			err := s.Admit(tc.b)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if !slices.EqualFunc(tables(s), before, slices.Equal) {
				t.Error("a refused batch left patches")
			}
			if err := Refused(tc.b, err); !errors.Is(err, executor.ErrBadBatch) {
				t.Errorf("%v is not ErrBadBatch", err)
			}
		})
	}
}

// tables copies the page tables.
func tables(s *Set) (out [][]int32) {
	for i := range s.all {
		out = append(out, slices.Clone(s.all[i].Table))
	}
	return out
}

// What is not offered is refused.
func TestNotOffered(t *testing.T) {
	in := limits()
	in.Features = 0
	for name, change := range map[string]func(*step.Row){
		"given":    func(r *step.Row) { r.Given, r.Logprobs = make([]int32, 1), 0 },
		"mixture":  func(r *step.Row) { r.Mix = &step.Mixture{} },
		"continue": func(r *step.Row) { r.Continue, r.Tokens = true, []int32{0} },
		"entropy":  func(r *step.Row) { r.Want = step.FEntropy },
		"adoption": func(r *step.Row) { r.Slot, r.Start = 1, 8 },
	} {
		s := New(in, Limits{})
		open(t, s, false, 10)
		open(t, s, false, 0)
		b := row(change)
		b.Patches = patched(1, 4)
		if err := s.Admit(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestSlots(t *testing.T) {
	s := New(limits(), Limits{})
	for want := range step.Slot(4) {
		if got := open(t, s, false, 3); got != want {
			t.Errorf("slot %d, want %d", got, want)
		}
	}
	if _, err := s.Open(false); !errors.Is(err, executor.ErrNoSlot) {
		t.Errorf("error %v, want ErrNoSlot", err)
	}
	if s.Close(9, false) || s.Close(-1, false) {
		t.Error("a slot that is none was closed")
	}
	kept := s.At(1).Table
	if !s.Close(1, true) || s.Close(1, true) || s.At(1) != nil {
		t.Error("a slot closes once")
	}
	if err := s.Truncate(1, 0); err == nil {
		t.Error("a closed slot was truncated")
	}
	if got := open(t, s, true, 0); got != 1 || !s.At(1).Penalizes || s.At(1).Length != 0 || s.At(1).Sampled {
		t.Errorf("slot %d: %+v", got, s.At(1))
	}
	if &s.At(1).Table[0] == &kept[0] || kept[0] < 0 {
		t.Error("a table that was to be kept was used again")
	}
	q := s.At(0)
	for _, bad := range []int{-1, 4} {
		if s.Truncate(0, bad) == nil {
			t.Errorf("truncated to %d", bad)
		}
	}
	if err := s.Truncate(0, 3); err != nil || !q.Sampled {
		t.Errorf("error %v, sequence %+v: truncating to the same length changes nothing", err, q)
	}
	if err := s.Truncate(0, 2); err != nil || q.Sampled || q.Length != 2 {
		t.Errorf("error %v, sequence %+v", err, q)
	}
}

// The check for missing pages remembers what it found. A plain look at the whole
// table must agree, also after refused batches, truncations and new lives of a slot.
func TestMissingPages(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	s := New(limits(), Limits{})
	open(t, s, false, 0)
	good, bad := 0, 0
	for range 20000 {
		q := s.At(0)
		var b step.Batch
		for range rng.IntN(3) {
			b.Patches = append(b.Patches, step.PagePatch{Index: int32(rng.IntN(4)), Page: int32(rng.IntN(20))})
		}
		n := 1 + rng.IntN(12)
		table := slices.Clone(q.Table)
		for _, p := range b.Patches {
			table[p.Index] = p.Page
		}
		end := int(q.Length) + n
		fine := end <= 32 && !slices.Contains(table[:min(s.pages(end), 4)], -1)
		b.Rows = []step.Row{{Start: q.Length, Tokens: make([]int32, n), Logprobs: -1}}
		if rng.IntN(4) == 0 { // something else is wrong
			b.Rows[0].Logprobs, fine = -2, false
		}
		before := slices.Clone(q.Table)
		err := s.Admit(&b)
		if (err == nil) != fine {
			t.Fatalf("error %v with table %v for %d positions", err, table, end)
		}
		if err != nil {
			bad++
			if !slices.Equal(q.Table, before) {
				t.Fatal("a refused batch left patches")
			}
		} else {
			good++
			q.Length += int32(n)
		}
		switch rng.IntN(8) {
		case 0:
			if err := s.Truncate(0, rng.IntN(int(q.Length)+1)); err != nil {
				t.Fatal(err)
			}
		case 1:
			s.Close(0, rng.IntN(2) == 0)
			open(t, s, false, 0)
		}
	}
	if good < 1000 || bad < 1000 {
		t.Errorf("%d batches were admitted and %d refused: nothing shown", good, bad)
	}
}
