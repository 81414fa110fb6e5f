package executortest

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// mixed reads step.Mixture plainly: the logarithms of the mixture of two distributions.
func mixed(z []float32, m *step.Mixture) []float32 {
	total := 0.0
	for _, v := range z {
		total += math.Exp(float64(v))
	}
	out := make([]float32, len(z))
	for id, v := range z {
		p := float64(m.Weight) * math.Exp(float64(v)) / total
		for _, e := range m.Entries {
			if int(e.ID) == id {
				p += (1 - float64(m.Weight)) * math.Exp(float64(e.Logprob))
			}
		}
		out[id] = float32(math.Log(p))
	}
	return out
}

// others are distributions to mix in. One names an id twice, one gives little to any,
// one names many ids.
func (d *driver) others() map[string]*step.Mixture {
	ln := func(p float64) float32 { return float32(math.Log(p)) }
	few := []step.TopEntry{{ID: 7, Logprob: ln(0.6)}, {ID: 2, Logprob: ln(0.25)}, {ID: 11, Logprob: ln(0.1)}}
	rest := []step.TopEntry{{ID: 3, Logprob: ln(0.4)}, {ID: 5, Logprob: -60}, {ID: 3, Logprob: ln(0.3)}, {ID: 8, Logprob: float32(math.Inf(-1))}}
	var many []step.TopEntry
	for i := range min(64, d.e.Info().Vocab) {
		many = append(many, step.TopEntry{ID: int32(i), Logprob: ln(1.0 / 64)})
	}
	return map[string]*step.Mixture{
		"half and half": {Weight: 0.5, Entries: few},
		"mostly own":    {Weight: 0.9, Entries: rest},
		"hardly own":    {Weight: 1e-4, Entries: rest},
		"own alone":     {Weight: 1, Entries: few},
		"nothing":       {Weight: 0.3},
		"many":          {Weight: 0.4, Entries: many},
	}
}

// mixtures checks draws from mixtures, several positions of a row and rows with and
// without one in a step, with parameters that work on top of them.
func (s *suite) mixtures(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FMix|step.FLogits, "mixtures or logits")
	const promptLen, model = 3, 2
	params := map[string]sampling.Params{
		"greedy": {}, "plain": {Temperature: 1}, "hot": {Temperature: 3}, "top-k": {Temperature: 2, TopK: 9}, "top-p": {Temperature: 1, TopP: 0.8},
		"min-p": {Temperature: 2, MinP: 0.05},
	}
	if d.e.Info().Features&step.FAdjust != 0 {
		for _, name := range []string{"repetition", "bias", "everything", "everything, greedy"} {
			params[name] = adjustments(d.e.Info().Vocab)[name]
		}
	}
	plain := d.open(greedyParams())
	for name, p := range params {
		p.MaxTokens, p.Logprobs, p.Seed = 1<<20, -1, 99
		for other, m := range d.others() {
			a := d.openWith(executor.SeqConfig{Sampling: p, Model: model, PromptLen: promptLen})
			if err := d.e.Truncate(plain.slot, 0); err != nil {
				t.Fatal(err)
			}
			plain.length = 0
			b := d.batch(part{plain, d.ids(3, 4), 1}, part{a, d.ids(10, 5), 0b1001001})
			b.Rows[1].Mix = m
			out := d.run(b)
			if len(out) != 4 {
				t.Fatalf("%d outputs, want 4", len(out))
			}
			for i, o := range out {
				what := fmt.Sprintf("%s, %s, output %d", name, other, i)
				checkFeatures(t, d.e.Info().Features, &b.Rows[o.Row], o) // the model's own, and the token's own log-probability
				if i == 0 {
					p := greedyParams()
					s.checkDraw(t, what, &p, 0, o, o.Logits)
					continue
				}
				y := adjusted(mixed(o.Logits, m), &p, d.ids(10, 5)[:o.Position], promptLen)
				checkDraw(t, what, &p, model, o, y, true, 1e-3)
			}
			d.release(a, b)
		}
	}
}

// release closes a sequence whose pages were all patched in by one batch.
func (d *driver) release(s *seq, b *step.Batch) {
	d.e.Close(s.slot)
	for _, p := range b.Patches {
		if p.Slot == s.slot {
			d.free = append(d.free, p.Page)
		}
	}
}

// badMixtures checks that what is no distribution is refused, and changes nothing.
func (s *suite) badMixtures(t *testing.T) {
	d := s.driver(t, standard())
	d.needs(step.FMix, "mixtures")
	vocab := int32(d.e.Info().Vocab)
	nan := float32(math.NaN())
	a := d.open(greedyParams())
	good := step.TopEntry{ID: 1, Logprob: -1}
	for name, m := range map[string]step.Mixture{
		"negative weight":             {Weight: -0.1, Entries: []step.TopEntry{good}},
		"weight above one":            {Weight: 1.1, Entries: []step.TopEntry{good}},
		"weight that is no number":    {Weight: nan, Entries: []step.TopEntry{good}},
		"negative id":                 {Weight: 0.5, Entries: []step.TopEntry{good, {ID: -1, Logprob: -1}}},
		"id of a padded row":          {Weight: 0.5, Entries: []step.TopEntry{good, {ID: vocab, Logprob: -1}}},
		"probability that is none":    {Weight: 0.5, Entries: []step.TopEntry{{ID: 1, Logprob: nan}}},
		"probability far above one":   {Weight: 0.5, Entries: []step.TopEntry{{ID: 1, Logprob: 2}}},
		"more entries than there are": {Weight: 0.5, Entries: slices.Repeat([]step.TopEntry{good}, int(vocab)+1)},
	} {
		b := &step.Batch{Rows: []step.Row{{Slot: a.slot, Tokens: d.ids(4, 1), Sample: 1, Logprobs: -1, Mix: &m}}}
		b.Patches = []step.PagePatch{{Slot: a.slot, Page: d.free[0]}}
		if _, err := d.e.Launch(b); !errors.Is(err, executor.ErrBadBatch) {
			t.Errorf("%s: error %v, want ErrBadBatch", name, err)
		}
	}
	want := d.last(d.open(greedyParams()), d.ids(4, 1))
	s.same(t, "after refusals", d.last(a, d.ids(4, 1)), want)
}
