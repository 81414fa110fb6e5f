package cudaexec

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// equality is a reproducible model in two executors that must give the same bits: one that replays graphs and may launch
// ahead, one that launches each kernel.
type equality struct {
	t              *testing.T
	graphs, eager  *Executor
	vocab          int
	rows           int // in the large batch
	prompt, decode int // tokens
}

// In reproducible mode a position's outputs are the same to the last bit however it was computed.
func TestReproducible(t *testing.T) {
	qwen, vocab := catalogued(t, "qwen3-0.6b")
	for _, tc := range []struct {
		name      string
		c         model.Config
		size      equality
		simulated bool
	}{
		{"odd", oddConfig(), equality{vocab: 99, rows: 4, prompt: 37, decode: 4}, true},
		{"qwen3-0.6b", qwen, equality{vocab: vocab, rows: 32, prompt: 333, decode: 24}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && (!tc.simulated || testing.Short()) {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			q := tc.size
			q.t = t
			c := Config{Vocab: q.vocab, MaxSlots: q.rows, MaxContext: 512, MaxTokens: 32 * q.rows, Pages: 8 * max(q.rows, 6), Reproducible: true, Depth: 2, Poison: true}
			q.graphs = build(t, d, c, Dummy(tc.name, tc.c, 7))
			c.Eager, c.Depth = true, 1
			q.eager = build(t, d, c, Dummy(tc.name, tc.c, 7))
			for _, test := range []struct {
				name string
				run  func(*equality)
			}{
				{"a graph equals eager", (*equality).graphEager},
				{"alone equals in a batch", (*equality).aloneBatch},
				{"chunked prefill equals whole", (*equality).chunkedWhole},
				{"prefill of committed ids equals having decoded them", (*equality).prefillDecoded},
				{"lookahead changes nothing", (*equality).lookahead},
				{"truncate and redo equals straight on", (*equality).redo},
			} {
				t.Run(test.name, func(t *testing.T) {
					q := q
					q.t = t
					test.run(&q)
				})
			}
		})
	}
}

// ids makes n ids, different for each salt.
func (q *equality) ids(n, salt int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i*977 + i*31 + salt*101 + 5) % q.vocab)
	}
	return out
}

// open opens the sequence of a place: each has 8 pages.
func (q *equality) open(e *Executor, place int) *sequence {
	q.t.Helper()
	p := sampling.Params{Seed: uint64(place)}
	if place%2 == 1 {
		p.Temperature, p.TopP = 0.8, 0.95
	}
	s := newSequence(q.t, e, p, 8*place)
	q.t.Cleanup(func() { e.Close(s.slot) })
	return s
}

// row samples some last positions and wants all that can be compared.
func row(ids []int32, sample uint64) step.Row {
	return step.Row{Tokens: ids, Sample: sample, Want: step.FLogits | step.FHidden | step.FEntropy | step.FTopK, TopK: 4, Logprobs: 2}
}

// run runs a batch and returns copies of its outputs.
func (q *equality) run(e *Executor, b *step.Batch) []step.Out {
	q.t.Helper()
	var r step.Result
	runBatch(q.t, e, b, &r)
	return r.Out
}

// feed is run for one row.
func (q *equality) feed(s *sequence, r step.Row) []step.Out {
	q.t.Helper()
	var b step.Batch
	s.grow(&b, r)
	return q.run(s.e.(*Executor), &b)
}

// cut makes a sequence shorter.
func (q *equality) cut(s *sequence, length int) {
	q.t.Helper()
	s.length = length
	if err := s.e.Truncate(s.slot, length); err != nil {
		q.t.Fatal(err)
	}
}

// same compares outputs to the last bit, whatever their rows.
func (q *equality) same(what string, got, want []step.Out) {
	q.t.Helper()
	if len(got) != len(want) || len(want) == 0 {
		q.t.Fatalf("%s: %d outputs, want %d", what, len(got), len(want))
	}
	for i, w := range want {
		g := got[i]
		for _, c := range []struct {
			field string
			equal bool
		}{
			{"position", g.Position == w.Position}, {"flags", g.Flags == 0 && w.Flags == 0}, {"logits", len(g.Logits) > 0 && slices.Equal(g.Logits, w.Logits)},
			{"hidden", slices.Equal(g.Hidden, w.Hidden)}, {"top", slices.Equal(g.Top, w.Top)}, {"token", g.Token == w.Token},
			{"entropy", g.Entropy == w.Entropy}, {"logprob", g.Logprob == w.Logprob}, {"margin", g.Margin == w.Margin},
		} {
			if !c.equal {
				q.t.Errorf("%s: output %d at position %d has another %s (token %d entropy %v, want %d %v)", what, i, w.Position, c.field, g.Token,
					g.Entropy, w.Token, w.Entropy)
				break
			}
		}
	}
}

// steps runs ragged steps of many sizes side by side.
func (q *equality) steps(e *Executor) (all []step.Out) {
	q.t.Helper()
	var seqs []*sequence
	for i := range q.rows {
		seqs = append(seqs, q.open(e, i))
	}
	for i, rows := range []int{1, q.rows, 2, q.rows/2 + 1, 3, q.rows} {
		var b step.Batch
		for j, s := range seqs[:rows] {
			n := 1
			if s.length == 0 || (i+j)%5 == 0 {
				n += (7*j + 3*i) % 29
			}
			s.grow(&b, row(q.ids(n, i+j), 1))
		}
		all = append(all, q.run(e, &b)...)
	}
	for _, s := range seqs {
		e.Close(s.slot)
	}
	return all
}

