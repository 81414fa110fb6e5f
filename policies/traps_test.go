package policies_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
)

// The traps of the routing notes, section 11, as far as a policy alone can step
// into them. docs/policies.md says where the others are tested.

func number(v float64) *float64 { return &v }

// configured returns an instance of a policy for one model of two.
func configured(t testing.TB, name string, self policies.ModelID, s policies.Settings) policies.Policy {
	t.Helper()
	if s.Text == nil {
		s.Text = trioText(t)
	}
	if s.Net == "" {
		s.Net = "net"
	}
	set, err := policies.New(name, 2, s)
	if err != nil {
		t.Fatal(err)
	}
	return set.For(self)
}

// input is one row for a policy.
type input struct {
	token                  int32
	score, entropy, margin float64
	top                    []float64 // raw logits, descending
	out                    []int32
	models                 []policies.ModelID
	prompt                 []int32
	kind                   policies.Kind
	override               *routing.Override
}

// decisions asks a policy about rows of one batch. ln V is 2.
func decisions(p policies.Policy, self policies.ModelID, rows ...input) []policies.Decision {
	b, r := &policies.Batch{}, &policies.Result{LogV: 2}
	for _, in := range rows {
		for len(in.models) < len(in.out) {
			in.models = append(in.models, 0)
		}
		b.Reqs = append(b.Reqs, &policies.Req{
			Self: self, PromptLen: max(len(in.prompt), 7), Prompt: in.prompt, Out: in.out, Models: in.models, Sampling: &sampling.Params{Seed: 1}, Override: in.override,
		})
		r.Token = append(r.Token, in.token)
		r.Score = append(r.Score, float32(in.score))
		r.Entropy = append(r.Entropy, float32(in.entropy))
		r.Margin = append(r.Margin, float32(in.margin))
		r.Kind = append(r.Kind, in.kind)
		if in.top == nil {
			in.top = []float64{in.entropy, 0} // more of both for one who looks at either
		}
		var top []policies.TopEntry
		for i, z := range in.top {
			top = append(top, policies.TopEntry{ID: int32(i), Logit: float32(z), Logprob: float32(-1 - i)})
		}
		r.Top = append(r.Top, top)
	}
	out := make([]policies.Decision, len(rows))
	p.Route(b, r, out)
	return out
}

func shown(list []policies.Decision) string {
	var s []string
	for _, d := range list {
		s = append(s, fmt.Sprintf("%d%s", d.To, map[bool]string{true: "k", false: "d"}[d.Keep]))
	}
	return strings.Join(s, " ")
}

// routing are settings and a row by which the entry model's candidate is routed, and
// one by which it is not.
func sides(name string) (s policies.Settings, routed, kept input) {
	routed, kept = input{score: 0.9, entropy: 1.9}, input{score: 0.1, entropy: 0.01}
	switch name {
	case "citer":
		routed.score, kept.score = 0.1, 0.99
	case "r-stitch+":
		routed.score = 0.1
	case "random":
		s.Threshold = number(1)
	case "rule":
		s.Rule = "entropy > 0.5"
	case "immediate":
		s.Threshold = number(0.5)
		routed.top = []float64{2, 2, 2, 2, 2, 2, 2, 2, 2, 2}
		kept.top = []float64{90, 1, 1, 1, 1, 1, 1, 1, 1, 1}
	case "glimp-router":
		routed.top, kept.top = []float64{1, 1, 1, 1}, []float64{90, 1}
	}
	return s, routed, kept
}

// oneToken are the policies whose other model writes one token and returns.
func oneToken() []string {
	return []string{"citer", "co-llm", "entropy", "immediate", "r2r", "random", "rule"}
}

func TestTrap01KeptOrDropped(t *testing.T) {
	for _, name := range append(oneToken(), "r-stitch", "r-stitch+", "glimp-router", "request-level") {
		s, routed, kept := sides(name)
		if got := shown(decisions(configured(t, name, 0, s), 0, routed)); got != "1d" {
			t.Errorf("%s: a routed candidate is %s, want 1d", name, got)
		}
		if name == "random" {
			s.Threshold = number(0)
		}
		if got := shown(decisions(configured(t, name, 0, s), 0, kept)); got != "0k" {
			t.Errorf("%s: another candidate is %s, want 0k", name, got)
		}
		for _, d := range decisions(configured(t, name, 1, s), 1, routed, kept) {
			if !d.Keep {
				t.Errorf("%s: the other model drops a token", name)
			}
		}
	}
	// Small to large is dropped, large to small kept; the last token of a visit is sure.
	if got := shown(decisions(configured(t, "r-stitch", 1, policies.Settings{}), 1, input{entropy: 1}, input{entropy: 0.01})); got != "1k 0k" {
		t.Errorf("r-stitch on the large model: %s", got)
	}
	for self := range policies.ModelID(2) {
		for _, d := range decisions(configured(t, "me", self, policies.Settings{}), self, make([]input, 64)...) {
			if !d.Keep {
				t.Error("me drops a token")
			}
		}
	}
}

