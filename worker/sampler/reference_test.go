package sampler

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/internal/philox"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// adjusted is the first half of the recipe of doc.go: it goes over every id and
// recounts the whole history for each.
func adjusted(z []float32, p *sampling.Params, history []int32, promptLen int) []float32 {
	y := slices.Clone(z)
	for id := range y {
		total, answer := 0, 0
		for at, h := range history {
			if int(h) == id {
				total++
				if at >= promptLen {
					answer++
				}
			}
		}
		if r := p.RepetitionPenalty; r != 0 && total > 0 {
			if y[id] > 0 {
				y[id] = y[id] / r
			} else {
				y[id] = float32(y[id] * r)
			}
		}
		if answer > 0 {
			y[id] = y[id] - float32(p.FrequencyPenalty*float32(answer))
			y[id] = y[id] - p.PresencePenalty
		}
		for _, b := range p.LogitBias {
			if int(b.ID) == id {
				y[id] = y[id] + b.Value
			}
		}
		if p.MinTokens > 0 && len(history)-promptLen < int(p.MinTokens) && slices.Contains(p.StopIDs, int32(id)) {
			y[id] = -inf32
		}
	}
	return y
}

// candidates of the second half, with a full sort and no pruning, best first.
func candidateIDs(y []float32, p *sampling.Params) []int32 {
	ids := make([]int32, len(y))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortFunc(ids, func(a, b int32) int {
		if c := cmp.Compare(y[b], y[a]); c != 0 {
			return c
		}
		return cmp.Compare(a, b)
	})
	if p.Temperature == 0 {
		return ids[:1]
	}
	if p.TopK > 0 && int(p.TopK) < len(ids) {
		ids = ids[:p.TopK]
	}
	exponent := func(id int32) float64 {
		return (float64(y[id]) - float64(y[ids[0]])) / float64(p.Temperature)
	}
	if p.TopP > 0 && p.TopP < 1 {
		total, sum := 0.0, 0.0
		for _, id := range ids {
			total += math.Exp(exponent(id))
		}
		n := 0
		for n < len(ids) && (n == 0 || sum < float64(p.TopP)*total) {
			sum += math.Exp(exponent(ids[n]))
			n++
		}
		ids = ids[:n]
	}
	if p.MinP > 0 {
		ids = slices.DeleteFunc(slices.Clone(ids), func(id int32) bool { return exponent(id) < math.Log(float64(p.MinP)) })
	}
	return ids
}

// reference is the whole recipe. It returns -1 if nothing is left to draw from.
func reference(z []float32, p *sampling.Params, history []int32, promptLen int, model uint8) int32 {
	y := adjusted(z, p, history, promptLen)
	if slices.Max(y) == -inf32 {
		return -1
	}
	ids := candidateIDs(y, p)
	if p.Temperature == 0 {
		return ids[0]
	}
	best, bestScore := int32(-1), math.Inf(-1)
	slices.Sort(ids)
	for _, id := range ids {
		w := philox.Block([4]uint32{uint32(id) / 4, uint32(len(history)), uint32(model), 0}, [2]uint32{uint32(p.Seed), uint32(p.Seed >> 32)})[id%4]
		v := (float64(w) + 0.5) / 4294967296
		if score := float64(y[id])/float64(p.Temperature) - math.Log(-math.Log1p(-v)); score > bestScore {
			best, bestScore = id, score
		}
	}
	return best
}

// randomParams draws parameters of which about half are neutral.
func randomParams(t *rapid.T, vocab int) sampling.Params {
	p := sampling.Params{
		Temperature:       rapid.SampledFrom([]float32{0, 0.01, 0.7, 1, 5, 1000}).Draw(t, "temperature"),
		TopK:              rapid.SampledFrom([]int32{0, 0, 0, 1, 2, 5, 40, 299, 1 << 30}).Draw(t, "topK"),
		TopP:              rapid.SampledFrom([]float32{0, 1, 1, 0.95, 0.5, 0.1, 1e-9}).Draw(t, "topP"),
		MinP:              rapid.SampledFrom([]float32{0, 0, 1e-6, 0.05, 0.5, 1}).Draw(t, "minP"),
		RepetitionPenalty: rapid.SampledFrom([]float32{0, 1, 1.3, 0.7, 100, 0.01}).Draw(t, "repetition"),
		FrequencyPenalty:  rapid.SampledFrom([]float32{0, 0, 0.3, -0.3, 2}).Draw(t, "frequency"),
		PresencePenalty:   rapid.SampledFrom([]float32{0, 0, 0.6, -2}).Draw(t, "presence"),
		MinTokens:         rapid.SampledFrom([]int32{0, 0, 5, 50}).Draw(t, "minTokens"),
		MaxTokens:         1 << 20,
		Seed:              rapid.Uint64().Draw(t, "seed"),
		Logprobs:          -1,
	}
	if rapid.Bool().Draw(t, "stops") {
		p.StopIDs = rapid.SliceOfN(rapid.Int32Range(0, int32(vocab+2)), 1, 4).Draw(t, "stop ids")
	}
	if rapid.Bool().Draw(t, "biased") {
		for _, id := range rapid.SliceOfNDistinct(rapid.Int32Range(0, int32(vocab-1)), 1, min(vocab, 8), rapid.ID).Draw(t, "biased ids") {
			p.LogitBias = append(p.LogitBias, sampling.Bias{ID: id, Value: float32(rapid.IntRange(-100, 100).Draw(t, "bias"))})
		}
		slices.SortFunc(p.LogitBias, func(a, b sampling.Bias) int { return cmp.Compare(a.ID, b.ID) })
	}
	return p
}

