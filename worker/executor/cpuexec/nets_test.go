package cpuexec

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/models/dummy"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// randomNets are one net of each kind, for a model of that hidden size.
func randomNets(hidden, logits int, dtype model.DType) []*router.Checkpoint {
	shapes := map[router.Kind]router.Shape{
		router.R2R: {Width: 48, Inner: 192, Blocks: 3}, router.CITER: {Width: 2 * hidden, Inner: hidden}, router.CoLLM: {},
	}
	var list []*router.Checkpoint
	for _, kind := range router.Kinds() {
		s := router.Sidecar{Format: 1, Kind: kind, Model: "random", HiddenSize: hidden}
		if kind == router.R2R {
			s.LogitsSize = logits
		}
		list = append(list, router.Random("random-"+string(kind), s, shapes[kind], dtype, 5))
	}
	return list
}

func fold(list []*router.Checkpoint) (nets []*router.Net) {
	for _, c := range list {
		nets = append(nets, c.Fold())
	}
	return nets
}

// unfolded computes a score in float64 from what the step reported of a position.
func unfolded(e *Executor, c *router.Checkpoint, o *step.Out) float64 {
	top := slices.Clone(o.Logits)
	slices.Sort(top)
	slices.Reverse(top)
	vector := make([]float32, e.info.Hidden)
	e.w.embed.row(vector, int(o.Token))
	return c.Reference(&router.Row{Hidden: o.Hidden, Top: top, Token: o.Token}, vector)
}

// TestScores runs all nets in steps of all sorts against the unfolded networks on what
// the same step reports. The traps of routing's spec that meet here: the hidden vector
// is the one after the final norm and of the row's own last position (5), the logits
// are raw whatever sampling makes of them (6), the candidate is what was sampled (7),
// and padded rows of the vocabulary count for nothing (9).
func TestScores(t *testing.T) {
	const want = step.FScore | step.FHidden | step.FLogits
	params := map[string]sampling.Params{
		"greedy":          {},
		"trap 7: sampled": {Temperature: 3, Seed: 8},
		"trap 6: adjusted": {Temperature: 2, Seed: 4, TopK: 20, MinP: 0.01, RepetitionPenalty: 3, PresencePenalty: 2, FrequencyPenalty: 2,
			LogitBias: []sampling.Bias{{ID: 3, Value: 80}}},
	}
	for _, model := range []struct {
		name           string
		hidden, logits int
		open           func(*testing.T, Config) *Executor
	}{
		{"tiny-s", 128, 100, func(t *testing.T, c Config) *Executor { return newTrio(t, "tiny-s", c) }},
		{"odd", 20, oddVocab, func(t *testing.T, c Config) *Executor { return newOdd(t, c) }},
	} {
		list := randomNets(model.hidden, model.logits, "F32")
		for name, p := range params {
			t.Run(model.name+", "+name, func(t *testing.T) {
				e := model.open(t, Config{MaxSlots: 2, MaxContext: 256, PageSize: 16, Nets: fold(list), Workers: 2})
				var r step.Result
				for k, c := range list {
					s := open(t, e, p)
					row := step.Row{Slot: s, Tokens: []int32{1, 7, 3, 3, 9, 20, 4, 2, 8, 8, 11}, Sample: 0b10000001101, Want: want, Net: uint8(k), Logprobs: -1}
					b := &step.Batch{Patches: patches(s, 0, 2), Rows: []step.Row{row}}
					greedy := 0
					for range 4 {
						run(t, e, b, &r)
						for i := range r.Out {
							o := &r.Out[i]
							if got := float64(o.Score); !(math.Abs(got-unfolded(e, c, o)) <= 1e-5) {
								t.Errorf("%s at %d: %v, unfolded %v", c.Name, o.Position, got, unfolded(e, c, o))
							}
							if o.Logits[o.Token] == slices.Max(o.Logits) {
								greedy++
							}
						}
						row.Start += int32(len(row.Tokens))
						row.Tokens, row.Sample = []int32{r.Out[len(r.Out)-1].Token, 5}, 0b11
						b.Patches, b.Rows = nil, []step.Row{row}
					}
					if name != "greedy" && greedy == 10 {
						t.Error("every candidate was the arg max: nothing shown")
					}
					e.Close(s)
				}
			})
		}
	}
}

