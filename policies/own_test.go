package policies_test

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
)

func TestBinary(t *testing.T) {
	var seen policies.Row
	set := policies.Named("mine", policies.Binary(func(r policies.Row) bool { seen = r; return r.Entropy > 0.5 }, policies.FeatureEntropy, policies.FeatureTopK))
	if spec := set.For(0).Spec(); spec.Needs != policies.FeatureEntropy|policies.FeatureTopK || spec.TopK != 1 {
		t.Errorf("spec %+v", spec)
	}
	row := input{entropy: 1.5, margin: 3, top: []float64{2, 1}, token: 9, out: []int32{1, 2, 3}, models: []policies.ModelID{1, 0, 0}}
	if got := shown(decisions(set.For(0), 0, row, input{entropy: 0.5})); got != "1d 0k" {
		t.Errorf("on the entry model: %s", got)
	}
	decisions(set.For(0), 0, row)
	want := policies.Row{Token: 9, Entropy: 0.75, Nats: 1.5, Margin: 3, Top1: math.Exp(-1), Position: 3, PromptLen: 7, SinceHop: 2, LargeShare: 1.0 / 3}
	if seen != want {
		t.Errorf("saw %+v, want %+v", seen, want)
	}
	// What was not asked for is zero, not the quotient of two zeros.
	set.For(0).Route(&policies.Batch{Reqs: []*policies.Req{{}}}, &policies.Result{
		Token: []int32{9}, Entropy: []float32{0}, Score: []float32{0}, Margin: []float32{2},
	}, make([]policies.Decision, 1))
	if want := (policies.Row{Token: 9, Margin: 2}); seen != want {
		t.Errorf("saw %+v, want %+v", seen, want)
	}
	if got := shown(decisions(set.For(1), 1, row)); got != "0k" || set.For(1).Spec().Needs != 0 {
		t.Errorf("on the other model: %s", got)
	}
	if set.Name != "mine" {
		t.Error(set.Name)
	}
}

// Whatever a policy wants, no beginning of an answer has more tokens of the other
// model than the request allows.
func TestLargeShareIsBounded(t *testing.T) {
	for _, name := range append(oneToken(), "r-stitch", "r-stitch+", "glimp-router", "glimp-router, short", "request-level", "me") {
		name, short := strings.CutSuffix(name, ", short")
		s, routed, _ := sides(name)
		if short { // the reasoning ends on the way, and what ends it is put into the text
			s.StepTokens, s.ThinkTokens = 3, 11
		}
		injected := 0
		for _, bound := range []float64{0, 0.1, 1.0 / 3, 0.5, 0.8, 1} {
			turn := policies.Entry
			row := routed
			row.override = &routing.Override{MaxLargeShare: number(bound)}
			large := 0
			for n := range 60 {
				row.token = int32(5 + n) // no step like the one before
				d := decisions(configured(t, name, turn, s), turn, row)[0]
				if !d.Keep {
					if d.To == turn {
						t.Fatalf("%s: a dropped token stays", name)
					}
					turn = d.To
					d = decisions(configured(t, name, turn, s), turn, row)[0]
				}
				injected += len(d.Inject)
				for _, id := range append([]int32{row.token}, d.Inject...) {
					row.out = append(row.out, id)
					row.models = append(row.models, turn)
					if turn != policies.Entry {
						large++
					}
					if n := len(row.out); float64(large) > bound*float64(n)+1e-6 {
						t.Fatalf("%s: %d of %d tokens are the other model's, the bound is %g", name, large, n, bound)
					}
				}
				turn = d.To
			}
			if name == "r2r" && math.Abs(float64(large)/60-bound) > 1.0/60 {
				t.Errorf("r2r, which always routes, has %d of 60 at a bound of %g", large, bound)
			}
		}
		if short && injected == 0 {
			t.Error("void: nothing was put into the text")
		}
	}
}

// What a policy puts into the text counts, as the entry model's if it wrote the token before.
func TestLargeShareCountsWhatIsPutIn(t *testing.T) {
	text := trioText(t)
	p := configured(t, "glimp-router", 0, policies.Settings{})
	row := input{token: text.ThinkEnd, out: make([]int32, 20), top: []float64{90, 1}}
	more := float64(1 + len(text.Close)) // as much may come at once
	at := more / (float64(len(row.out)) + 1 + 1 + more)
	for bound, want := range map[float64]policies.ModelID{at: 1, at - 1e-3: 0} {
		row.override = &routing.Override{MaxLargeShare: number(bound)}
		if d := decisions(p, 0, row)[0]; d.To != want || !d.Keep || len(d.Inject) != 1 {
			t.Errorf("at a bound of %g: %+v, want model %d", bound, d, want)
		}
	}
}

