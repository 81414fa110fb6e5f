package executortest

import (
	"context"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// driver feeds an executor as a scheduler would: it owns the pages and keeps the
// lengths of the sequences.
type driver struct {
	t    *testing.T
	e    executor.Executor
	free []int32
	step uint64
	res  step.Result
}

// seq is one open sequence.
type seq struct {
	slot   step.Slot
	length int
	pages  int // patched so far
}

func (s *suite) driver(t *testing.T, o Options) *driver {
	t.Helper()
	d := &driver{t: t, e: s.newExec(t, o)}
	// Pages are handed out in a scattered order, so that tables are not runs.
	n := d.e.Info().Pages
	stride := 7
	for n%stride == 0 {
		stride += 2
	}
	for i := range n {
		d.free = append(d.free, int32(i*stride%n))
	}
	return d
}

func greedyParams() sampling.Params {
	return sampling.Params{TopP: 1, MaxTokens: 1 << 20, Logprobs: -1}
}

func (d *driver) open(p sampling.Params) *seq {
	d.t.Helper()
	return d.openAs(p, 0)
}

func (d *driver) openAs(p sampling.Params, model uint8) *seq {
	d.t.Helper()
	return d.openWith(executor.SeqConfig{Sampling: p, Model: model})
}

func (d *driver) openWith(c executor.SeqConfig) *seq {
	d.t.Helper()
	slot, err := d.e.Open(c)
	if err != nil {
		d.t.Fatalf("open: %v", err)
	}
	return &seq{slot: slot}
}

// needs skips the test unless the executor offers all of some features.
func (d *driver) needs(f step.Feature, what string) {
	d.t.Helper()
	if d.e.Info().Features&f != f {
		d.t.Skip("the executor does not offer " + what)
	}
}

// patches takes the pages that a sequence needs to grow to length.
func (d *driver) patches(s *seq, length int) []step.PagePatch {
	d.t.Helper()
	var out []step.PagePatch
	for size := d.e.Info().PageSize; s.pages*size < length; s.pages++ {
		if len(d.free) == 0 {
			d.t.Fatal("the test asks for more pages than it ordered")
		}
		out = append(out, step.PagePatch{Slot: s.slot, Index: int32(s.pages), Page: d.free[0]})
		d.free = d.free[1:]
	}
	return out
}

// part is one row in the making.
type part struct {
	seq    *seq
	tokens []int32
	sample uint64
}

// batch makes the step for some parts; every row wants all features offered.
func (d *driver) batch(parts ...part) *step.Batch {
	d.t.Helper()
	d.step++
	b := &step.Batch{Step: d.step}
	for _, p := range parts {
		b.Patches = append(b.Patches, d.patches(p.seq, p.seq.length+len(p.tokens))...)
		b.Rows = append(b.Rows, step.Row{
			Slot: p.seq.slot, Start: int32(p.seq.length), Tokens: p.tokens, Sample: p.sample,
			Want: d.e.Info().Features & step.Outputs &^ step.FScore, TopK: 5, Logprobs: 3,
		})
	}
	return b
}

// run executes a batch and returns deep copies of its outputs.
func (d *driver) run(b *step.Batch) []step.Out {
	d.t.Helper()
	ticket, err := d.e.Launch(b)
	if err != nil {
		d.t.Fatalf("launch: %v", err)
	}
	if err := d.e.Wait(context.Background(), ticket, &d.res); err != nil {
		d.t.Fatalf("wait: %v", err)
	}
	out := slices.Clone(d.res.Out)
	for i := range out {
		out[i].Top = slices.Clone(out[i].Top)
		out[i].Hidden = slices.Clone(out[i].Hidden)
		out[i].Logits = slices.Clone(out[i].Logits)
	}
	return out
}

// feed runs one step and moves the lengths on.
func (d *driver) feed(parts ...part) []step.Out {
	d.t.Helper()
	out := d.run(d.batch(parts...))
	for _, p := range parts {
		p.seq.length += len(p.tokens)
	}
	return out
}

// last feeds tokens of one sequence and samples the final position.
func (d *driver) last(s *seq, tokens []int32) step.Out {
	d.t.Helper()
	out := d.feed(part{s, tokens, 1})
	if len(out) != 1 {
		d.t.Fatalf("%d outputs, want 1", len(out))
	}
	return out[0]
}

// ids makes n token ids, different for each salt.
func (d *driver) ids(n, salt int) []int32 {
	v := d.e.Info().Vocab
	out := make([]int32, n)
	for i := range out {
		out[i] = int32((i*i*31 + i*7 + salt*97 + 3) % v)
	}
	return out
}

// same fails the test unless two outputs of one position agree. Row is not compared.
func (s *suite) same(t *testing.T, what string, got, want step.Out) {
	t.Helper()
	if got.Position != want.Position || got.Flags != want.Flags {
		t.Errorf("%s: position %d flags %d, want %d and %d", what, got.Position, got.Flags, want.Position, want.Flags)
	}
	s.near(t, what+": logits", got.Logits, want.Logits)
	s.near(t, what+": hidden", got.Hidden, want.Hidden)
	if s.tolerance != 0 {
		return
	}
	if got.Token != want.Token || got.Logprob != want.Logprob || got.Entropy != want.Entropy || got.Margin != want.Margin {
		t.Errorf("%s: token %d logprob %v entropy %v margin %v, want %d %v %v %v", what,
			got.Token, got.Logprob, got.Entropy, got.Margin, want.Token, want.Logprob, want.Entropy, want.Margin)
	}
	if !slices.Equal(got.Top, want.Top) {
		t.Errorf("%s: top %v, want %v", what, got.Top, want.Top)
	}
}

// near compares two vectors within the suite's tolerance.
func (s *suite) near(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: length %d, want %d", what, len(got), len(want))
		return
	}
	var diff, norm float64
	for i := range want {
		if s.tolerance == 0 && got[i] != want[i] {
			t.Errorf("%s: element %d is %v, want %v", what, i, got[i], want[i])
			return
		}
		x, y := float64(got[i]), float64(want[i])
		diff += (x - y) * (x - y)
		norm += y * y
	}
	if s.tolerance != 0 && !(math.Sqrt(diff) <= s.tolerance*math.Sqrt(norm)) {
		t.Errorf("%s: relative distance %.3g, want at most %.3g", what, math.Sqrt(diff/norm), s.tolerance)
	}
}
