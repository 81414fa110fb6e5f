package executortest

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// adjusted reads the recipe of package sampler plainly: penalties, bias and banned
// ids, for the token that follows history.
func adjusted(z []float32, p *sampling.Params, history []int32, promptLen int) []float32 {
	y := slices.Clone(z)
	total, answer := map[int32]int{}, map[int32]int{}
	for at, id := range history {
		total[id]++
		if at >= promptLen {
			answer[id]++
		}
	}
	for id := range total {
		switch r := p.RepetitionPenalty; {
		case r == 0:
		case y[id] > 0:
			y[id] /= r
		default:
			y[id] = float32(y[id] * r)
		}
	}
	for id, n := range answer {
		y[id] -= float32(p.FrequencyPenalty * float32(n))
		y[id] -= p.PresencePenalty
	}
	for _, b := range p.LogitBias {
		y[b.ID] += b.Value
	}
	for _, id := range p.StopIDs {
		if len(history) < promptLen+int(p.MinTokens) && int(id) < len(y) {
			y[id] = float32(math.Inf(-1))
		}
	}
	return y
}

// adjustments are parameters that change the logits, alone and together.
func adjustments(vocab int) map[string]sampling.Params {
	stops := []int32{int32(vocab - 1), 3, int32(vocab), 1 << 30} // two that no model writes
	bias := []sampling.Bias{{ID: 0, Value: 3}, {ID: 3, Value: -100}, {ID: 5, Value: 0.5}}
	all := sampling.Params{Temperature: 3, RepetitionPenalty: 1.3, FrequencyPenalty: 0.4, PresencePenalty: -0.7,
		LogitBias: bias, MinTokens: 18, StopIDs: stops, TopK: 20, TopP: 0.95, MinP: 0.01}
	greedy := all
	greedy.Temperature = 0
	return map[string]sampling.Params{
		"repetition":         {Temperature: 2, RepetitionPenalty: 5},
		"repetition wanted":  {Temperature: 2, RepetitionPenalty: 0.2},
		"frequency":          {Temperature: 0, FrequencyPenalty: 2},
		"frequency wanted":   {Temperature: 0, FrequencyPenalty: -2},
		"presence":           {Temperature: 1, PresencePenalty: 2},
		"bias":               {Temperature: 1, LogitBias: bias},
		"one id forced":      {Temperature: 1, LogitBias: []sampling.Bias{{ID: 7, Value: 100}}},
		"minimum length":     {Temperature: 0, MinTokens: 20, StopIDs: stops, LogitBias: []sampling.Bias{{ID: 3, Value: 100}}},
		"min-p":              {Temperature: 5, MinP: 0.2},
		"everything":         all,
		"everything, greedy": greedy,
	}
}

// adjusts checks draws against the recipe at every position of prompt and answer,
// in a slot that is fed in pieces, cut, and fed again.
func (s *suite) adjusts(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FAdjust|step.FLogits, "adjusted logits or logits")
	const promptLen, model = 9, 3
	for name, p := range adjustments(d.e.Info().Vocab) {
		p.MaxTokens, p.Logprobs, p.Seed = 1<<20, -1, 77
		a := d.openWith(executor.SeqConfig{Sampling: p, Model: model, PromptLen: promptLen})
		var history []int32
		rng := rand.New(rand.NewPCG(5, 6))
		for n := range 8 {
			if n%3 == 2 {
				cut := rng.IntN(len(history) + 1)
				if err := d.e.Truncate(a.slot, cut); err != nil {
					t.Fatal(err)
				}
				a.length, history = cut, history[:cut:cut]
			}
			ids := make([]int32, 1+rng.IntN(14))
			for i := range ids {
				ids[i] = int32(rng.IntN(10)) // many of them again and again
			}
			// Every other position gives a token, so that some are passed over.
			mask := uint64(0x5555) & (1<<len(ids) - 1)
			for _, out := range d.feed(part{a, ids, mask}) {
				before := append(history[:len(history):len(history)], ids[:int(out.Position)-len(history)]...)
				y := adjusted(out.Logits, &p, before, promptLen)
				s.checkDraw(t, fmt.Sprintf("%s after %v", name, before), &p, model, out, y)
			}
			history = append(history, ids...)
		}
		d.e.Close(a.slot)
	}
}