func TestLargeShareOnAdmission(t *testing.T) {
	p := configured(t, "me", 0, policies.Settings{Weights: []float64{0, 1}})
	q := &policies.Req{Sampling: nil}
	for bound, want := range map[float64]policies.Verdict{0: policies.Run, 0.9: policies.Run, 1: policies.Bounce} {
		q.Override = &routing.Override{MaxLargeShare: number(bound)}
		q.Sampling = sampled()
		if v, _ := p.Receive(q, &policies.Handoff{From: policies.Client}); v != want {
			t.Errorf("at a bound of %g: %d, want %d", bound, v, want)
		}
	}
}

// Co-LLM, section 4 of the routing notes: η falls from 1 over the first tokens.
func TestWarmup(t *testing.T) {
	for shape, want := range map[string][4]float64{
		"linear":      {1, 0.7875, 0.575, 0.15},
		"cosine":      {1, 0.15 + 0.85*(1+math.Sqrt2/2)/2, 0.575, 0.15},
		"exponential": {1, math.Pow(0.15, 0.25), math.Sqrt(0.15), 0.15},
	} {
		p := configured(t, "co-llm", 0, policies.Settings{Threshold: number(0.15), Warmup: 20, WarmupShape: shape})
		for i, n := range []int{0, 5, 10, 20} {
			eta := want[i]
			out := make([]int32, n)
			if got := shown(decisions(p, 0, input{score: eta + 1e-5, out: out}, input{score: eta - 1e-5, out: out})); got != "1d 0k" {
				t.Errorf("%s after %d tokens: %s around %g", shape, n, got, eta)
			}
		}
	}
}

// Composed, the hand-off carries p and the likeliest ids, and the receiver has them.
func TestComposeCarriesTheDistribution(t *testing.T) {
	s := policies.Settings{Mode: "compose", Threshold: number(0.5)}
	small, other := configured(t, "co-llm", 0, s), configured(t, "co-llm", 1, s)
	if spec := small.Spec(); spec.TopK == 0 || spec.TopK*8+4 > policies.MaxBlob || spec.Mixes || !other.Spec().Mixes {
		t.Errorf("specs %+v and %+v", spec, other.Spec())
	}
	d := decisions(small, 0, input{score: 0.75, top: []float64{3, 2}}, input{score: 0.5, top: []float64{3}})
	if shown(d) != "1d 0k" || len(d[0].Blob) != 20 || d[1].Blob != nil {
		t.Fatalf("decisions %+v", d)
	}
	h := &policies.Handoff{}
	small.Send(&policies.Req{}, d[0], h)
	q := &policies.Req{}
	other.Receive(q, h)
	if q.Mix == nil || q.Mix.Weight != 0.75 || len(q.Mix.Entries) != 2 || q.Mix.Entries[1] != (policies.TopEntry{ID: 1, Logprob: -2}) {
		t.Errorf("mixes %+v", q.Mix)
	}
	back := &policies.Handoff{Blob: []byte("old")}
	other.Send(q, policies.Decision{Keep: true}, back)
	if len(back.Blob) != 0 {
		t.Error("the return carries a payload")
	}
	// Deferred, nothing travels.
	d = decisions(configured(t, "co-llm", 0, policies.Settings{Threshold: number(0.5)}), 0, input{score: 0.75})
	if d[0].Blob != nil {
		t.Error("defer carries a payload")
	}
}

func FuzzMixture(f *testing.F) {
	d := decisions(configured(f, "co-llm", 0, policies.Settings{Mode: "compose"}), 0, input{score: 0.75, top: []float64{3, 2}})
	f.Add(d[0].Blob)
	f.Add([]byte{0, 0, 128, 63})
	f.Add(bytes.Repeat([]byte{255}, 12))
	p := configured(f, "co-llm", 1, policies.Settings{Mode: "compose"})
	f.Fuzz(func(t *testing.T, b []byte) {
		q := &policies.Req{}
		p.Receive(q, &policies.Handoff{Blob: b})
		if q.Mix == nil {
			return
		}
		if !(q.Mix.Weight >= 0 && q.Mix.Weight <= 1) || len(q.Mix.Entries) > policies.MaxBlob/8 {
			t.Fatalf("%+v", q.Mix)
		}
		for _, e := range q.Mix.Entries {
			if e.ID < 0 || !(e.Logprob < 1) {
				t.Fatalf("%+v", e)
			}
		}
	})
}

func sampled() *sampling.Params { return &sampling.Params{Seed: 1} }
