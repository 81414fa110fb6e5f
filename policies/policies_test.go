package policies

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
)

// golden holds decisions of every policy on both sides of its threshold.
// Each line is: policy threshold model | entropy/lnV ... = decisions.
const golden = "testdata/decisions.txt"

func TestDecisionGoldens(t *testing.T) {
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for n, line := range strings.Split(string(text), "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		given, want, ok := strings.Cut(line, "=")
		if !ok {
			t.Fatalf("line %d has no =", n+1)
		}
		if got := decide(t, given); got != strings.TrimSpace(want) {
			t.Errorf("line %d: %s\n got %s\nwant %s", n+1, given, got, strings.TrimSpace(want))
		}
	}
}

// decide runs one golden line: `name τ self h h h …`, where h is the
// normalised entropy of consecutive answer positions.
func decide(t *testing.T, given string) string {
	t.Helper()
	fields := strings.Fields(given)
	var tau float64
	var self ModelID
	fmt.Sscan(fields[1], &tau)
	fmt.Sscan(fields[2], &self)
	settings := Settings{Threshold: &tau}
	if fields[0] == "trace" {
		settings.Trace = "1 1 drop, 3 1 keep, 3@1 1 keep, 4@1 0 keep"
	}
	models := 2
	if fields[0] == "single" {
		models = 1
	}
	set, err := New(fields[0], models, settings)
	if err != nil {
		t.Fatal(err)
	}
	p := set.For(self)
	const logV = 2
	b, r := &Batch{}, &Result{LogV: logV}
	keyed := fields[0] == "request-level" && len(fields) > 3 && fields[3] == "keyed"
	if keyed {
		fields = append(fields[:3:3], fields[4:]...)
	}
	for i, f := range fields[3:] {
		h := float32(math.NaN())
		if f != "nan" {
			var v float64
			fmt.Sscan(f, &v)
			h = float32(v * logV)
		}
		q := &Req{Self: self, PromptLen: 7, Out: make([]int32, i), Sampling: &sampling.Params{Seed: 1}}
		if fields[0] == "request-level" {
			q.Out = nil // the score counts for the first token alone
		}
		if keyed {
			q.Key = 9
		}
		b.Reqs = append(b.Reqs, q)
		r.Token = append(r.Token, int32(i))
		r.Entropy = append(r.Entropy, h)
	}
	out := make([]Decision, len(b.Reqs))
	p.Route(b, r, out)
	var s []string
	for _, d := range out {
		s = append(s, fmt.Sprintf("%d%s", d.To, map[bool]string{true: "k", false: "d"}[d.Keep]))
	}
	return strings.Join(s, " ")
}

