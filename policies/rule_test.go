package policies_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/policies"
)

func TestRulesRefused(t *testing.T) {
	blind := &policies.Text{Size: 10, ThinkStart: -1, ThinkEnd: -1, Bytes: func(int32) []byte { return nil }}
	for _, c := range []struct {
		name  string
		s     policies.Settings
		wants []string
	}{
		{"unknown feature", policies.Settings{Rule: "position > 3 ||\n  entropi > 0.5"}, []string{"rule: line 2, column 3:", `"entropi"`, `did you mean "entropy"?`, "large_share"}},
		{"far from all", policies.Settings{Rule: "temperature_of_water > 1"}, []string{"line 1, column 1:", "Features: entropy, "}},
		{"syntax", policies.Settings{Rule: "entropy >"}, []string{"line 1, column 9:"}},
		{"a second expression", policies.Settings{Rule: "true; false"}, []string{"line 1, column"}},
		{"types", policies.Settings{Rule: "entropy > 'x'"}, []string{"line 1, column 9:", "mismatched types"}},
		{"a number", policies.Settings{Rule: "entropy * 2"}, []string{"expected bool"}},
		{"a text feature", policies.Settings{Rule: "phase"}, []string{"expected bool"}},
		{"name or boolean", policies.Settings{Rule: "entropy > 1 ? 'tiny-l' : false"}, []string{"line 1, column 26:", "in every case"}},
		{"no such model", policies.Settings{Rule: "entropy > 1 ? 'tiny-x' : 'tiny-s'"}, []string{"line 1, column 15:", `"tiny-x"`, "tiny-s, tiny-l"}},
		{"no network", policies.Settings{Rule: "score > 0.5", Net: " "}, []string{"line 1, column 1:", "router"}},
		{"score of the other model", policies.Settings{Rule: "true", ReturnRule: "margin > 1 || score > 0.5"}, []string{"return_rule: line 1, column 15:", "entry model"}},
		{"no phases", policies.Settings{Rule: "phase == 'think'", Text: blind}, []string{"line 1, column 1:", "</think>"}},
		{"a phase that never is", policies.Settings{Rule: "entropy > 0.1 &&\nphase == 'thnik'"}, []string{"line 2, column 10:", `"think" or "answer"`, `"thnik"`}},
		{"the same backwards", policies.Settings{Rule: "'Think' != phase"}, []string{"line 1, column 1:", `"Think"`}},
		{"a phase of a list", policies.Settings{Rule: "phase in ['think', 'end']"}, []string{"line 1, column 20:", `"end"`}},
		{"texts among numbers", policies.Settings{Rule: "token in [1, 'x']"}, []string{"line 1, column 14:", "a text in a list that a number"}},
		{"numbers among texts", policies.Settings{Rule: "(text + 'é') in ['aé', 3]"}, []string{"line 1, column 24:", "a number in a list that a text"}},
		{"division of a text", policies.Settings{Rule: "entropy > 1 || text / 2 > 1"}, []string{"line 1, column 21:", "invalid operation: / (mismatched types string and int)"}},
		{"the function of divisions", policies.Settings{Rule: "divide(1, 2) > 0"}, []string{"line 1, column 1:", "divide"}},
		{"a call", policies.Settings{Rule: "len(text) > 3"}, []string{"line 1, column 1:", "len"}},
		{"a loop", policies.Settings{Rule: "all(1..1000000, # > 0)"}, []string{"line 1, column"}},
		{"a range", policies.Settings{Rule: "position in 1..100000000"}, []string{"line 1, column"}},
		{"a member", policies.Settings{Rule: "text.foo"}, []string{"line 1, column"}},
		{"a regular expression", policies.Settings{Rule: "text matches '(a+)+$'"}, []string{"operator", "matches"}},
		{"a variable", policies.Settings{Rule: "let x = 1; x > 0"}, []string{"line 1, column"}},
		{"empty", policies.Settings{Rule: "  "}, []string{"is empty"}},
		{"no UTF-8", policies.Settings{Rule: "text == '\xff'"}, []string{"UTF-8"}},
		{"long", policies.Settings{Rule: strings.Repeat(" ", 5000) + "true"}, []string{"the limit is 4096"}},
		{"deep", policies.Settings{Rule: strings.Repeat("!", 4000) + "true"}, []string{"rule: "}},
		{"deep brackets", policies.Settings{Rule: strings.Repeat("(", 2000) + "true" + strings.Repeat(")", 2000)}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.s.Models = []string{"tiny-s", "tiny-l"}
			if c.s.Net == " " {
				c.s.Net = ""
			} else {
				c.s.Net = "net"
			}
			_, err := policies.New("rule", 2, c.s)
			if c.wants == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errors.Is(err, policies.ErrRule) {
				t.Fatalf("error %v, want ErrRule", err)
			}
			for _, want := range c.wants {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
		})
	}
}

