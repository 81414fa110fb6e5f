package sampler

import (
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Co-LLM, section 4 of the routing notes: composed, the token is the largest of
// (1-p)·P + p·P'. Neither model's own choice need be it.
func TestMixedChoice(t *testing.T) {
	ln := func(p float64) float32 { return float32(math.Log(p)) }
	z := []float32{ln(0.5), ln(0.4), ln(0.1), float32(math.Inf(-1))}
	other := []step.TopEntry{{ID: 2, Logprob: ln(0.55)}, {ID: 1, Logprob: ln(0.45)}}
	for _, c := range []struct {
		weight float32
		want   int32
	}{{1, 0}, {0.9, 0}, {0.5, 1}, {0.1, 2}, {0, 2}} {
		var s Sampler
		out := step.Out{Position: 5}
		before := slices.Clone(z)
		row := step.Row{Logprobs: 0, Want: step.FEntropy, Mix: &step.Mixture{Weight: c.weight, Entries: other}}
		s.Sample(z, &sampling.Params{}, 0, &row, &out)
		if out.Token != c.want || out.Flags != 0 {
			t.Errorf("weight %v: token %d, want %d", c.weight, out.Token, c.want)
		}
		if !slices.Equal(z, before) {
			t.Fatal("the logits were changed")
		}
		if want := z[out.Token]; math.Abs(float64(out.Logprob-want)) > 1e-6 {
			t.Errorf("weight %v: log-probability %v is not the model's own %v", c.weight, out.Logprob, want)
		}
	}
}

// Draws follow the mixture, with temperature and bias on top of it.
func TestMixedDraws(t *testing.T) {
	z := []float32{2, 1, 0, -1}
	m := &step.Mixture{Weight: 0.3, Entries: []step.TopEntry{{ID: 3, Logprob: float32(math.Log(0.6))}, {ID: 0, Logprob: float32(math.Log(0.3))}}}
	for _, p := range []sampling.Params{
		{Temperature: 1}, {Temperature: 0.5}, {Temperature: 1, TopK: 2},
		{Temperature: 1, LogitBias: []sampling.Bias{{ID: 1, Value: 2}}},
	} {
		want := make([]float64, len(z))
		total := 0.0
		for _, v := range z {
			total += math.Exp(float64(v))
		}
		for i, v := range z {
			want[i] = 0.3 * math.Exp(float64(v)) / total
		}
		want[3] += 0.7 * 0.6
		want[0] += 0.7 * 0.3
		for _, b := range p.LogitBias {
			want[b.ID] *= math.Exp(float64(b.Value))
		}
		sum := 0.0
		for i := range want {
			want[i] = math.Pow(want[i], 1/float64(p.Temperature))
			if p.TopK == 2 && i != 0 && i != 3 {
				want[i] = 0
			}
			sum += want[i]
		}
		const n = 20000
		count := make([]int, len(z))
		var s Sampler
		for i := range n {
			p.Seed = uint64(i)
			out := step.Out{Position: 1}
			s.Sample(z, &p, 0, &step.Row{Logprobs: -1, Mix: m}, &out)
			count[out.Token]++
		}
		for i, w := range want {
			w /= sum
			if bound := 5*math.Sqrt(w*(1-w)/n) + 1e-9; math.Abs(float64(count[i])/n-w) > bound {
				t.Errorf("%+v: id %d has share %.4f, want %.4f", p, i, float64(count[i])/n, w)
			}
		}
	}
}