func TestTrap08ComparisonSense(t *testing.T) {
	const below, at, above = 0.25 - 1e-6, 0.25, 0.25 + 1e-6
	tau := policies.Settings{Threshold: number(0.25)}
	for name, want := range map[string]string{
		"r2r":    "0k 1d 1d", // at or above
		"citer":  "1d 0k 0k", // below
		"co-llm": "0k 0k 1d", // above
	} {
		p := configured(t, name, 0, tau)
		if got := shown(decisions(p, 0, input{score: below}, input{score: at}, input{score: above})); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		if got := shown(decisions(p, 0, input{score: math.NaN()})); got != "1d" {
			t.Errorf("%s: a score that is no number is %s, want 1d", name, got)
		}
		// A threshold that is no single number: the score of the same decimals is equal to it.
		p = configured(t, name, 0, policies.Settings{Threshold: number(0.95)})
		if got := shown(decisions(p, 0, input{score: 0.95})); got != strings.Fields(want)[1] {
			t.Errorf("%s: 0.95 at a threshold of 0.95 is %s", name, got)
		}
	}
	for self, want := range []string{"0k 0k 1d", "0k 0k 1k"} { // above; at or below returns
		p := configured(t, "r-stitch", policies.ModelID(self), tau)
		if got := shown(decisions(p, policies.ModelID(self), input{entropy: 2 * below}, input{entropy: 2 * at}, input{entropy: 2 * above})); got != want {
			t.Errorf("r-stitch on model %d: %s, want %s", self, got, want)
		}
	}
	ln2 := policies.Settings{Threshold: number(math.Ln2)} // of two equal logits, exactly
	if got := shown(decisions(configured(t, "glimp-router", 0, ln2), 0, input{top: []float64{1, 1}}, input{top: []float64{1.01, 1}})); got != "1d 0k" {
		t.Errorf("glimp-router: %s", got)
	}
	if got := shown(decisions(configured(t, "entropy", 0, tau), 0, input{entropy: below}, input{entropy: at})); got != "0k 1d" {
		t.Errorf("entropy: %s", got)
	}
	// What is no number counts as unsure.
	nan := math.NaN()
	for name, row := range map[string]input{
		"entropy":       {entropy: nan},
		"r-stitch":      {entropy: nan},
		"r-stitch+":     {entropy: 1.9, score: nan},
		"request-level": {entropy: nan},
		"glimp-router":  {top: []float64{1, nan}},
	} {
		if got := shown(decisions(configured(t, name, 0, policies.Settings{}), 0, row)); got != "1d" {
			t.Errorf("%s without a number: %s", name, got)
		}
	}
}

// r-stitch divides by ln V, entropy does not, glimp-router takes 20 logits and
// renormalises. One distribution, three numbers.
func TestTrap09ThreeEntropies(t *testing.T) {
	row := input{entropy: 0.5, top: []float64{0, 0}} // H = 0.5, H/ln V = 0.25, of the top two ln 2
	for name, value := range map[string]float64{"entropy": 0.5, "r-stitch": 0.25, "glimp-router": math.Ln2} {
		for _, c := range []struct {
			tau  float64
			want string
		}{{value - 0.01, "1d"}, {value + 0.01, "0k"}} {
			p := configured(t, name, 0, policies.Settings{Threshold: number(c.tau)})
			if got := shown(decisions(p, 0, row)); got != c.want {
				t.Errorf("%s at %g: %s, want %s", name, c.tau, got, c.want)
			}
		}
	}
	// 0·ln 0 is 0, and a far logit adds nothing.
	p := configured(t, "glimp-router", 0, policies.Settings{Threshold: number(0.01)})
	if got := shown(decisions(p, 0, input{top: []float64{0, -1e30, math.Inf(-1)}})); got != "0k" {
		t.Errorf("a certain first token is %s", got)
	}
	if p.Spec().TopK != 20 {
		t.Errorf("glimp-router looks at %d logits, want 20", p.Spec().TopK)
	}
}