// Only what the rule names is computed in the step.
func TestRulesAskForWhatTheyRead(t *testing.T) {
	for rule, want := range map[string]policies.Feature{
		"true":                                   0,
		"margin < 1 and position > 2":            0,
		"entropy > 0.1":                          policies.FeatureEntropy,
		"entropy_nats > 0.1 || top1 < 0.5":       policies.FeatureEntropy | policies.FeatureTopK,
		"score > 0.5 ? 'tiny-l' : 'tiny-s'":      policies.FeatureScore,
		"since_hop > 3 && phase == 'think'":      0,
		"max(0.1, min(entropy, 1.0)) > abs(0.5)": policies.FeatureEntropy,
	} {
		s := policies.Settings{Rule: rule, Net: "net", Models: []string{"tiny-s", "tiny-l"}}
		spec := configured(t, "rule", 0, s).Spec()
		if spec.Needs != want {
			t.Errorf("%s: needs %b, want %b", rule, spec.Needs, want)
		}
		if (spec.Net != "") != (want&policies.FeatureScore != 0) || (spec.TopK == 1) != (want&policies.FeatureTopK != 0) {
			t.Errorf("%s: %+v", rule, spec)
		}
		if spec := configured(t, "rule", 1, s).Spec(); spec.Needs != 0 {
			t.Errorf("%s: the other model computes %b", rule, spec.Needs)
		}
	}
}

