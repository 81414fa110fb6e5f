package cudaexec

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

const goldenDir = "../../../models/testdata/golden/"

// closeToTruth bounds the relative distance of logits and hidden vectors from float32 arithmetic on the same weights: the
// engine rounds activations to bfloat16 between kernels. PyTorch in bfloat16 lies at 0.5 to 2 percent.
const closeToTruth = 1.5e-2

// trainedMargin is the margin above which a trained model's arg max must be the truth's.
const trainedMargin = 0.05

// roundingMargin is the margin that rounding explains for weights nobody trained, whose logits differ by chance alone.
// With a relative distance d and a spread (standard deviation) s of a position's logits, the error of one logit is about
// d·s and that of a difference √2·d·s; three of those are allowed. d is measured and bounded by closeToTruth.
func roundingMargin(d float64, want [][]float32) float32 {
	var sum, squares, n float64
	for _, z := range want {
		for _, v := range z {
			sum += float64(v)
			squares += float64(v) * float64(v)
		}
		n += float64(len(z))
	}
	spread := math.Sqrt(squares/n - (sum/n)*(sum/n))
	return float32(3 * math.Sqrt2 * d * spread)
}

// sameWords checks that arg maxima agree wherever the truth's margin exceeds the given one, and that elsewhere ours is
// within twice the margin of the maximum.
func sameWords(t *testing.T, got, want [][]float32, limit float32) {
	t.Helper()
	differ, close := 0, 0
	for i, z := range want {
		best, margin := bestTwo(z)
		mine, _ := bestTwo(got[i])
		if mine == best {
			continue
		}
		if below := z[best] - z[mine]; margin > limit || below > 2*limit {
			if differ++; differ < 4 {
				t.Errorf("position %d: arg max %d, want %d (margin %.3f, ours is %.3f below the maximum, limit %.3f)", i, mine, best, margin, below, limit)
			}
			continue
		}
		close++
	}
	t.Logf("%d positions: %d arg maxima differ at margins above %.3f, %d below", len(want), differ, limit, close)
}

// Against transformers in float32.
func TestGolden(t *testing.T) {
	for _, name := range trio() {
		t.Run(name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && (name == "tiny-l" || testing.Short()) {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			raw, err := os.ReadFile(goldenDir + name + ".golden.safetensors")
			if err != nil {
				t.Fatal(err)
			}
			golden, err := model.ParseShard(name, raw)
			if err != nil {
				t.Fatal(err)
			}
			for _, reproducible := range []bool{false, true} {
				e := build(t, d, Config{Vocab: trioVocab, MaxSlots: 1, MaxContext: 512, Poison: true, Partials: 16, MaxTokens: 64, Reproducible: reproducible},
					Checkpoint(openTrio(t, name)))
				for i := range 2 {
					tensor := golden.Tensors[fmt.Sprintf("ids%d", i)]
					ids := make([]int32, tensor.Elems())
					for j := range ids {
						ids[j] = int32(binary.LittleEndian.Uint32(tensor.Bytes[4*j:]))
					}
					wantTensor := golden.Tensors[fmt.Sprintf("logits%d", i)]
					flat, err := wantTensor.Float32()
					if err != nil {
						t.Fatal(err)
					}
					var want [][]float32
					for j := range ids {
						want = append(want, flat[j*trioVocab:(j+1)*trioVocab])
					}
					got, _ := allLogits(t, e, ids, 50)
					dist := distance(got, want)
					t.Logf("logits %d, reproducible %v: distance %.2g", i, reproducible, dist)
					if !(dist < closeToTruth) {
						t.Errorf("logits %d, reproducible %v: distance %.2g, limit %.2g", i, reproducible, dist, closeToTruth)
					}
					sameWords(t, got, want, trainedMargin)
				}
			}
		})
	}
}

// Teacher-forced on the reference's own ids: every position of ten long texts.
func TestTeacherForced(t *testing.T) {
	for _, name := range trio() {
		t.Run(name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			raw, err := os.ReadFile(goldenDir + name + ".greedy.json")
			if err != nil {
				t.Fatal(err)
			}
			var texts []struct {
				Prompt []int32 `json:"prompt_ids"`
				Output []int32 `json:"output_ids"`
			}
			if err := json.Unmarshal(raw, &texts); err != nil {
				t.Fatal(err)
			}
			k := openTrio(t, name)
			truth := newCPU(t, cpuexec.Config{Vocab: trioVocab, MaxSlots: 1, MaxContext: 1024}, k)
			e := build(t, d, Config{Vocab: trioVocab, MaxSlots: 1, MaxContext: 1024}, Checkpoint(k))
			for i, text := range texts {
				ids := append(append([]int32(nil), text.Prompt...), text.Output...)
				want, _ := allLogits(t, truth, ids, 60)
				got, _ := allLogits(t, e, ids, 60)
				one, _ := allLogits(t, e, ids, 1)
				t.Logf("text %d: distance %.2g in chunks, %.2g token by token", i, distance(got, want), distance(one, want))
				sameWords(t, got, want, trainedMargin)
				sameWords(t, one, want, trainedMargin)
			}
		})
	}
}

