package cudaexec

import (
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// TestTwoLayers takes models of two layers through ragged steps with everything that a step can do. It is what runs under
// compute-sanitizer; "own" leaves cuBLASLt out, whose kernels read padding, and "gemv" as well, but takes the products of few
// tokens that reproducible steps do without.
func TestTwoLayers(t *testing.T) {
	type shape struct {
		name  string
		c     model.Config
		vocab int
		own   bool
	}
	wide := model.Config{
		Architecture: model.Qwen3, VocabSize: 2048, Hidden: 1024, Layers: 2, Heads: 16, KVHeads: 8, HeadDim: 128, FFN: 3072,
		MaxContext: 1024, RopeTheta: 1e6, NormEps: 1e-6, TieEmbeddings: true,
	}
	tests := []shape{
		{"own/odd", oddConfig(), 99, true}, {"gemv/odd", oddConfig(), 99, false}, {"library/odd", oddConfig(), 99, false},
		{"own/wide", wide, 2000, true}, {"gemv/wide", wide, 2000, false}, {"library/wide", wide, 2000, false},
	}
	for _, name := range trio() {
		c := openTrio(t, name).Config
		c.Layers = 2
		tests = append(tests, shape{"own/" + name, c, trioVocab, true}, shape{"gemv/" + name, c, trioVocab, false})
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && (testing.Short() || tc.vocab > 99) {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			if strings.HasPrefix(tc.name, "gemv/") {
				if d.blas == nil {
					t.Skip("skip: there is no cuBLASLt to leave out")
				}
				var err error
				if d, err = NewDevice(dev.Context, dev.Builder, nil); err != nil {
					t.Fatal(err)
				}
			}
			e := build(t, d, Config{
				Vocab: tc.vocab, PageSize: 16, MaxSlots: 4, MaxContext: 400, MaxTokens: 400, Pages: 4 * 25, Partials: 8, Reproducible: tc.own,
				Nets: fold(randomNets(tc.c.Hidden, 60, router.Shape{Width: 64, Inner: 128, Blocks: 1}, model.BF16)[:1]),
			}, Dummy("two", tc.c, 7))
			raggedSteps(t, e, tc.vocab)
		})
	}
}

// raggedSteps runs prefill chunks, extends, decodes and cuts of four sequences side by side.
func raggedSteps(t *testing.T, e *Executor, vocab int) {
	params := []sampling.Params{
		{},
		{Temperature: 1, TopP: 0.9, TopK: 20, Seed: 3},
		{Temperature: 0.7, MinP: 0.05, Seed: 4, RepetitionPenalty: 1.1, FrequencyPenalty: 0.2, PresencePenalty: 0.1},
		{LogitBias: []sampling.Bias{{ID: 3, Value: 2}, {ID: 5, Value: -100}}},
	}
	var seqs []*sequence
	for i, p := range params {
		seqs = append(seqs, newSequence(t, e, p, 25*i))
	}
	next := 0
	take := func(n int) []int32 {
		ids := make([]int32, n)
		for i := range ids {
			next++
			ids[i] = int32(next * 31 % vocab)
		}
		return ids
	}
	const want = step.FEntropy | step.FTopK | step.FHidden | step.FScore
	for i, lengths := range [][4]int{{1, 15, 16, 17}, {130, 1, 3, 64}, {1, 1, 1, 1}, {2, 140, 1, 5}, {1, 1, 0, 1}, {9, 0, 1, 0}} {
		var b step.Batch
		for j, n := range lengths {
			if n == 0 {
				continue
			}
			r := step.Row{Tokens: take(n), Sample: 1, Want: want, TopK: 4, Logprobs: 2}
			if n > 2 {
				r.Sample = 0b101
			}
			if i == 1 && j == 0 {
				r.Given, r.Sample = take(n-2), 1
			}
			seqs[j].grow(&b, r)
		}
		var res step.Result
		runBatch(t, e, &b, &res)
		for _, o := range res.Out {
			if o.Flags != 0 || o.Token < 0 || int(o.Token) >= vocab {
				t.Fatalf("step %d: output %+v", i, o)
			}
		}
		if i == 3 {
			for _, s := range seqs {
				s.length -= s.length / 3
				if err := e.Truncate(s.slot, s.length); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
