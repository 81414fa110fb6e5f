package executortest

import (
	"cmp"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/internal/philox"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// continued samples n tokens after a prompt, feeding each back.
func (d *driver) continued(p sampling.Params, model uint8, n int) []int32 {
	d.t.Helper()
	s := d.openAs(p, model)
	defer d.e.Close(s.slot)
	next := d.ids(12, 1)
	var out []int32
	for range n {
		next = []int32{d.last(s, next).Token}
		out = append(out, next[0])
	}
	return out
}

func hot(seed uint64) sampling.Params {
	p := greedyParams()
	p.Temperature, p.Seed = 1e4, seed // nearly flat over the vocabulary
	return p
}

func (s *suite) padding(t *testing.T) {
	d := s.driver(t, standard())
	v := d.e.Info().Vocab
	for seed := range uint64(4) {
		a := d.open(hot(seed))
		for n := range 8 {
			for _, out := range d.feed(part{a, d.ids(8, n), 255}) {
				if out.Token < 0 || int(out.Token) >= v {
					t.Fatalf("seed %d: token %d of a vocabulary of %d", seed, out.Token, v)
				}
				if out.Logits != nil && len(out.Logits) != v {
					t.Fatalf("%d logits, want %d", len(out.Logits), v)
				}
			}
		}
		d.e.Close(a.slot)
	}
}

func (s *suite) seeds(t *testing.T) {
	o := standard()
	first := s.driver(t, o).continued(hot(1), 0, 8)
	if got := s.driver(t, o).continued(hot(1), 0, 8); !slices.Equal(got, first) {
		t.Errorf("seed 1 gave %v, then %v", first, got)
	}
	d := s.driver(t, o)
	if d.e.Info().Vocab < 32 {
		t.Skip("the vocabulary is too small to tell seeds apart")
	}
	if got := d.continued(hot(2), 0, 8); slices.Equal(got, first) {
		t.Errorf("seeds 1 and 2 gave the same %v", got)
	}
	if got := d.continued(hot(1<<32|1), 0, 8); slices.Equal(got, first) {
		t.Errorf("the high half of the seed is lost: %v", got)
	}
	if got := d.continued(hot(1), 1, 8); slices.Equal(got, first) {
		t.Errorf("models 0 and 1 gave the same %v", got)
	}
}

// recipe checks tokens against a plain reading of the sampling recipe (see
// package sampler) over the executor's own logits.
func (s *suite) recipe(t *testing.T) {
	d := s.driver(t, standard())
	if d.e.Info().Features&step.FLogits == 0 {
		t.Skip("the executor does not offer logits")
	}
	tests := []struct {
		name string
		p    sampling.Params
	}{
		{"greedy", sampling.Params{TopP: 1}},
		{"plain", sampling.Params{Temperature: 1, TopP: 1, Seed: 3}},
		{"hot", sampling.Params{Temperature: 50, TopP: 1, Seed: 4}},
		{"cold", sampling.Params{Temperature: 0.05, TopP: 1, Seed: 5}},
		{"top-k", sampling.Params{Temperature: 20, TopK: 7, TopP: 1, Seed: 6}},
		{"top-k of one", sampling.Params{Temperature: 20, TopK: 1, TopP: 1, Seed: 7}},
		{"top-k beyond the vocabulary", sampling.Params{Temperature: 20, TopK: 1 << 30, TopP: 1, Seed: 8}},
		{"top-p", sampling.Params{Temperature: 8, TopP: 0.7, Seed: 9}},
		{"tiny top-p", sampling.Params{Temperature: 8, TopP: 1e-6, Seed: 10}},
		{"top-k and top-p", sampling.Params{Temperature: 20, TopK: 12, TopP: 0.8, Seed: 11}},
	}
	for _, tc := range tests {
		tc.p.Logprobs = -1
		a := d.openAs(tc.p, 5)
		for n := range 3 {
			for _, out := range d.feed(part{a, d.ids(8, n), 255}) {
				s.checkDraw(t, tc.name, &tc.p, 5, out, out.Logits)
			}
		}
		d.e.Close(a.slot)
	}
}

// checkDraw recomputes one draw from adjusted logits z. An executor with a
// tolerance may pick another candidate whose score is within rounding of the best,
// and may cut the candidates one rank off.
func (s *suite) checkDraw(t *testing.T, name string, p *sampling.Params, model uint8, out step.Out, z []float32) {
	t.Helper()
	slack := 0.0
	if s.tolerance > 0 && !p.Greedy() {
		slack = 1e-3
	}
	checkDraw(t, name, p, model, out, z, s.tolerance > 0, slack)
}

// checkDraw recomputes one draw. The token may fall short of the best by slack, and
// if the logits are rounded, equal logits and other candidates are fine too.
func checkDraw(t *testing.T, name string, p *sampling.Params, model uint8, out step.Out, z []float32, rounded bool, slack float64) {
	t.Helper()
	if out.Token < 0 || int(out.Token) >= len(z) {
		t.Errorf("%s: position %d: token %d of a vocabulary of %d", name, out.Position, out.Token, len(z))
		return
	}
	if p.Greedy() {
		want := ranked(z)[0]
		if out.Token != want && !(rounded && float64(z[out.Token]) >= float64(z[want])-slack) {
			t.Errorf("%s: position %d: token %d, want the arg max %d", name, out.Position, out.Token, want)
		}
		return
	}
	stream := philox.Stream{Seed: p.Seed, Position: uint32(out.Position), Model: model, Purpose: philox.Token}
	score := func(id int32) float64 {
		v := (float64(stream.Word(uint32(id))) + 0.5) / (1 << 32)
		return float64(z[id])/float64(p.Temperature) - math.Log(-math.Log1p(-v))
	}
	ids := kept(z, p)
	best := slices.MaxFunc(ids, func(a, b int32) int {
		if c := cmp.Compare(score(a), score(b)); c != 0 {
			return c
		}
		return cmp.Compare(b, a)
	})
	if out.Token == best {
		return
	}
	if !rounded {
		t.Errorf("%s: position %d: token %d, want %d", name, out.Position, out.Token, best)
	} else if score(out.Token) < score(best)-slack && len(ids) == len(z) {
		t.Errorf("%s: position %d: token %d scores too low against %d", name, out.Position, out.Token, best)
	}
}

// ranked lists all ids, best first.
func ranked(z []float32) []int32 {
	ids := make([]int32, len(z))
	for i := range ids {
		ids[i] = int32(i)
	}
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(z[b], z[a]) })
	return ids
}

