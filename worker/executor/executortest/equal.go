package executortest

import (
	"math/rand/v2"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/step"
)

// tail is how many final positions the comparisons sample.
const tail = 6

// prefill feeds all ids in one step, samples the last positions and returns them.
func (d *driver) prefill(ids []int32) []step.Out {
	d.t.Helper()
	s := d.open(greedyParams())
	defer d.e.Close(s.slot)
	return d.feed(part{s, ids, 1<<tail - 1})
}

// pieces feeds ids in pieces of the given sizes (the last size repeats) and
// returns the outputs of the last positions.
func (d *driver) pieces(ids []int32, sizes ...int) []step.Out {
	d.t.Helper()
	s := d.open(greedyParams())
	defer d.e.Close(s.slot)
	var out []step.Out
	for len(ids) > 0 {
		n := min(sizes[0], len(ids))
		if len(sizes) > 1 {
			sizes = sizes[1:]
		}
		// Bit i of the mask is i positions from the row's end, which lies
		// len(ids)-n positions before the end of all.
		mask := uint64(1<<tail-1) >> (len(ids) - n)
		if n < tail {
			mask &= 1<<n - 1
		}
		out = append(out, d.feed(part{s, ids[:n], mask})...)
		ids = ids[n:]
	}
	return out
}

func (s *suite) sameAll(t *testing.T, what string, got, want []step.Out) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d outputs, want %d", what, len(got), len(want))
	}
	for i := range want {
		s.same(t, what, got[i], want[i])
	}
}

func (s *suite) chunking(t *testing.T) {
	d := s.driver(t, standard())
	ids := d.ids(70, 1) // five pages, the last one not full
	want := d.prefill(ids)
	if len(want) != tail {
		t.Fatalf("%d outputs, want %d", len(want), tail)
	}
	tests := []struct {
		name  string
		sizes []int
	}{
		{"halves", []int{35, 35}},
		{"one off a page", []int{15, 1, 17, 31, 64}},
		{"one by one", []int{1}},
		{"prefill, then decode", []int{66, 1}},
		{"extends of three", []int{3}},
	}
	for _, tc := range tests {
		d := s.driver(t, standard())
		s.sameAll(t, tc.name, d.pieces(ids, tc.sizes...), want)
	}
}

func (s *suite) neighbours(t *testing.T) {
	o := standard()
	alone := s.driver(t, o)
	ids := alone.ids(40, 2)
	a := alone.open(greedyParams())
	want := []step.Out{alone.last(a, ids)}
	for i := range 5 {
		want = append(want, alone.last(a, alone.ids(1, i)))
	}

	d := s.driver(t, o)
	b, c, e := d.open(greedyParams()), d.open(greedyParams()), d.open(greedyParams())
	d.feed(part{c, d.ids(33, 3), 0}, part{e, d.ids(2, 4), 1})
	got := []step.Out{}
	out := d.feed(part{c, d.ids(1, 5), 1}, part{b, ids, 1}, part{e, d.ids(20, 6), 0})
	got = append(got, out[1])
	for i := range 5 {
		out := d.feed(part{e, d.ids(i+1, 7), 1}, part{b, d.ids(1, i), 1}, part{c, d.ids(3, 8), 1})
		if len(out) != 3 || out[1].Row != 1 {
			t.Fatalf("step %d: outputs %v", i, out)
		}
		got = append(got, out[1])
	}
	s.sameAll(t, "in a batch", got, want)
}

func (s *suite) pageSize(t *testing.T) {
	small, large := standard(), standard()
	large.PageSize = 64
	a, b := s.driver(t, small), s.driver(t, large)
	if a.e.Info().PageSize != 16 || b.e.Info().PageSize != 64 {
		t.Fatalf("page sizes %d and %d, want 16 and 64", a.e.Info().PageSize, b.e.Info().PageSize)
	}
	ids := a.ids(100, 9)
	s.sameAll(t, "pages of 16 against 64", a.pieces(ids, 60, 37, 1), b.pieces(ids, 60, 37, 1))
}

func (s *suite) truncate(t *testing.T) {
	d := s.driver(t, standard())
	ids := d.ids(60, 10)
	want := d.prefill(ids)

	d = s.driver(t, standard())
	a := d.open(greedyParams())
	d.feed(part{a, d.ids(40, 10), 1})
	d.feed(part{a, d.ids(30, 11), 1}) // the wrong way
	if err := d.e.Truncate(a.slot, 40); err != nil {
		t.Fatal(err)
	}
	a.length = 40
	s.sameAll(t, "redo after 40", d.feed(part{a, ids[40:], 1<<tail - 1}), want)
	if err := d.e.Truncate(a.slot, 0); err != nil {
		t.Fatal(err)
	}
	a.length = 0
	s.sameAll(t, "redo from 0", d.feed(part{a, ids, 1<<tail - 1}), want)
	// A random walk of extends and cuts, then straight on.
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		cut := rng.IntN(a.length + 1)
		if err := d.e.Truncate(a.slot, cut); err != nil {
			t.Fatal(err)
		}
		a.length = cut
		if n := rng.IntN(8); n > 0 && cut+n <= 60 {
			d.feed(part{a, ids[cut : cut+n], 1})
		}
	}
	if a.length > 60-tail {
		if err := d.e.Truncate(a.slot, 60-tail); err != nil {
			t.Fatal(err)
		}
		a.length = 60 - tail
	}
	s.sameAll(t, "after a random walk", d.feed(part{a, ids[a.length:], 1<<tail - 1}), want)
}

func (s *suite) severalSampled(t *testing.T) {
	d := s.driver(t, standard())
	ids := d.ids(20, 12)
	var want []step.Out
	a := d.open(greedyParams())
	for i := range ids {
		want = append(want, d.last(a, ids[i:i+1]))
	}
	b, c := d.open(greedyParams()), d.open(greedyParams())
	// Positions 10, 12 and 19 of b; the last of c.
	got := d.feed(part{b, ids, 1<<9 | 1<<7 | 1}, part{c, ids[:5], 1})
	if len(got) != 4 {
		t.Fatalf("%d outputs, want 4", len(got))
	}
	for i, pos := range []int{10, 12, 19, 4} {
		row := int32(0)
		if i == 3 {
			row = 1
		}
		if got[i].Row != row || got[i].Position != int32(pos+1) {
			t.Errorf("output %d: row %d position %d, want %d and %d", i, got[i].Row, got[i].Position, row, pos+1)
		}
		s.same(t, "sampled together", got[i], want[pos])
	}
}

func (s *suite) noSample(t *testing.T) {
	d := s.driver(t, standard())
	a, b := d.open(greedyParams()), d.open(greedyParams())
	if out := d.feed(part{a, d.ids(5, 1), 0}); len(out) != 0 {
		t.Errorf("%d outputs, want none", len(out))
	}
	out := d.feed(part{a, d.ids(5, 1), 0}, part{b, d.ids(5, 1), 1})
	if len(out) != 1 || out[0].Row != 1 || out[0].Position != 5 {
		t.Errorf("outputs %+v, want row 1 at position 5 alone", out)
	}
}
