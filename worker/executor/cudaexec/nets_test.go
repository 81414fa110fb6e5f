package cudaexec

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// randomNets are one net of each kind, for a model of that hidden size.
func randomNets(hidden, logits int, shape router.Shape, dtype model.DType) (list []*router.Checkpoint) {
	for _, kind := range router.Kinds() {
		s := router.Sidecar{Format: 1, Kind: kind, Model: "random", HiddenSize: hidden}
		if kind == router.R2R {
			s.LogitsSize = logits
		} else {
			shape = router.Shape{Width: 2 * hidden, Inner: hidden}
		}
		list = append(list, router.Random("random-"+string(kind), s, shape, dtype, 5))
	}
	return list
}

func fold(list []*router.Checkpoint) (nets []*router.Net) {
	for _, c := range list {
		nets = append(nets, c.Fold())
	}
	return nets
}

// oddNets are for oddConfig.
func oddNets() []*router.Checkpoint {
	return randomNets(72, 60, router.Shape{Width: 64, Inner: 136, Blocks: 2}, model.BF16)
}

// rowTable is the embedding of a checkpoint.
type rowTable struct {
	width  int
	values []float32
}

func (t rowTable) Row(dst []float32, id int) { copy(dst, t.values[id*t.width:(id+1)*t.width]) }

func embeddingOf(tb testing.TB, k *model.Checkpoint) rowTable {
	tb.Helper()
	t, err := k.Tensor("model.embed_tokens.weight")
	if err != nil {
		tb.Fatal(err)
	}
	v, err := t.Float32()
	if err != nil {
		tb.Fatal(err)
	}
	return rowTable{k.Config.Hidden, v}
}

// worst is the largest distance between scores and those that the CPU computes of what the step reported of their
// positions: hidden vectors, largest raw logits, and tokens.
func worst(tb testing.TB, n *router.Net, embed rowTable, out []step.Out) float64 {
	tb.Helper()
	scorer, distance := n.NewScorer(embed, nil, 8), 0.0
	for i := range out {
		row := router.Row{Hidden: out[i].Hidden, Token: out[i].Token}
		for _, e := range out[i].Top[:n.Top()] {
			row.Top = append(row.Top, e.Logit)
		}
		want := make([]float32, 1)
		scorer.Score(want, []router.Row{row})
		distance = max(distance, math.Abs(float64(want[0]-out[i].Score)))
		if math.IsNaN(float64(out[i].Score)) {
			tb.Fatalf("position %d: the score is NaN", out[i].Position)
		}
	}
	return distance
}

// TestNets scores positions of all sorts by every kind of net: greedy, sampled and adjusted candidates, several positions
// of a row, captured and eager steps.
func TestNets(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated && testing.Short() {
		t.Skip("skip: no CUDA driver")
	}
	list := oddNets()
	k := dummyCheckpoint(t, oddConfig(), 2)
	defer k.Close()
	embed := embeddingOf(t, k)
	params := []sampling.Params{{}, {Temperature: 2, Seed: 3}, {Temperature: 1, Seed: 4, RepetitionPenalty: 3, LogitBias: []sampling.Bias{{ID: 7, Value: 50}}}}
	for _, eager := range []bool{false, true} {
		e := build(t, d, Config{
			Vocab: 99, MaxSlots: 9, MaxContext: 64, MaxTokens: 64, Pages: 9, Partials: 4, Nets: fold(list), Eager: eager, Poison: true,
		}, Checkpoint(k))
		if in := e.Info(); in.Features&step.FScore == 0 || len(in.Nets) != 3 {
			t.Fatalf("offered: %+v", in)
		}
		var seqs []*sequence
		for i := range 9 {
			seqs = append(seqs, newSequence(t, e, params[i%3], i))
		}
		var r step.Result
		for i, sizes := range [][]int{{4}, {1, 3, 2, 5, 1, 1, 4, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1, 1}, {1}} {
			var b step.Batch
			for j, n := range sizes {
				ids := make([]int32, n)
				for x := range ids {
					ids[x] = int32((i*31 + j*7 + x*3) % 99)
				}
				row := step.Row{Tokens: ids, Sample: 1, Want: step.FScore | step.FHidden | step.FTopK, TopK: 60, Net: uint8(j / 3), Logprobs: -1}
				if n > 2 {
					row.Sample = 0b101
				}
				if j == 7 {
					row.Want &^= step.FScore
				}
				seqs[j].grow(&b, row)
			}
			runBatch(t, e, &b, &r)
			for _, o := range r.Out {
				row := &b.Rows[o.Row]
				if row.Want&step.FScore == 0 {
					if o.Score != 0 {
						t.Errorf("step %d, row %d has not asked for its score %v", i, o.Row, o.Score)
					}
					continue
				}
				n := list[row.Net].Fold()
				if got := worst(t, n, embed, []step.Out{o}); !(got <= 1e-4) {
					t.Errorf("eager %v, step %d, row %d, %s: score %v is %.2g from the CPU's", eager, i, o.Row, n.Name, o.Score, got)
				}
				if len(o.Top) != 60 {
					t.Errorf("%d entries of the top list", len(o.Top))
				}
			}
		}
	}
}