// kept is the candidate set of top-k, top-p and min-p.
func kept(z []float32, p *sampling.Params) []int32 {
	ids := nucleus(z, p)
	if p.MinP > 0 {
		low := math.Log(float64(p.MinP))
		best := float64(z[ids[0]])
		ids = slices.DeleteFunc(ids, func(id int32) bool { return (float64(z[id])-best)/float64(p.Temperature) < low })
	}
	return ids
}

// nucleus is the candidate set of top-k and top-p.
func nucleus(z []float32, p *sampling.Params) []int32 {
	ids := ranked(z)
	if p.TopK > 0 && int(p.TopK) < len(ids) {
		ids = ids[:p.TopK]
	}
	if p.TopP <= 0 || p.TopP >= 1 {
		return ids
	}
	weight := func(id int32) float64 {
		return math.Exp((float64(z[id]) - float64(z[ids[0]])) / float64(p.Temperature))
	}
	total := 0.0
	for _, id := range ids {
		total += weight(id)
	}
	sum := 0.0
	for n, id := range ids {
		if sum += weight(id); sum >= float64(p.TopP)*total {
			return ids[:n+1]
		}
	}
	return ids
}

// features compares all features with slow sums over the logits.
func (s *suite) features(t *testing.T) {
	d := s.driver(t, standard())
	in := d.e.Info()
	if in.Features&step.FLogits == 0 {
		t.Skip("the executor does not offer logits")
	}
	a := d.open(greedyParams())
	for n := range 4 {
		b := d.batch(part{a, d.ids(10, n), 0b11})
		b.Rows[0].TopK, b.Rows[0].Logprobs = int32(min(3*n, in.Vocab)), int32(4-n)
		for _, out := range d.run(b) {
			checkFeatures(t, in.Features, &b.Rows[0], out)
		}
		a.length += 10
	}
	// Nothing wanted, nothing given.
	b := d.batch(part{a, d.ids(2, 9), 1})
	b.Rows[0].Want, b.Rows[0].Logprobs = 0, -1
	if out := d.run(b)[0]; len(out.Top)+len(out.Logits)+len(out.Hidden) != 0 {
		t.Errorf("features that nobody wanted: %+v", out)
	}
}

func checkFeatures(t *testing.T, offered step.Feature, row *step.Row, out step.Out) {
	t.Helper()
	const slack = 1e-4
	near := func(what string, got float32, want float64) {
		t.Helper()
		if !(math.Abs(float64(got)-want) <= slack*(1+math.Abs(want))) {
			t.Errorf("position %d: %s %v, want %v", out.Position, what, got, want)
		}
	}
	z := out.Logits
	order := ranked(z)
	sum := 0.0
	for _, v := range z {
		sum += math.Exp(float64(v) - float64(z[order[0]]))
	}
	logprob := func(id int32) float64 { return float64(z[id]) - float64(z[order[0]]) - math.Log(sum) }
	near("log-probability", out.Logprob, logprob(out.Token))
	if len(z) > 1 {
		near("margin", out.Margin, float64(z[order[0]])-float64(z[order[1]]))
	}
	if offered&step.FEntropy != 0 {
		entropy := 0.0
		for id := range z {
			entropy -= math.Exp(logprob(int32(id))) * logprob(int32(id))
		}
		near("entropy", out.Entropy, entropy)
		near("ln of the vocabulary", out.LogV, math.Log(float64(len(z))))
	}
	top := int(row.Logprobs)
	if offered&step.FTopK != 0 {
		top = max(top, int(row.TopK))
	}
	if len(out.Top) != top {
		t.Errorf("position %d: %d entries, want %d", out.Position, len(out.Top), top)
		return
	}
	for i, e := range out.Top {
		if e.ID != order[i] || e.Logit != z[e.ID] {
			t.Errorf("position %d: entry %d is %+v, want id %d with logit %v", out.Position, i, e, order[i], z[order[i]])
		}
		near("entry's log-probability", e.Logprob, logprob(e.ID))
	}
}