func TestNextMatchesReference(t *testing.T) {
	var s Sampler // shared, to see that nothing is left behind
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "vocab")
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "logits"), 1))
		spread := rapid.Float64Range(0, 8).Draw(t, "spread")
		z := make([]float32, n)
		for i := range z {
			z[i] = float32(math.Round(rng.NormFloat64()*spread*4) / 4) // with ties
		}
		p := randomParams(t, n)
		if err := p.Check(n); err != nil {
			t.Fatal(err)
		}
		history := rapid.SliceOfN(rapid.Int32Range(0, int32(min(n-1, 20))), 0, 60).Draw(t, "history")
		promptLen := rapid.IntRange(0, 70).Draw(t, "prompt length")
		model := rapid.Uint8().Draw(t, "model")
		q := Sequence{Params: &p, Model: model, PromptLen: int32(promptLen), Counts: NewCounts(n, promptLen)}
		q.Counts.Push(history...)

		row := step.Row{Want: step.FEntropy, Logprobs: 3}
		out, before := step.Out{Position: int32(len(history))}, slices.Clone(z)
		s.Next(z, &q, &row, &out)
		if !slices.Equal(z, before) {
			t.Fatal("the logits were not restored")
		}
		want := reference(z, &p, history, promptLen, model)
		switch {
		case want < 0 && out.Flags != step.FlagNaN:
			t.Fatalf("token %d, but nothing is left", out.Token)
		case want >= 0 && (out.Token != want || out.Flags != 0):
			t.Fatalf("token %d flags %d, want %d", out.Token, out.Flags, want)
		case want < 0:
			return
		}
		// Features and log-probabilities know nothing of the parameters.
		plain := step.Out{Position: out.Position}
		s.Next(z, &Sequence{Params: &sampling.Params{}}, &row, &plain)
		if out.Entropy != plain.Entropy || out.Margin != plain.Margin || !slices.Equal(out.Top, plain.Top) {
			t.Fatalf("features %+v, want those of the raw logits %+v", out, plain)
		}
		given := step.Out{Position: out.Position, Entropy: 7}
		s.Score(z, out.Token, 3, &given)
		if !given.Given || given.Token != out.Token || given.Logprob != out.Logprob || !slices.Equal(given.Top, out.Top) || given.Entropy != 0 {
			t.Fatalf("scored %+v, sampled %+v", given, out)
		}
	})
}

// Counts must equal a recount of what is left, whatever came and went.
func TestCountsFollowTheSequence(t *testing.T) {
	const vocab = 6
	rapid.Check(t, func(t *rapid.T) {
		promptLen := rapid.IntRange(0, 10).Draw(t, "prompt length")
		c := NewCounts(vocab, promptLen)
		var ids []int32
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "action") {
			case 0:
				promptLen = rapid.IntRange(0, 10).Draw(t, "new prompt length")
				c.Reset(promptLen)
				ids = nil
			case 1, 2:
				n := rapid.IntRange(0, 20).Draw(t, "length")
				c.Truncate(n)
				ids = ids[:min(n, len(ids))]
			default:
				more := rapid.SliceOfN(rapid.Int32Range(0, vocab-1), 0, 8).Draw(t, "ids")
				c.Push(more...)
				ids = append(slices.Clone(ids), more...)
			}
			var total, answer [vocab]int32
			for at, id := range ids {
				total[id]++
				if at >= promptLen {
					answer[id]++
				}
			}
			if c.Len() != len(ids) || !slices.Equal(c.total, total[:]) || !slices.Equal(c.answer, answer[:]) {
				t.Fatalf("after %v: %v and %v, want %v and %v", ids, c.total, c.answer, total, answer)
			}
			for id, n := range total {
				if n > 0 && !slices.Contains(c.listed, int32(id)) {
					t.Fatalf("id %d is not listed", id)
				}
			}
			if len(c.listed) > vocab {
				t.Fatalf("listed %v", c.listed)
			}
		}
	})
}

func TestNothingLeft(t *testing.T) {
	p := sampling.Params{MinTokens: 2, MaxTokens: 9, StopIDs: []int32{0, 1}}
	for _, temp := range []float32{0, 1} {
		p.Temperature = temp
		z := []float32{1, 2}
		out := step.Out{Position: 6}
		new(Sampler).Next(z, &Sequence{Params: &p, PromptLen: 5}, &nothing, &out)
		if out.Flags != step.FlagNaN || z[0] != 1 || z[1] != 2 {
			t.Errorf("flags %d, logits %v", out.Flags, z)
		}
		out.Position = 7 // two answer tokens exist
		new(Sampler).Next(z, &Sequence{Params: &p, PromptLen: 5}, &nothing, &out)
		if out.Flags != 0 {
			t.Errorf("flags %d after the minimum", out.Flags)
		}
	}
}

func TestHotPathAllocatesNothing(t *testing.T) {
	z := make([]float32, 500)
	for i := range z {
		z[i] = float32(i*37%101) / 10
	}
	p := sampling.Params{
		Temperature: 1, TopK: 50, TopP: 0.9, MinP: 0.01, RepetitionPenalty: 1.2, FrequencyPenalty: 0.1, PresencePenalty: 0.1,
		LogitBias: []sampling.Bias{{ID: 3, Value: 1}}, MinTokens: 1 << 20, StopIDs: []int32{7},
	}
	c := NewCounts(len(z), 4)
	var s Sampler
	q := Sequence{Params: &p, PromptLen: 4, Counts: c}
	row := step.Row{Want: step.FEntropy, Logprobs: 5}
	out := step.Out{Position: 100}
	round := func() {
		c.Truncate(0)
		for i := range 100 {
			c.Push(int32(i * 3 % len(z)))
		}
		s.Next(z, &q, &row, &out)
		s.Score(z, 3, 5, &out)
	}
	round()
	if n := testing.AllocsPerRun(20, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