// A dropped token must leave the model, or the request would never move on.
func TestDroppedTokensLeave(t *testing.T) {
	for _, name := range Names() {
		if name == "single" {
			continue
		}
		zero := 0.0
		set, err := New(name, 2, Settings{Threshold: &zero, Trace: "0 1 drop", Rule: "entropy > 0.1", Net: "net"})
		if err != nil {
			t.Fatal(err)
		}
		for self := range ModelID(2) {
			b := &Batch{Reqs: []*Req{{Self: self, Sampling: &sampling.Params{}}}}
			out := make([]Decision, 1)
			set.For(self).Route(b, &Result{
				Token: []int32{3}, Entropy: []float32{1}, LogV: 2, Score: []float32{0.5}, Top: [][]TopEntry{{{ID: 3}, {ID: 4}}},
			}, out)
			if !out[0].Keep && out[0].To == self {
				t.Errorf("%s on model %d drops a token and stays", name, self)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	high, nan := 1.5, math.NaN()
	for _, c := range []struct {
		name, policy string
		models       int
		settings     Settings
		want         string
	}{
		{"unknown", "r-stich", 2, Settings{}, "known: citer, co-llm"},
		{"one model", "random", 1, Settings{}, "want 2"},
		{"threshold above 1", "r-stitch", 2, Settings{Threshold: &high}, "between 0 and 1"},
		{"threshold NaN", "random", 2, Settings{Threshold: &nan}, "between 0 and 1"},
		{"weights for fewer models", "me", 3, Settings{Weights: []float64{1, 1}}, "2 values for 3 models"},
		{"negative weight", "me", 2, Settings{Weights: []float64{1, -1}}, "weights[1]"},
		{"score above 1", "r2r", 2, Settings{Threshold: &high}, "between 0 and 1"},
		{"bad checkpoint", "citer", 2, Settings{Checkpoint: &high}, "between 0 and 1"},
		{"bad gate", "r-stitch+", 2, Settings{NetThreshold: &high}, "router_threshold"},
		{"bad mode", "co-llm", 2, Settings{Mode: "mix"}, "defer, compose"},
		{"bad shape", "co-llm", 2, Settings{WarmupShape: "square"}, "linear, cosine, exponential"},
		{"bad warm-up", "co-llm", 2, Settings{Warmup: -1}, "warmup"},
		{"bad step", "glimp-router", 2, Settings{StepTokens: -1}, "step_tokens"},
		{"bad reasoning", "glimp-router", 2, Settings{ThinkTokens: 1 << 30}, "think_tokens"},
		{"no reasoning", "glimp-router", 2, Settings{Text: &Text{ThinkEnd: -1}}, "no token </think>"},
		{"bad condition", "immediate", 2, Settings{Epistemic: &nan}, "epistemic"},
		{"no rule", "rule", 2, Settings{}, "is empty"},
		{"no weight", "me", 2, Settings{Weights: []float64{0, 0}}, "all are 0"},
		{"trace fields", "trace", 2, Settings{Trace: "1 drop"}, "POSITION[@MODEL]"},
		{"trace position", "trace", 2, Settings{Trace: "-1 1 drop"}, "position"},
		{"trace model", "trace", 2, Settings{Trace: "1 2 keep"}, "below 2"},
		{"trace word", "trace", 2, Settings{Trace: "1 1 hold"}, "keep nor drop"},
		{"trace stays", "trace", 2, Settings{Trace: "1 0 drop"}, "another model"},
		{"trace twice", "trace", 2, Settings{Trace: "1 1 drop,1 1 keep"}, "twice"},
		{"trace circle", "trace", 2, Settings{Trace: "1 1 drop,1@1 0 drop"}, "circle"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := New(c.policy, c.models, c.settings)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error is %v, want one with %q", err, c.want)
			}
		})
	}
}

// TokenRouter paper, section 3.5: the share of entry steps that random hands
// over is its probability.
func TestSettingsCheck(t *testing.T) {
	tau := 0.5
	for setting, c := range map[string]struct {
		set     Settings
		readers string
	}{
		"threshold":        {Settings{Threshold: &tau}, "citer co-llm entropy glimp-router immediate r-stitch r-stitch+ r2r random request-level"},
		"weights":          {Settings{Weights: []float64{1, 2}}, "me"},
		"trace":            {Settings{Trace: "0 1 drop"}, "trace"},
		"router":           {Settings{Net: "net"}, "citer co-llm r-stitch+ r2r rule"},
		"router_threshold": {Settings{NetThreshold: &tau}, "r-stitch+"},
		"mode":             {Settings{Mode: "defer"}, "co-llm"},
		"warmup":           {Settings{Warmup: 3}, "co-llm"},
		"step_tokens":      {Settings{StepTokens: 3}, "glimp-router"},
		"return_rule":      {Settings{ReturnRule: "true"}, "rule"},
	} {
		for _, name := range append(Names(), "other") {
			ok := slices.Contains(strings.Fields(c.readers), name) || name == "other" // which New refuses
			if err := c.set.Check(name); (err == nil) != ok {
				t.Errorf("%s with %s: %v", name, setting, err)
			}
		}
	}
	for _, name := range Names() {
		if err := (Settings{}).Check(name); err != nil {
			t.Error(err)
		}
	}
}

func TestPaperSection3_5RandomShare(t *testing.T) {
	p := 0.1
	set, err := New("random", 2, Settings{Threshold: &p})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	b, r := &Batch{}, &Result{Token: make([]int32, n)}
	for i := range n {
		b.Reqs = append(b.Reqs, &Req{PromptLen: i, Sampling: &sampling.Params{Seed: 42}})
	}
	out := make([]Decision, n)
	set.For(Entry).Route(b, r, out)
	routed := 0
	for _, d := range out {
		if !d.Keep {
			routed++
		}
	}
	// Five standard deviations of a binomial share.
	if share, bound := float64(routed)/n, 5*math.Sqrt(p*(1-p)/n); math.Abs(share-p) > bound {
		t.Errorf("share is %.4f, want %.2f ± %.4f", share, p, bound)
	}
}

// Mixture-model-like ensemble, section 7 of the routing notes: every position's
// model is drawn from the weights, the first one too, whoever draws.
func TestEnsembleShares(t *testing.T) {
	weights := []float64{2, 3, 5}
	set, err := New("me", 3, Settings{Weights: weights})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20000
	counts := make([]int, 3)
	first := make([]int, 3)
	for i := range n {
		q := &Req{PromptLen: i, Sampling: &sampling.Params{Seed: 7}}
		var to [3]ModelID
		for self := range ModelID(3) {
			out := make([]Decision, 1)
			set.For(self).Route(&Batch{Reqs: []*Req{q}}, &Result{Token: []int32{1}}, out)
			if !out[0].Keep {
				t.Fatal("a token was dropped")
			}
			to[self] = out[0].To
		}
		if to[0] != to[1] || to[1] != to[2] {
			t.Fatalf("position %d: the models draw %v", i, to)
		}
		counts[to[0]]++
		verdict, k := set.For(Entry).Receive(q, &Handoff{From: Client})
		if (verdict == Bounce) != (k != Entry) {
			t.Fatalf("verdict %d with model %d", verdict, k)
		}
		first[k]++
	}
	for k, w := range weights {
		want := w / 10
		bound := 5 * math.Sqrt(want*(1-want)/n)
		for name, c := range map[string][]int{"token": counts, "first token": first} {
			if share := float64(c[k]) / n; math.Abs(share-want) > bound {
				t.Errorf("%s: model %d has share %.4f, want %.2f ± %.4f", name, k, share, want, bound)
			}
		}
	}
}

// R2R's strategy immediate routes from its thresholds on, all of them that are given;
// a value that is equal is met, and one that is no number counts as met.
func TestImmediateAtItsThresholds(t *testing.T) {
	var top []TopEntry
	for range immediateTop {
		top = append(top, TopEntry{Logit: 2})
	}
	aleatoric, epistemic := evidence(top)
	const entropy = 1.5
	up := func(v float64) *float64 { v = math.Nextafter(v, 10); return &v }
	at := func(v float64) *float64 { return &v }
	nan := float32(math.NaN())
	for name, c := range map[string]struct {
		s       Settings
		entropy float32
		top     []TopEntry
		drop    bool
	}{
		"all at":          {Settings{Threshold: at(aleatoric), Epistemic: at(epistemic), Entropy: at(entropy)}, entropy, top, true},
		"aleatoric below": {Settings{Threshold: up(aleatoric), Epistemic: at(epistemic), Entropy: at(entropy)}, entropy, top, false},
		"epistemic below": {Settings{Threshold: at(aleatoric), Epistemic: up(epistemic), Entropy: at(entropy)}, entropy, top, false},
		"entropy below":   {Settings{Threshold: at(aleatoric), Epistemic: at(epistemic), Entropy: up(entropy)}, entropy, top, false},
		"aleatoric alone": {Settings{Threshold: at(aleatoric)}, 0, top, true},
		"no entropy":      {Settings{Threshold: at(aleatoric), Entropy: at(entropy)}, nan, top, true},
		"no number":       {Settings{Threshold: at(aleatoric), Epistemic: at(0)}, 0, append([]TopEntry{{Logit: nan}}, top[1:]...), true},
		"at a pole":       {Settings{Threshold: at(aleatoric)}, 0, append([]TopEntry{{Logit: -1}}, top[1:]...), true},
	} {
		set, err := New("immediate", 2, c.s)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]Decision, 1)
		set.For(Entry).Route(&Batch{Reqs: []*Req{{Sampling: &sampling.Params{}}}}, &Result{
			Token: []int32{1}, LogV: 2, Entropy: []float32{c.entropy}, Top: [][]TopEntry{c.top},
		}, out)
		if out[0].Keep == c.drop {
			t.Errorf("%s: %+v", name, out[0])
		}
	}
}

