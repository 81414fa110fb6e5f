package sampler

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

var inf32 = float32(math.Inf(1))

// sample runs a fresh Sampler at one position.
func sample(z []float32, p sampling.Params, pos int32, model uint8, row step.Row) step.Out {
	out := step.Out{Position: pos}
	new(Sampler).Sample(z, &p, model, &row, &out)
	return out
}

var nothing = step.Row{Logprobs: -1}

func TestGreedyTakesLargestLowestID(t *testing.T) {
	tests := []struct {
		name   string
		z      []float32
		want   int32
		margin float32
	}{
		{"middle", []float32{1, 3, 2}, 1, 1},
		{"tie", []float32{1, 3, 3, 3}, 1, 0},
		{"negative", []float32{-5, -2, -2.5}, 1, 0.5},
		{"masked", []float32{-inf32, -inf32, -7}, 2, inf32},
		{"one id", []float32{4}, 0, inf32},
		{"descending", []float32{9, 8, 7}, 0, 1},
		{"second before first", []float32{8, 1, 9}, 2, 1},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			out := sample(tc.z, sampling.Params{TopP: 1}, 3, 0, nothing)
			if out.Token != tc.want || out.Margin != tc.margin || out.Flags != 0 {
				t.Errorf("token %d margin %v flags %d, want %d and %v", out.Token, out.Margin, out.Flags, tc.want, tc.margin)
			}
		})
	}
}

func TestBadLogitsAreFlagged(t *testing.T) {
	nan := float32(math.NaN())
	for _, z := range [][]float32{{nan}, {1, nan, 2}, {nan, 1}, {3, 2, nan}, {1, inf32}, {-inf32, -inf32}, {}} {
		for _, temp := range []float32{0, 1} {
			row := step.Row{Want: step.FEntropy | step.FTopK | step.FLogits, TopK: 2, Logprobs: 1}
			out := sample(z, sampling.Params{Temperature: temp, TopP: 0.5}, 0, 0, row)
			if out.Flags != step.FlagNaN {
				t.Errorf("%v at temperature %v: flags %d", z, temp, out.Flags)
			}
		}
	}
}

func TestStaleOutputIsOverwritten(t *testing.T) {
	var s Sampler
	out := step.Out{Row: 4, Position: 2, Hidden: []float32{1}}
	p := sampling.Params{TopP: 1}
	row := step.Row{Want: step.FEntropy | step.FLogits | step.FTopK, TopK: 3, Logprobs: 2}
	s.Sample([]float32{1, float32(math.NaN()), 2}, &p, 0, &row, &out)
	s.Sample([]float32{1, 2, 3, 4}, &p, 0, &row, &out)
	if out.Flags != 0 || len(out.Top) != 3 || len(out.Logits) != 4 || out.Row != 4 || out.Position != 2 || len(out.Hidden) != 1 {
		t.Errorf("out %+v", out)
	}
	s.Sample([]float32{1, 2}, &p, 0, &nothing, &out)
	if out.Entropy != 0 || len(out.Top) != 0 || len(out.Logits) != 0 || out.Logprob != 0 {
		t.Errorf("left over: %+v", out)
	}
}

func TestFeaturesMatchSlowSums(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 60).Draw(t, "vocab")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 1))
		scale := rapid.SampledFrom([]float64{0, 1, 10, 300}).Draw(t, "scale")
		z := make([]float32, n)
		for i := range z {
			z[i] = float32(math.Round(rng.NormFloat64() * scale))
		}
		if n > 1 && rapid.Bool().Draw(t, "mask") {
			z[n-1] = -inf32
		}
		row := step.Row{Want: step.FEntropy | step.FTopK, TopK: int32(rapid.IntRange(0, n).Draw(t, "topK")),
			Logprobs: int32(rapid.IntRange(0, 20).Draw(t, "logprobs"))}
		out := sample(z, sampling.Params{TopP: 1, Temperature: 1, Seed: 1}, 9, 0, row)
		lse := 0.0
		m := float64(slices.Max(z))
		for _, v := range z {
			lse += math.Exp(float64(v) - m)
		}
		lse = m + math.Log(lse)
		entropy := 0.0
		for _, v := range z {
			if lp := float64(v) - lse; lp > -700 {
				entropy -= math.Exp(lp) * lp
			}
		}
		near := func(what string, got float32, want float64) {
			if math.Abs(float64(got)-want) > 1e-5*(1+math.Abs(want)) {
				t.Fatalf("%s %v, want %v", what, got, want)
			}
		}
		near("entropy", out.Entropy, entropy)
		near("ln V", out.LogV, math.Log(float64(n)))
		near("logprob", out.Logprob, float64(z[out.Token])-lse)
		if want := min(n, max(int(row.TopK), int(row.Logprobs))); len(out.Top) != want {
			t.Fatalf("%d entries, want %d", len(out.Top), want)
		}
		for i, e := range out.Top {
			if e.Logit != z[e.ID] {
				t.Fatalf("entry %d: %+v", i, e)
			}
			if i > 0 && (e.Logit > out.Top[i-1].Logit || e.Logit == out.Top[i-1].Logit && e.ID <= out.Top[i-1].ID) {
				t.Fatalf("entries out of order: %v", out.Top)
			}
			if e.Logit > -inf32 {
				near("entry", e.Logprob, float64(e.Logit)-lse)
			}
		}
	})
}

func TestGumbelRange(t *testing.T) {
	for _, w := range []uint32{0, 1, 1 << 31, math.MaxUint32 - 1, math.MaxUint32} {
		if g := Gumbel(w); math.IsNaN(g) || math.IsInf(g, 0) || g > gumbelMax {
			t.Errorf("Gumbel(%d) = %v", w, g)
		}
	}
}

func BenchmarkSample(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, v := range []int{749, 151936} {
		z := make([]float32, v)
		for i := range z {
			z[i] = float32(rng.NormFloat64() * 3)
		}
		counts := NewCounts(v, 500)
		for range 1000 {
			counts.Push(int32(rng.IntN(v)))
		}
		for _, tc := range []struct {
			name string
			p    sampling.Params
		}{
			{"greedy", sampling.Params{}},
			{"plain", sampling.Params{Temperature: 1}},
			{"top", sampling.Params{Temperature: 0.6, TopK: 20, TopP: 0.95}},
			{"min-p", sampling.Params{Temperature: 1, MinP: 0.05}},
			{"greedy with penalties", sampling.Params{RepetitionPenalty: 1.1, FrequencyPenalty: 0.2}},
			{"top with penalties", sampling.Params{Temperature: 0.6, TopK: 20, TopP: 0.95, RepetitionPenalty: 1.1, FrequencyPenalty: 0.2}},
		} {
			b.Run(fmt.Sprintf("%s/V=%d", tc.name, v), func(b *testing.B) {
				var s Sampler
				q := Sequence{Params: &tc.p, PromptLen: 500, Counts: counts}
				out := step.Out{}
				for b.Loop() {
					s.Next(z, &q, &nothing, &out)
				}
			})
		}
	}
}