// TestNetsInBatches: in reproducible steps scores are the same alone and among others, to the last bit, also when the
// list that a net needs was not asked for.
func TestNetsInBatches(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated && testing.Short() {
		t.Skip("skip: no CUDA driver")
	}
	rows := 70 // more than one block of the head
	if dev.Simulated {
		rows = 11
	}
	scores := func(together bool) (out []float32) {
		e := build(t, d, Config{Vocab: 99, MaxSlots: rows, MaxContext: 64, MaxTokens: 4 * rows, Pages: rows, Partials: 4, Reproducible: true,
			Nets: fold(oddNets()[:1])}, Dummy("odd", oddConfig(), 2))
		var all step.Batch
		for i := range rows {
			row := step.Row{Tokens: []int32{int32(i), int32(i * 3 % 99), 5}, Sample: 1, Want: step.FScore, Logprobs: -1}
			newSequence(t, e, sampling.Params{Temperature: 1, Seed: uint64(i)}, i).grow(&all, row)
		}
		var r step.Result
		if together {
			runBatch(t, e, &all, &r)
			for _, o := range r.Out {
				out = append(out, o.Score)
			}
			return out
		}
		for i := 0; i < rows; i += max(1, rows/5) {
			runBatch(t, e, &step.Batch{Rows: all.Rows[i : i+1], Patches: all.Patches[i : i+1]}, &r)
			out = append(out, r.Out[0].Score)
		}
		return out
	}
	together, alone := scores(true), scores(false)
	for i, s := range alone {
		if at := i * max(1, rows/5); together[at] != s || len(together) != rows {
			t.Errorf("row %d: %v together, %v alone", at, together[at], s)
		}
	}
	slices.Sort(together)
	if len(slices.Compact(together)) < 5 {
		t.Error("rows have the same scores: nothing shown")
	}
}