// TestScoresInBatches: rows that want different nets, or none, score as they do alone,
// to the last bit, and rows that did not ask have none.
func TestScoresInBatches(t *testing.T) {
	for _, dtype := range []model.DType{model.F32, model.BF16} {
		list := randomNets(128, 100, dtype)
		const rows = 19 // more than two blocks of the head
		scores := func(t *testing.T, together bool) []float32 {
			e := newTrio(t, "tiny-s", Config{MaxSlots: rows, MaxContext: 64, Nets: fold(list)})
			var all step.Batch
			for i := range rows {
				s := open(t, e, sampling.Params{Temperature: 1, Seed: uint64(i)})
				row := step.Row{Slot: s, Tokens: []int32{int32(i), 5, int32(3 * i)}, Sample: 1, Want: step.FScore, Net: uint8(i % 3), Logprobs: -1}
				if i%5 == 4 {
					row.Want = step.FEntropy
				}
				all.Patches, all.Rows = append(all.Patches, patches(s, i, 1)...), append(all.Rows, row)
			}
			var out []float32
			var r step.Result
			if together {
				run(t, e, &all, &r)
				for _, o := range r.Out {
					out = append(out, o.Score)
				}
				return out
			}
			for i := range rows {
				run(t, e, &step.Batch{Patches: all.Patches[i : i+1], Rows: all.Rows[i : i+1]}, &r)
				out = append(out, r.Out[0].Score)
			}
			return out
		}
		alone, together := scores(t, false), scores(t, true)
		if !slices.Equal(alone, together) {
			t.Errorf("%s: together %v, alone %v", dtype, together, alone)
		}
		for i, s := range together {
			if (s == 0) != (i%5 == 4) {
				t.Errorf("%s: row %d has score %v", dtype, i, s)
			}
		}
	}
}

func TestNetsAreChecked(t *testing.T) {
	k := oddModel(t)
	defer k.Close()
	good := fold(randomNets(20, 30, "F32"))
	for name, nets := range map[string][]*router.Net{
		"hidden size": fold(randomNets(24, 30, "F32")), "vocabulary": fold(randomNets(20, 100, "F32")),
		"number": slices.Repeat(good, 6),
	} {
		if _, err := New(Config{Vocab: oddVocab, Nets: nets}, k); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	e := newOdd(t, Config{MaxSlots: 1, Nets: good})
	if in := e.Info(); in.Features&step.FScore == 0 || !slices.Equal(in.Nets, []string{"random-r2r", "random-citer", "random-co-llm"}) {
		t.Errorf("offered: %+v", in)
	}
	s := open(t, e, sampling.Params{})
	b := &step.Batch{Patches: patches(s, 0, 1), Rows: []step.Row{{Slot: s, Tokens: []int32{1}, Sample: 1, Want: step.FScore, Net: 3, Logprobs: -1}}}
	if _, err := e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
		t.Errorf("net 3 of 3: %v", err)
	}
	without := newOdd(t, Config{MaxSlots: 1})
	s = open(t, without, sampling.Params{})
	b.Patches, b.Rows[0].Slot, b.Rows[0].Net = patches(s, 0, 1), s, 0
	if _, err := without.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
		t.Errorf("score without nets: %v", err)
	}
}

// BenchmarkNets measures nets alone: the trio's size and that of published ones for
// Qwen3-0.6B, with the executor's products.
func BenchmarkNets(b *testing.B) {
	for _, size := range []struct {
		name   string
		hidden int
		shape  router.Shape
		dtype  model.DType
	}{
		{"trio", 128, router.Shape{Width: 256, Inner: 1024, Blocks: 2}, model.F32},
		{"qwen3-0.6b", 1024, router.Shape{Width: 1024, Inner: 4096, Blocks: 6}, model.F32},
		{"qwen3-0.6b bf16", 1024, router.Shape{Width: 1024, Inner: 4096, Blocks: 6}, model.BF16},
	} {
		s := router.Sidecar{Format: 1, Kind: router.R2R, Model: "random", HiddenSize: size.hidden, LogitsSize: 100}
		net := router.Random("random", s, size.shape, size.dtype, 1).Fold()
		config := model.Config{Architecture: model.Qwen3, VocabSize: 256, Hidden: size.hidden, Layers: 1, Heads: 2, KVHeads: 1, HeadDim: 64,
			FFN: 256, MaxContext: 64, RopeTheta: 1e4, NormEps: 1e-6, TieEmbeddings: true}
		var tensors []model.Tensor
		for _, p := range config.Params() {
			tensors = append(tensors, model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Bytes: dummy.Bytes(1, p.Name, p.Shape)})
		}
		for _, rows := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/rows=%d", size.name, rows), func(b *testing.B) {
				e := started(b, Config{Vocab: 256, MaxSlots: 1, Workers: 2, Nets: []*router.Net{net}}, model.FromTensors("m", config, tensors))
				list, scores := make([]router.Row, rows), make([]float32, rows)
				for i := range list {
					list[i] = router.Row{Hidden: make([]float32, size.hidden), Top: make([]float32, 100), Token: int32(i)}
				}
				for b.Loop() {
					e.nets.scorers[0].Score(scores, list)
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*rows), "us/row")
			})
		}
	}
}