// A routed end of the answer is dropped like any other candidate: policies look at
// no ids but those that mark the reasoning.
func TestTrap10EndIsJudged(t *testing.T) {
	for _, name := range append(oneToken(), "r-stitch", "r-stitch+", "request-level", "glimp-router") {
		s, routed, _ := sides(name)
		routed.token = 746 // <|im_end|>
		if got := shown(decisions(configured(t, name, 0, s), 0, routed)); got != "1d" {
			t.Errorf("%s: an end that is routed is %s, want 1d", name, got)
		}
	}
}

// The other model's token is never judged by the entry model's measure, and needs
// no feature.
func TestTrap11NoRouteOnResume(t *testing.T) {
	for _, name := range oneToken() {
		s, routed, kept := sides(name)
		p := configured(t, name, 1, s)
		if got := shown(decisions(p, 1, routed, kept)); got != "0k 0k" {
			t.Errorf("%s: the other model's tokens are %s", name, got)
		}
		if p.Spec().Needs != 0 || p.Spec().Net != "" {
			t.Errorf("%s: the other model computes %+v", name, p.Spec())
		}
		if v, to := p.Receive(&policies.Req{}, &policies.Handoff{}); v != policies.Run || to != 1 {
			t.Errorf("%s: an arrival is %d, %d", name, v, to)
		}
	}
}

// The token after the prompt is judged like any other.
func TestTrap14FirstToken(t *testing.T) {
	for _, name := range append(oneToken(), "r-stitch", "r-stitch+", "glimp-router", "request-level") {
		s, routed, _ := sides(name)
		for _, kind := range []policies.Kind{policies.Prefill, policies.Extend, policies.Decode} {
			routed.kind = kind
			if got := shown(decisions(configured(t, name, 0, s), 0, routed)); got != "1d" {
				t.Errorf("%s: after a pass of kind %d: %s", name, kind, got)
			}
		}
	}
}