// A rule that fails hands over; three models have names.
func TestRulesRun(t *testing.T) {
	p := configured(t, "rule", 0, policies.Settings{Rule: "position % since_hop == 0"})
	if got := shown(decisions(p, 0, input{}, input{out: make([]int32, 3)})); got != "1d 1d" {
		t.Errorf("a division by zero and a multiple: %s", got)
	}
	set, err := policies.New("rule", 3, policies.Settings{
		Rule:       "entropy > 0.9 ? 'l' : entropy > 0.5 ? 'm' : 's'",
		ReturnRule: "entropy < 0.1 ? 's' : entropy > 0.9 ? 'l' : 'm'",
		Models:     []string{"s", "m", "l"},
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := []input{{entropy: 0.1}, {entropy: 1.1}, {entropy: 1.9}}
	for self, want := range []string{"0k 1d 2d", "0k 1k 2k", "0k 1k 2k"} {
		if got := shown(decisions(set.For(policies.ModelID(self)), policies.ModelID(self), rows...)); got != want {
			t.Errorf("on model %d: %s, want %s", self, got, want)
		}
	}
}

// What a rule divides by zero, or reads as no number, it does not know: it hands over,
// and returns, whichever way round it compares.
func TestRulesThatDoNotKnow(t *testing.T) {
	nan := math.NaN()
	for _, c := range []struct {
		rule string
		row  input
		want string
	}{
		{"position / since_hop > 3", input{}, "1d"},
		{"position / since_hop < 3", input{}, "1d"},
		{"since_hop / position < 3", input{out: make([]int32, 2)}, "1d"}, // 1, which is below
		{"since_hop / position > 3", input{out: make([]int32, 2)}, "0k"},
		{"margin / entropy > 100", input{margin: 1}, "1d"},
		{"margin / entropy < 100", input{margin: 1}, "1d"},
		{"not (1 / (position - 2) > 0)", input{out: make([]int32, 2)}, "1d"},
		{"position / 2 == 1.5 && position / 2.0 == 1.5", input{out: make([]int32, 3)}, "1d"},
		{"7 / (large_share > 0.5 ? 2 : 3.5) == 2", input{}, "1d"},
		{"0 / 0 == 1 && entropy > 5 ? 'tiny-s' : 'tiny-s'", input{}, "1d"},
		{"entropy > 5 && 0 / 0 == 1", input{}, "0k"}, // it does not come to that
		{"entropy > 0.5", input{entropy: nan}, "1d"},
		{"entropy < 0.5", input{entropy: nan}, "1d"},
		{"entropy_nats > 0.5", input{entropy: nan}, "1d"},
		{"score > 0.5", input{score: nan}, "1d"},
		{"margin < 0.5", input{margin: nan}, "1d"},
		{"position > 5", input{entropy: nan, margin: nan, score: nan}, "0k"}, // it reads none of them
	} {
		p := configured(t, "rule", 0, policies.Settings{Rule: c.rule, Models: []string{"tiny-s", "tiny-l"}})
		if got := shown(decisions(p, 0, c.row)); got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
	}
	p := configured(t, "rule", 1, policies.Settings{Rule: "true", ReturnRule: "margin / entropy > 3"})
	if got := shown(decisions(p, 1, input{margin: 1}, input{entropy: nan}, input{entropy: 2, margin: 2})); got != "0k 0k 1k" {
		t.Errorf("a return rule: %s", got)
	}
}

// The phase follows the answer as it grows, and one that begins anew.
func TestPhaseFollows(t *testing.T) {
	const start, end = 747, 748
	p := configured(t, "rule", 0, policies.Settings{Rule: "phase == 'think'"})
	q := &policies.Req{Prompt: []int32{1, start, 5}, Sampling: sampled()}
	step := func(ids ...int32) bool {
		q.Out = append(q.Out, ids...)
		out := make([]policies.Decision, 1)
		p.Route(&policies.Batch{Reqs: []*policies.Req{q}}, &policies.Result{Token: []int32{1}}, out)
		return out[0].To == 1
	}
	for i, c := range []struct {
		ids  []int32
		want bool
	}{{nil, true}, {[]int32{3, 4}, true}, {[]int32{end}, false}, {[]int32{5, 6}, false}, {[]int32{start, 7}, true}, {[]int32{end, start, end, 8}, false}} {
		if got := step(c.ids...); got != c.want {
			t.Errorf("step %d: thinks is %t", i, got)
		}
	}
	q.Out = q.Out[:2]
	if !step() {
		t.Error("a shorter answer is as it was")
	}
}

func FuzzRule(f *testing.F) {
	for _, rule := range []string{
		"entropy > 0.5 || margin < 0.1 && since_hop > 3", "score > 0.5 ? 'tiny-l' : 'tiny-s'", "position % 0 == 1", "1 / 0 > entropy",
		"token in [1, 2, 3]", "((((true))))", "not (phase == 'think')", "-9223372036854775808 % -1 == 0", "0x7fffffffffffffff + 1 > 0", "round(1e308 * 10) > 0",
		"text == '\\u0000'", "entropy ** 1e9 > 0", "max() > 1", "let x = 1; x", "all(1..9, true)", "abs('x') > 1", "'a' + 'b'", "1 in [", "{\"a\": 1}",
	} {
		f.Add(rule, rule)
	}
	text := trioText(f)
	f.Fuzz(func(t *testing.T, rule, back string) {
		set, err := policies.New("rule", 2, policies.Settings{Rule: rule, ReturnRule: back, Net: "net", Text: text, Models: []string{"tiny-s", "tiny-l"}})
		if err != nil {
			if !errors.Is(err, policies.ErrRule) {
				t.Fatalf("error %v", err)
			}
			return
		}
		rows := []input{{}, {entropy: 1, score: 1, token: 748, out: []int32{747, 1}}, {entropy: math.NaN(), margin: math.Inf(1)}}
		for self := range policies.ModelID(2) {
			p := set.For(self)
			p.Spec()
			for _, d := range decisions(p, self, rows...) {
				if d.To > 1 || !d.Keep && d.To == self || self == 1 && !d.Keep {
					t.Fatalf("%q on model %d decides %+v", rule, self, d)
				}
			}
		}
	})
}