func (q *equality) graphEager() {
	before := q.graphs.Stats()
	want := q.steps(q.eager)
	q.same("graphs", q.steps(q.graphs), want)
	if after := q.graphs.Stats(); after.Replays == before.Replays || q.eager.Stats().Replays != 0 {
		q.t.Errorf("%d steps were replayed, %d of the eager ones", after.Replays-before.Replays, q.eager.Stats().Replays)
	}
}

func (q *equality) aloneBatch() {
	prompt, next := q.ids(q.prompt/4, 1), q.ids(q.decode, 2)
	alone := q.open(q.graphs, 0)
	want := q.feed(alone, row(prompt, 1))
	for i := range next {
		want = append(want, q.feed(alone, row(next[i:i+1], 1))...)
	}
	q.cut(alone, 0)
	seqs := []*sequence{alone}
	for i := 1; i < q.rows; i++ {
		seqs = append(seqs, q.open(q.graphs, i))
	}
	var got []step.Out
	for i := range q.decode + 1 {
		var b step.Batch
		at := i * 5 % q.rows // its place in the batch
		for k, s := range slices.Concat(seqs[1:at+1], seqs[:1], seqs[at+1:]) {
			switch {
			case s == alone && i == 0:
				s.grow(&b, row(prompt, 1))
			case s == alone:
				s.grow(&b, row(next[i-1:i], 1))
			case i == 0 || (i+k)%7 == 0:
				s.grow(&b, row(q.ids(1+(i+5*k)%11, k), 1))
			default:
				s.grow(&b, row(q.ids(1, k), uint64(k%2)))
			}
		}
		out := q.run(q.graphs, &b)
		got = append(got, out[slices.IndexFunc(out, func(o step.Out) bool { return b.Rows[o.Row].Slot == alone.slot })])
	}
	q.same(fmt.Sprintf("in a batch of %d", q.rows), got, want)
}

// tail is how many last positions comparisons of prefills sample.
const tail = 5

// pieces feeds ids in rows of given lengths, the last of which repeats, and returns the outputs of the tail.
func (q *equality) pieces(s *sequence, ids []int32, lengths ...int) (out []step.Out) {
	q.t.Helper()
	for len(ids) > 0 {
		n := min(lengths[0], len(ids))
		if len(lengths) > 1 {
			lengths = lengths[1:]
		}
		sample := uint64(1<<tail-1) >> (len(ids) - n)
		if n < 64 {
			sample &= 1<<n - 1
		}
		r := row(ids[:n], sample)
		if sample == 0 {
			r.Want = 0
		}
		out = append(out, q.feed(s, r)...)
		ids = ids[n:]
	}
	return out
}

func (q *equality) chunkedWhole() {
	ids := q.ids(q.prompt, 3)
	s := q.open(q.graphs, 1)
	want := q.pieces(s, ids, len(ids))
	sizes := [][]int{{64}, {7}, {1}, {len(ids) - 1, 1}, {2, 17, 33, 100}}
	if q.rows < 32 {
		sizes = sizes[3:]
	}
	for _, lengths := range sizes {
		q.cut(s, 0)
		q.same(fmt.Sprintf("in chunks of %v", lengths), q.pieces(s, ids, lengths...), want)
	}
}

func (q *equality) prefillDecoded() {
	for place := range 2 { // greedy, and drawn
		s := q.open(q.graphs, place)
		ids := q.ids(q.prompt/2, 4)
		want := q.feed(s, row(ids, 1))
		for range q.decode {
			last := want[len(want)-1].Token
			ids = append(ids, last)
			want = append(want, q.feed(s, row([]int32{last}, 1))...)
		}
		q.cut(s, 0)
		q.same(fmt.Sprintf("place %d: prefill", place), q.feed(s, row(ids, 1<<len(want)-1)), want)
		q.graphs.Close(s.slot)
		s = q.open(q.graphs, place)
		next := q.open(q.graphs, q.rows-1)
		var b step.Batch // beside another prefill
		next.grow(&b, row(q.ids(q.prompt/3, 5), 0))
		b.Rows[0].Want = 0
		s.grow(&b, row(ids, 1<<len(want)-1))
		q.same(fmt.Sprintf("place %d: prefill beside another", place), q.run(q.graphs, &b), want)
		q.graphs.Close(s.slot)
		q.graphs.Close(next.slot)
	}
}

func (q *equality) lookahead() {
	want := decodeTokens(q.t, q.graphs, 2*q.decode, false)
	for i, got := range decodeTokens(q.t, q.graphs, 2*q.decode, true) {
		if !slices.Equal(got, want[i]) {
			q.t.Errorf("sequence %d: %v when launched ahead, want %v", i, got, want[i])
		}
	}
	for i, got := range decodeTokens(q.t, q.eager, 2*q.decode, false) {
		if !slices.Equal(got, want[i]) {
			q.t.Errorf("sequence %d: %v without graphs, want %v", i, got, want[i])
		}
	}
}

func (q *equality) redo() {
	ids := q.ids(q.prompt, 6)
	s := q.open(q.graphs, 1)
	want := q.pieces(s, ids, len(ids))
	for _, keep := range []int{q.prompt / 2, q.prompt - tail, 0} {
		q.cut(s, min(keep, s.length))
		q.pieces(s, q.ids(q.decode, 7), 3, 1) // the wrong way
		q.cut(s, keep)
		q.same(fmt.Sprintf("redone from %d", keep), q.pieces(s, ids[keep:], 19, 64), want)
	}
}