func TestTrap16ThinkOrAnswer(t *testing.T) {
	const start, end = 747, 748
	unsure := []float64{1, 1, 1}
	for name, c := range map[string]struct {
		prompt, out []int32
		phase, want string
	}{
		"plain prompt":          {[]int32{1, 2}, nil, "answer", "1d"},
		"prompt opens":          {[]int32{1, start}, nil, "think", "1d"},
		"prompt opens and more": {[]int32{1, start, 9}, nil, "think", "1d"},
		"prompt closes":         {[]int32{1, start, 9, end, 9}, nil, "answer", "1d"},
		"an old turn closes":    {[]int32{end, 1, 2, 3, 4, 5, 6, 7, 8}, nil, "answer", "1d"},
		"answer opens":          {[]int32{1}, []int32{start, 5}, "think", "0k"}, // within a step
		"answer closed":         {[]int32{1}, []int32{start, 5, end}, "answer", "1d"},
	} {
		rule := configured(t, "rule", 0, policies.Settings{Rule: "phase == 'think'"})
		got := "answer"
		if decisions(rule, 0, input{prompt: c.prompt, out: c.out})[0].To == 1 {
			got = "think"
		}
		if got != c.phase {
			t.Errorf("%s: phase %s, want %s", name, got, c.phase)
		}
		glimp := configured(t, "glimp-router", 0, policies.Settings{})
		if got := shown(decisions(glimp, 0, input{prompt: c.prompt, out: c.out, top: unsure})); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	// A prompt that closes the reasoning has no steps to be sure of.
	for name, c := range map[string]struct {
		prompt []int32
		want   string
	}{"opens": {[]int32{1, start}, "0k"}, "closes": {[]int32{1, start, 9, end, 9}, "1d"}} {
		glimp := configured(t, "glimp-router", 0, policies.Settings{})
		if got := shown(decisions(glimp, 0, input{prompt: c.prompt, top: []float64{90, 1}})); got != c.want {
			t.Errorf("a prompt that %s it, and a sure token: %s, want %s", name, got, c.want)
		}
	}
	// The answer is the large model's, and what is forced into the text comes once.
	large := configured(t, "glimp-router", 1, policies.Settings{})
	if got := shown(decisions(large, 1, input{out: []int32{end, 5}})); got != "1k" {
		t.Errorf("the answer on the large model: %s", got)
	}
	text := trioText(t)
	if d := decisions(large, 1, input{token: end, out: []int32{5}})[0]; show(text, d) != `1k+"\n\n"` {
		t.Errorf("the model's own end: %s", show(text, d))
	}
}

func TestTrap17ThresholdPrecedence(t *testing.T) {
	for _, c := range []struct {
		policy string
		s      policies.Settings
		want   float64
	}{
		{"r2r", policies.Settings{}, 0.5},
		{"r2r", policies.Settings{Checkpoint: number(0.40596)}, 0.40596},
		{"r2r", policies.Settings{Checkpoint: number(0.40596), Threshold: number(0)}, 0}, // set to zero is set
		{"citer", policies.Settings{}, 0.95},
		{"citer", policies.Settings{Checkpoint: number(0.98)}, 0.98},
		{"co-llm", policies.Settings{}, 0.15},
		{"co-llm", policies.Settings{Checkpoint: number(0.3), Threshold: number(0.2)}, 0.2},
		{"r-stitch+", policies.Settings{Checkpoint: number(0.7)}, 0.03}, // the network's, not the entropy's
	} {
		c.s.Net = "net"
		set, err := policies.New(c.policy, 2, c.s)
		if err != nil {
			t.Fatal(err)
		}
		if set.Threshold != c.want {
			t.Errorf("%s with %+v: threshold %v, want %v", c.policy, c.s, set.Threshold, c.want)
		}
		// What a request says wins over all.
		if c.policy == "r2r" {
			o := &routing.Override{Threshold: number(0.9)}
			if got := shown(decisions(set.For(0), 0, input{score: 0.89, override: o}, input{score: 0.91, override: o})); got != "0k 1d" {
				t.Errorf("r2r at 0.9 for one request: %s", got)
			}
		}
	}
	gate := configured(t, "r-stitch+", 0, policies.Settings{Checkpoint: number(0.7), NetThreshold: number(0.2)})
	if got := shown(decisions(gate, 0, input{entropy: 2, score: 0.1}, input{entropy: 2, score: 0.2}, input{entropy: 0, score: 0.1})); got != "1d 0k 0k" {
		t.Errorf("r-stitch+ at a gate of 0.2: %s", got)
	}
}

// Nothing but the policies of chance routes by chance.
func TestTrap18NoCoin(t *testing.T) {
	for _, name := range append(oneToken(), "r-stitch", "r-stitch+", "glimp-router") {
		if name == "random" {
			continue
		}
		s, routed, kept := sides(name)
		for _, c := range []struct {
			row  input
			want string
		}{{routed, "1d"}, {kept, "0k"}} {
			rows := make([]input, 500)
			for i := range rows {
				rows[i] = c.row
				if name != "glimp-router" { // which decides at a step's start
					rows[i].out = make([]int32, i)
				}
			}
			for i, d := range decisions(configured(t, name, 0, s), 0, rows...) {
				if got := shown([]policies.Decision{d}); got != c.want {
					t.Fatalf("%s: row %d is %s, want %s", name, i, got, c.want)
				}
			}
		}
	}
}

// Draws belong to (seed, position): neighbours in the batch change nothing.
func TestTrap19DrawsKnowNoNeighbours(t *testing.T) {
	var rows []input
	for i := range 100 {
		rows = append(rows, input{out: make([]int32, i)})
	}
	for _, name := range []string{"random", "me"} {
		together := decisions(configured(t, name, 0, policies.Settings{}), 0, rows...)
		backwards := slices.Clone(rows)
		slices.Reverse(backwards)
		reversed := decisions(configured(t, name, 0, policies.Settings{}), 0, backwards...)
		slices.Reverse(reversed)
		for i := range rows {
			alone := decisions(configured(t, name, 0, policies.Settings{}), 0, rows[i])[0]
			if a, b, c := shown(together[i:i+1]), shown(reversed[i:i+1]), shown([]policies.Decision{alone}); a != b || a != c {
				t.Fatalf("%s: position %d is %s, %s and %s", name, i, a, b, c)
			}
		}
	}
}

// One instance, many requests: what one has written moves nobody else. The state
// that travels makes no difference either.
func TestTrap22StatePerRequest(t *testing.T) {
	recorded := readRecorded(t, "tiny-s", 0)
	answer := recorded.ids[len(recorded.prompt):]
	instance := func() policies.Policy {
		return configured(t, "glimp-router", 0, policies.Settings{Threshold: number(0.01)})
	}
	p, quiet := instance(), instance()
	request := func() *policies.Req {
		return &policies.Req{PromptLen: len(recorded.prompt), Prompt: recorded.prompt, Sampling: &sampling.Params{}}
	}
	carried, alone := request(), request()
	// Neighbours that are further, and that have only begun.
	ahead, behind := &policies.Req{Sampling: &sampling.Params{}}, &policies.Req{Sampling: &sampling.Params{}}
	for n := range len(answer) {
		carried.Out = answer[:n]
		carried.Models = make([]policies.ModelID, n)
		alone.Out, alone.Models = carried.Out, carried.Models
		ahead.Out = append(ahead.Out, answer[(7*n)%len(answer)])
		if n%3 == 0 {
			behind.Out = append(behind.Out, answer[n/3])
		}
		fresh := request()
		fresh.Out, fresh.Models = carried.Out, carried.Models
		top := []policies.TopEntry{{Logit: 1}, {Logit: 0}}
		out, want := make([]policies.Decision, 5), make([]policies.Decision, 1)
		p.Route(&policies.Batch{Reqs: []*policies.Req{ahead, carried, behind, fresh, behind}}, &policies.Result{
			Token: []int32{5, answer[n], 6, answer[n], 6}, Top: [][]policies.TopEntry{top, top, top, top, top},
		}, out)
		quiet.Route(&policies.Batch{Reqs: []*policies.Req{alone}}, &policies.Result{Token: []int32{answer[n]}, Top: [][]policies.TopEntry{top}}, want)
		for _, q := range []*policies.Req{ahead, behind} {
			same := &policies.Req{Out: q.Out, Sampling: q.Sampling}
			quiet.Route(&policies.Batch{Reqs: []*policies.Req{same}}, &policies.Result{Token: []int32{5}, Top: [][]policies.TopEntry{top}}, make([]policies.Decision, 1))
			if same.State != q.State {
				t.Fatalf("position %d: a neighbour of %d tokens is elsewhere than alone", n, len(q.Out))
			}
		}
		if shown(out[1:2]) != shown(want) || shown(out[3:4]) != shown(want) || fresh.State != alone.State || carried.State != alone.State {
			t.Fatalf("position %d: %s with its state, %s without, %s alone", n, shown(out[1:2]), shown(out[3:4]), shown(want))
		}
	}
	if n := len(carried.State.Get()); n == 0 || n > policies.MaxState {
		t.Errorf("the state has %d bytes", n)
	}
}

// A step may end within a token, and its blank line may be cut in two.
func TestTrap27DelimiterInTokens(t *testing.T) {
	texts := []string{"", "a", ".\n\n", "\n", "\n\n", "\nb", ")\n", "\n \n", "x\n\ny"}
	text := &policies.Text{
		Size: len(texts), ThinkStart: -1, ThinkEnd: 100, Close: []int32{100},
		Bytes: func(id int32) []byte { return []byte(texts[id]) },
	}
	for name, c := range map[string]struct {
		ids  []int32
		ends bool
	}{
		"inside":                  {[]int32{1, 2}, true},
		"two halves":              {[]int32{1, 6, 3}, true},
		"two halves with letters": {[]int32{6, 5}, true},
		"one newline":             {[]int32{1, 3}, false},
		"a letter between":        {[]int32{3, 1, 3}, false},
		"a space between":         {[]int32{1, 7}, false},
		"in the middle":           {[]int32{8}, true},
		"alone":                   {[]int32{4}, true},
		"the step before ended":   {[]int32{1, 2, 3}, false}, // its newline is not this step's
	} {
		p := configured(t, "glimp-router", 1, policies.Settings{Text: text})
		last := len(c.ids) - 1
		d := decisions(p, 1, input{token: c.ids[last], out: c.ids[:last]})
		if got := shown(d); got != map[bool]string{true: "0k", false: "1k"}[c.ends] {
			t.Errorf("%s: %s", name, got)
		}
	}
	// The same step twice ends the reasoning, also if it is in other words between.
	p := configured(t, "glimp-router", 1, policies.Settings{Text: text})
	if d := decisions(p, 1, input{token: 2, out: []int32{1, 2, 1}})[0]; len(d.Inject) != 1 || d.To != 1 {
		t.Errorf("a repeated step: %+v", d)
	}
	if d := decisions(p, 1, input{token: 2, out: []int32{1, 2, 6, 2, 1}})[0]; len(d.Inject) != 0 {
		t.Errorf("a step like the one before the last: %+v", d)
	}
}

// docs/policies.md names a test for every trap; they must exist.
func TestTrapsAreCovered(t *testing.T) {
	text, err := os.ReadFile("../docs/policies.md")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+)` (Test[A-Za-z0-9_]+)")
	for n := 1; n <= 30; n++ {
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^\| %d \|.*$`, n)).FindString(string(text))
		tests := named.FindAllStringSubmatch(row, -1)
		if len(tests) == 0 {
			t.Errorf("trap %d has no test in docs/policies.md", n)
		}
		for _, m := range tests {
			files, err := filepath.Glob(filepath.Join("..", m[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			found := slices.ContainsFunc(files, func(file string) bool {
				source, err := os.ReadFile(file)
				return err == nil && strings.Contains(string(source), "func "+m[2]+"(")
			})
			if !found {
				t.Errorf("trap %d: there is no %s in %s", n, m[2], m[1])
			}
		}
	}
}