// A request with a threshold of its own is decided by it, and its conversation's other
// requests are not.
func TestStickyButForOwnThresholds(t *testing.T) {
	set, err := New("request-level", 2, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	p := set.For(Entry)
	ask := func(entropy float32, own *float64) bool {
		q := &Req{Key: 9, Sampling: &sampling.Params{}}
		if own != nil {
			q.Override = &routing.Override{Threshold: own}
		}
		out := make([]Decision, 1)
		p.Route(&Batch{Reqs: []*Req{q}}, &Result{Token: []int32{1}, LogV: 1, Entropy: []float32{entropy}}, out)
		return out[0].Keep
	}
	zero, one := 0.0, 1.0
	for i, c := range []struct {
		entropy float32
		own     *float64
		keep    bool
	}{
		{0.05, &zero, false}, // not remembered
		{0.05, nil, true},    // this is
		{0.9, nil, true},
		{0.9, &zero, false}, // in spite of it
		{0.9, &one, true},
		{0.9, nil, true},
	} {
		if keep := ask(c.entropy, c.own); keep != c.keep {
			t.Errorf("request %d: kept %t", i, keep)
		}
	}
}

// Who wrote an answer is counted as it grows, and anew for a shorter one.
func TestWritersAreCountedAlong(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 2))
	q := &Req{}
	for range 2000 {
		switch draw.IntN(9) {
		case 0:
			q.Models = q.Models[:draw.IntN(len(q.Models)+1)]
			large(q)
		case 1: // several at once
			q.Models = append(q.Models, 1, 1, 2)
		default:
			q.Models = append(q.Models, ModelID(draw.IntN(3)))
		}
		others, run := 0, 0
		for i, m := range q.Models {
			if m != Entry {
				others++
			}
			if run++; i > 0 && m != q.Models[i-1] {
				run = 1
			}
		}
		if large(q) != others || sinceHop(q) != run {
			t.Fatalf("%v: %d and %d, want %d and %d", q.Models, large(q), sinceHop(q), others, run)
		}
	}
}

func BenchmarkLongAnswer(b *testing.B) {
	set, err := New("rule", 2, Settings{Rule: "large_share < 0.1 && since_hop > 3"})
	if err != nil {
		b.Fatal(err)
	}
	p := set.For(Entry)
	q := &Req{Out: make([]int32, 32000), Models: make([]ModelID, 32000), Sampling: &sampling.Params{}}
	batch, r, out := &Batch{Reqs: []*Req{q}}, &Result{Token: []int32{1}, Margin: []float32{1}}, make([]Decision, 1)
	for b.Loop() {
		p.Route(batch, r, out)
	}
}

// The memory of conversations is bounded and forgets the oldest.
func TestStickyIsBounded(t *testing.T) {
	d := newDecisions(3)
	for key := range uint64(6) {
		d.put(key, 1)
	}
	for key, want := range []bool{false, false, false, true, true, true} {
		if _, known := d.get(uint64(key)); known != want {
			t.Errorf("key %d is known: %t, want %t", key, known, want)
		}
	}
	if len(d.model) != 3 {
		t.Errorf("%d keys are kept, want 3", len(d.model))
	}
}