// Dummy weights of real shapes against the CPU executor on the same weights, made in Go. It shows hashfill, uploads, all
// kernels at real dimensions, prefill and decode.
func TestRealShapes(t *testing.T) {
	qwen := func(hidden, layers, heads, ffn, vocab int, tied bool) model.Config {
		return model.Config{Architecture: model.Qwen3, VocabSize: vocab, Hidden: hidden, Layers: layers, Heads: heads, KVHeads: 8, HeadDim: 128,
			FFN: ffn, MaxContext: 40960, RopeTheta: 1e6, NormEps: 1e-6, TieEmbeddings: tied}
	}
	tests := []struct {
		name      string
		c         model.Config
		vocab     int
		simulated bool
	}{
		{"odd", oddConfig(), 99, true},
		{"0.6b whole", qwen(1024, 28, 16, 3072, 151936, true), 151669, false},
		{"4b two layers", qwen(2560, 2, 32, 9728, 16384, true), 16000, false},
		{"8b two layers", qwen(4096, 2, 32, 12288, 16384, false), 16000, false},
		{"14b two layers", qwen(5120, 2, 40, 17408, 16384, false), 16000, false},
		{"32b three layers", qwen(5120, 3, 64, 25600, 16384, false), 16000, false}, // "0.6b whole" has all words
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && (!tc.simulated || testing.Short()) {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			const seed = 11
			k := dummyCheckpoint(t, tc.c, seed)
			defer k.Close()
			ids := make([]int32, 45)
			for i := range ids {
				ids[i] = int32((i*i*977 + i*31 + 5) % tc.vocab)
			}
			limits := Config{Vocab: tc.vocab, MaxSlots: 1, MaxContext: 256, MaxTokens: 128, Pages: 4, Partials: 16}
			truth := newCPU(t, cpuexec.Config{Vocab: tc.vocab, MaxSlots: 1, MaxContext: 256}, k)
			want, wantHidden := allLogits(t, truth, ids, 45)
			for name, src := range map[string]Source{"dummy": Dummy("dummy", tc.c, seed), "uploaded": Checkpoint(k)} {
				e := build(t, d, limits, src)
				chunks := []int{45, 7}
				if name == "uploaded" {
					chunks = []int{20, 1}
				}
				for _, chunk := range chunks {
					got, hidden := allLogits(t, e, ids, chunk)
					dl, dh := distance(got, want), distance(hidden, wantHidden)
					t.Logf("%s in chunks of %d: distance of logits %.2g, of hidden %.2g", name, chunk, dl, dh)
					if !(dl < closeToTruth && dh < closeToTruth) {
						t.Errorf("%s in chunks of %d: distance of logits %.2g, of hidden %.2g, limit %.2g", name, chunk, dl, dh, closeToTruth)
					}
					sameWords(t, got, want, roundingMargin(dl, want))
				}
				if err := e.Shutdown(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Two models in one process: each gives the same bits as alone.
func TestColocated(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated && testing.Short() {
		t.Skip("skip: no CUDA driver")
	}
	other := "tiny-l"
	rounds := 30
	if dev.Simulated {
		other, rounds = "tiny-s", 2
	}
	ids := make([]int32, 80)
	for i := range ids {
		ids[i] = int32(i * 17 % trioVocab)
	}
	make := func(name string) *Executor {
		return build(t, d, Config{Vocab: trioVocab, MaxSlots: 1, MaxContext: 512, MaxTokens: 128, Partials: 16, MemoryBytes: 1 << 30}, Checkpoint(openTrio(t, name)))
	}
	work := func(together bool) (out [][]float32) {
		execs := []*Executor{make("tiny-s"), make(other)}
		var seqs []*sequence
		for _, e := range execs {
			seqs = append(seqs, newSequence(t, e, sampling.Params{Temperature: 1, TopP: 0.9, Seed: 5}, 0))
		}
		for n := range rounds {
			part := ids[:40]
			if n > 0 {
				part = ids[n : n+1+n%3]
			}
			var batches [2]step.Batch
			var results [2]step.Result
			for i := range execs {
				seqs[i].grow(&batches[i], step.Row{Tokens: part, Sample: 1, Want: step.FLogits, Logprobs: -1})
			}
			if together {
				ticket, err := execs[0].Launch(&batches[0])
				if err != nil {
					t.Fatal(err)
				}
				runBatch(t, execs[1], &batches[1], &results[1])
				if err := execs[0].Wait(t.Context(), ticket, &results[0]); err != nil {
					t.Fatal(err)
				}
			} else {
				runBatch(t, execs[0], &batches[0], &results[0])
				runBatch(t, execs[1], &batches[1], &results[1])
			}
			out = append(out, results[0].Out[0].Logits, results[1].Out[0].Logits)
		}
		return out
	}
	alone, together := work(false), work(true)
	for i := range alone {
		for j, v := range alone[i] {
			if v != together[i][j] {
				t.Fatalf("output %d: logit %d is %v alone and %v beside another model", i, j, v, together[i][j])
			}
		}
	}
}