// TestRealNets: nets of the published sizes on one layer of Qwen3-0.6B and of Qwen3-4B. With weights in bfloat16 scores
// are the CPU's but for the order of sums; with weights in float32 rounding them moves scores a little.
func TestRealNets(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated {
		t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
	}
	for _, name := range []string{"qwen3-0.6b", "qwen3-4b"} {
		m, vocab := catalogued(t, name)
		m.Layers = 1
		k := dummyCheckpoint(t, m, 3)
		embed := embeddingOf(t, k)
		for dtype, limit := range map[model.DType]float64{model.BF16: 1e-4, model.F32: 2e-2} {
			list := randomNets(m.Hidden, 100, router.Shape{Width: 1024, Inner: 4096, Blocks: 6}, dtype)
			nets := fold(list) // which takes seconds
			e := build(t, d, Config{Vocab: vocab, MaxSlots: 12, MaxContext: 64, MaxTokens: 64, Pages: 12, Partials: 4, Nets: nets}, Checkpoint(k))
			for net := range list {
				var b step.Batch
				var r step.Result
				for i := range 4 {
					newSequence(t, e, sampling.Params{}, 4*net+i).grow(&b, step.Row{
						Tokens: []int32{int32(i), 7, int32(100 * i), 9}, Sample: 0b111, Want: step.FScore | step.FHidden | step.FTopK, TopK: 100,
						Net: uint8(net), Logprobs: -1,
					})
				}
				runBatch(t, e, &b, &r)
				got := worst(t, nets[net], embed, r.Out)
				t.Logf("%s, %s in %s: at most %.2g from the CPU's", name, list[net].Name, dtype, got)
				if !(got <= limit) {
					t.Errorf("%s, %s in %s: %.2g from the CPU's, limit %.2g", name, list[net].Name, dtype, got, limit)
				}
			}
			if err := e.Shutdown(); err != nil {
				t.Fatal(err)
			}
		}
		if err := k.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNetsAreChecked(t *testing.T) {
	m := oddConfig()
	shape := router.Shape{Width: 64, Inner: 136, Blocks: 2}
	wide := *fold(oddNets())[0]
	wide.Front.Rows = 11272
	for name, list := range map[string][]*router.Net{
		"hidden size":      fold(randomNets(80, 60, shape, model.F32)),
		"vocabulary":       fold(randomNets(72, 100, shape, model.F32)),
		"multiples of 8":   fold(randomNets(72, 60, router.Shape{Width: 60, Inner: 136, Blocks: 1}, model.F32)),
		"multiples inside": fold(randomNets(72, 60, router.Shape{Width: 64, Inner: 132, Blocks: 1}, model.F32)),
		"too wide":         {&wide},
		"number":           slices.Repeat(fold(oddNets()), 6),
	} {
		if _, err := MakePlan(Config{Vocab: 99, Nets: list}, &m, 1<<30); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	with, err := MakePlan(Config{Vocab: 99, Nets: fold(oddNets())}, &m, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	without, err := MakePlan(Config{Vocab: 99}, &m, 1<<40)
	if err != nil {
		t.Fatal(err)
	}
	if more := with.Weights - without.Weights; more < 2*2*2*64*136 {
		t.Errorf("the plan has %d bytes for the nets", more)
	}
	f, d := fakeDevice(t)
	e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	s, err := e.Open(executor.SeqConfig{})
	if err != nil {
		t.Fatal(err)
	}
	b := &step.Batch{Patches: []step.PagePatch{{Slot: s}}, Rows: []step.Row{{Slot: s, Tokens: []int32{1}, Sample: 1, Want: step.FScore, Net: 1, Logprobs: -1}}}
	if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
		t.Errorf("net 1 of 1: %v", err)
	}
	if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
		t.Error(err)
	}
	_ = f
}

// BenchmarkNets times decode steps of Qwen3-0.6B with and without the scores of a net of the published size. The
// difference is the net with the longer list of logits.
func BenchmarkNets(b *testing.B) {
	d, dev := openTest(b)
	if dev.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	m, vocab := catalogued(b, "qwen3-0.6b")
	const slots = 64
	list := randomNets(m.Hidden, 100, router.Shape{Width: 1024, Inner: 4096, Blocks: 6}, model.F32)
	for net, c := range list {
		e := build(b, d, Config{Vocab: vocab, MaxSlots: slots, MaxTokens: 256, MaxContext: 1024, Pages: slots * 4, Nets: []*router.Net{c.Fold()}}, Dummy("m", m, 1))
		var seqs []*sequence
		var r step.Result
		for i := range slots {
			s := newSequence(b, e, sampling.Params{}, i*4)
			s.feed(step.Row{Tokens: make([]int32, 200), Logprobs: -1}, &r)
			seqs = append(seqs, s)
		}
		for _, rows := range []int{1, 8, 64} {
			for _, want := range []step.Feature{0, step.FScore} {
				if net > 0 && want == 0 {
					continue // as for the first net
				}
				b.Run(fmt.Sprintf("%s/rows=%d/score=%v", c.Kind, rows, want != 0), func(b *testing.B) {
					for b.Loop() {
						var batch step.Batch
						for _, s := range seqs[:rows] {
							s.grow(&batch, step.Row{Tokens: []int32{3}, Sample: 1, Want: want, Logprobs: -1})
						}
						runBatch(b, e, &batch, &r)
						for _, s := range seqs[:rows] {
							s.length--
							if err := e.Truncate(s.slot, s.length); err != nil {
								b.Fatal(err)
							}
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/1e3/float64(b.N), "us/step")
				})
			}
		}
		if err := e.Shutdown(); err != nil {
			b.Fatal(err)
		}
	}
}

// Uploading a net can fail at every copy, and nothing stays behind.
func TestNetsAreReleased(t *testing.T) {
	for nth := 1; nth <= 12; nth += 3 {
		t.Run(fmt.Sprint(nth), func(t *testing.T) {
			f, d := fakeDevice(t)
			f.Fail("cuMemcpyHtoD_v2", nth, driver.CodeInvalidValue)
			cfg := fakeConfig()
			cfg.Nets = fold(oddNets())
			if e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1)); err == nil {
				t.Errorf("New did not fail: %v", e.Shutdown())
			}
			if open := f.Open(); open.DeviceAllocs+open.HostAllocs+open.Modules+open.Streams != 0 {
				t.Errorf("left open: %+v", open)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