// redone checks that a slot that went wrong ways, and a new slot that is fed the
// whole history at once, both go on as if nothing had happened.
func (s *suite) redone(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FAdjust, "adjusted logits")
	p := adjustments(d.e.Info().Vocab)["everything"]
	p.MaxTokens, p.Logprobs, p.Seed = 1<<20, -1, 5
	cfg := executor.SeqConfig{Sampling: p, PromptLen: 6}
	prompt := d.ids(6, 1)

	straight := d.openWith(cfg)
	history := slices.Clone(prompt)
	want := []step.Out{d.last(straight, prompt)}
	for range 12 {
		id := want[len(want)-1].Token
		history = append(history, id)
		want = append(want, d.last(straight, []int32{id}))
	}
	astray, err := d.openWith(cfg), error(nil)
	d.feed(part{astray, prompt, 1})
	for n := len(prompt); n < len(history); n++ {
		// A dropped token, then one that another model wrote, then back again.
		d.feed(part{astray, d.ids(3, n), 0b101})
		if err = d.e.Truncate(astray.slot, n); err != nil {
			t.Fatal(err)
		}
		astray.length = n
		s.same(t, "after a cut", d.last(astray, history[n:n+1]), want[n+1-len(prompt)])
	}
	for n := len(prompt); n <= len(history); n += 4 {
		again := d.openWith(cfg)
		s.same(t, "fed at once", d.last(again, history[:n]), want[n-len(prompt)])
		d.e.Close(again.slot)
	}
}

// refusals checks that what is not offered is refused, and not ignored.
func (s *suite) refusals(t *testing.T) {
	d := s.driver(t, standard())
	in := d.e.Info()
	for name, p := range adjustments(in.Vocab) {
		p.MaxTokens = 1 << 20
		slot, err := d.e.Open(executor.SeqConfig{Sampling: p})
		switch offered := in.Features&step.FAdjust != 0; {
		case offered && err != nil:
			t.Errorf("%s: %v", name, err)
		case !offered && !errors.Is(err, executor.ErrUnsupported):
			t.Errorf("%s: error %v, want ErrUnsupported", name, err)
		case err == nil:
			d.e.Close(slot)
		}
	}
	var field *sampling.FieldError
	bad := sampling.Params{LogitBias: []sampling.Bias{{ID: int32(in.Vocab), Value: 1}}}
	if _, err := d.e.Open(executor.SeqConfig{Sampling: bad}); !errors.As(err, &field) || field.Field != "logit_bias" {
		t.Errorf("bias beyond the vocabulary: error %v, want one of logit_bias", err)
	}
	if _, err := d.e.Open(executor.SeqConfig{PromptLen: -1}); err == nil {
		t.Error("negative prompt length: no error")
	}
	if in.Features&step.FGiven == 0 {
		a := d.open(greedyParams())
		b := d.batch(part{a, d.ids(4, 1), 1})
		b.Rows[0].Given, b.Rows[0].Logprobs = d.ids(2, 1), 1
		if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("given ids: error %v, want ErrBadBatch", err)
		}
	}
	if in.Features&step.FMix == 0 {
		a := d.open(greedyParams())
		b := d.batch(part{a, d.ids(4, 1), 1})
		b.Rows[0].Mix = &step.Mixture{Weight: 1}
		if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("a mixture: error %v, want ErrBadBatch", err)
		}
	}
	if in.Features&step.FAdopt == 0 {
		a := d.open(greedyParams())
		a.length = in.PageSize
		if _, err := d.e.Launch(d.batch(part{a, d.ids(4, 1), 1})); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("adopted pages: error %v, want ErrBadBatch", err)
		}
	}
}
