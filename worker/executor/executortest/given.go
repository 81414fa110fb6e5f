package executortest

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// given checks the log-probabilities of ids that the caller chose against the raw
// logits of the same positions, whatever the sampling parameters.
func (s *suite) given(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FGiven|step.FLogits, "log-probabilities of given ids, or logits")
	ids := d.ids(101, 4)
	var logits [][]float32
	plain := d.open(greedyParams())
	for at := 0; at < 100; at += 50 {
		for _, out := range d.feed(part{plain, ids[at : at+50], 1<<50 - 1}) {
			logits = append(logits, out.Logits)
		}
	}
	p := hot(9)
	p.TopK = 1
	for _, sizes := range [][]int{{100}, {1, 7, 64, 28}} {
		a, at := d.open(p), 0
		for _, n := range sizes {
			b := d.batch(part{a, ids[at : at+n], 0})
			b.Rows[0].Given = ids[at+1 : at+n+1]
			if at+n == 100 { // the last position is sampled instead
				b.Rows[0].Given, b.Rows[0].Sample = ids[at+1:at+n], 1
			}
			out := d.run(b)
			if len(out) != n {
				t.Fatalf("%d outputs, want %d", len(out), n)
			}
			for i := range out {
				last := at+i == 99
				if out[i].Row != 0 || int(out[i].Position) != at+i+1 || out[i].Given == last || out[i].Flags != 0 {
					t.Errorf("output %d of the chunk from %d: %+v", i, at, out[i])
				}
				if !last {
					s.checkGiven(t, out[i], ids[at+i+1], logits[at+i])
				}
			}
			at += n
			a.length = at
		}
		d.e.Close(a.slot)
	}
}

// checkGiven holds one output against logits of the same position, which another
// step has computed.
func (s *suite) checkGiven(t *testing.T, out step.Out, id int32, z []float32) {
	t.Helper()
	slack := 1e-4
	if s.tolerance > 0 {
		slack = 0.05
	}
	order := ranked(z)
	sum := 0.0
	for _, v := range z {
		sum += math.Exp(float64(v) - float64(z[order[0]]))
	}
	lse := float64(z[order[0]]) + math.Log(sum)
	near := func(what string, got float32, want float64) {
		t.Helper()
		if !(math.Abs(float64(got)-want) <= slack*(1+math.Abs(want))) {
			t.Errorf("position %d: %s %v, want %v", out.Position, what, got, want)
		}
	}
	if out.Token != id {
		t.Errorf("position %d: token %d, want %d", out.Position, out.Token, id)
	}
	near("log-probability", out.Logprob, float64(z[id])-lse)
	if len(out.Logits)+len(out.Hidden) > 0 || out.Entropy != 0 {
		t.Errorf("position %d: features that are not for given ids", out.Position)
	}
	if len(out.Top) != 3 {
		t.Errorf("position %d: %d entries, want 3", out.Position, len(out.Top))
		return
	}
	for i, e := range out.Top {
		if s.tolerance == 0 && e.ID != order[i] {
			t.Errorf("position %d: entry %d is %d, want %d", out.Position, i, e.ID, order[i])
		}
		near("entry's log-probability", e.Logprob, float64(z[e.ID])-lse)
	}
}

// badGiven checks the rules of Row.Given and Row.Prefix.
func (s *suite) badGiven(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FGiven, "log-probabilities of given ids")
	in := d.e.Info()
	a := d.open(greedyParams())
	d.feed(part{a, d.ids(20, 1), 1})
	many := d.ids(100, 2)
	tests := []struct {
		name   string
		change func(*step.Row)
	}{
		{"longer than the row", func(r *step.Row) { r.Given = d.ids(6, 3) }},
		{"negative id", func(r *step.Row) { r.Given = []int32{1, -1} }},
		{"id of a padded row", func(r *step.Row) { r.Given = []int32{int32(in.Vocab)} }},
		{"sampled too", func(r *step.Row) { r.Given, r.Sample = d.ids(3, 3), 1<<2 }},
		{"all given and the last sampled", func(r *step.Row) { r.Given, r.Sample = d.ids(5, 3), 1 }},
		{"sampled too, in a long row", func(r *step.Row) { r.Tokens, r.Given, r.Sample = many, many[:90], 1<<10 }},
		{"no log-probabilities wanted", func(r *step.Row) { r.Given, r.Logprobs = d.ids(2, 3), -1 }},
		{"an ability as a feature", func(r *step.Row) { r.Want = step.FGiven }},
		{"prefix of valid positions", func(r *step.Row) { r.Prefix = d.ids(20, 1) }},
	}
	for _, tc := range tests {
		b := d.batch(part{a, d.ids(5, 2), 0})
		b.Patches = append(b.Patches, d.patches(a, 120)...)
		tc.change(&b.Rows[0])
		if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("%s: error %v, want ErrBadBatch", tc.name, err)
		}
		// The patches were not applied, so the pages are free again.
		for _, p := range b.Patches {
			d.free = append(d.free, p.Page)
		}
		a.pages -= len(b.Patches)
	}
	b := d.batch(part{a, d.ids(5, 2), 0b11})
	b.Rows[0].Given = d.ids(3, 3)
	out := d.run(b)
	if len(out) != 5 || slices.ContainsFunc(out[:3], func(o step.Out) bool { return !o.Given }) || out[3].Given || out[4].Given {
		t.Errorf("three given and two sampled: %+v", out)
	}
}
