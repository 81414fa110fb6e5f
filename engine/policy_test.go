package engine

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/router"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

func at(v float64) *float64 { return &v }

// drawn are questions with seeds, which some policies draw by.
func drawn(n, maxTokens int) []Request {
	list := questions(n, maxTokens)
	for i := range list {
		seed := uint64(i)
		list[i].Seed = &seed
	}
	return list
}

// settled are all policies, set so that both models write. The networks are ones that
// nobody has trained.
func settled(t *testing.T) map[string]Policy {
	r2r, citer := writeRouter(t, router.R2R, 128, nil), writeRouter(t, router.CITER, 128, nil)
	coLLM := writeRouter(t, router.CoLLM, 128, nil)
	return map[string]Policy{
		"r2r":             {Name: "r2r", Router: r2r, Threshold: at(0.5)},
		"citer":           {Name: "citer", Router: citer, Threshold: at(0.5)},
		"co-llm":          {Name: "co-llm", Router: coLLM, Threshold: at(0.5), Warmup: 5},
		"co-llm, compose": {Name: "co-llm", Router: coLLM, Threshold: at(0.4), Mode: "compose"},
		"r-stitch+":       {Name: "r-stitch+", Router: citer, Threshold: at(0.0001), RouterThreshold: at(0.6)},
		"rule of scores":  {Name: "rule", Router: r2r, Rule: "score > 0.5 ? 'tiny-l' : 'tiny-s'"},
		"entropy":         {Name: "entropy", Threshold: at(0.07)},
		"glimp-router":    {Name: "glimp-router", Threshold: at(0.05), StepTokens: 12},
		"immediate":       {Name: "immediate", Threshold: at(2)},
		"me":              {Name: "me"},
		"request-level":   {Name: "request-level", Threshold: at(0.0004)},
		"r-stitch":        {Name: "r-stitch", Threshold: at(0.01)},
		"random":          {Name: "random", Threshold: at(0.3)},
		"rule":            {Name: "rule", Rule: "entropy > 0.01 || phase == 'answer' && since_hop > 2", ReturnRule: "margin > 3 or since_hop > 4"},
		"own": {Own: policies.Named("own", policies.Binary(func(r policies.Row) bool {
			return r.Entropy > 0.01 && r.Position%2 == 0
		}))},
	}
}

// each has a deployment for each policy, under its name.
func each(policies map[string]Policy) func(*Config) {
	return func(cfg *Config) {
		cfg.Device, cfg.Deployments = "cpu", nil
		for name, policy := range policies {
			cfg.Deployments = append(cfg.Deployments, Deployment{Name: name, Models: []string{"tiny-s", "tiny-l"}, Policy: policy})
		}
	}
}

// Under every policy a request has one answer, whatever the schedule, the batching
// thresholds and its neighbours, also where a replica is lost on the way.
func TestPoliciesWriteTheSame(t *testing.T) {
	policies := settled(t)
	base := drawn(few(2, 3), few(70, 100))
	base = append(base, seeded(base[:few(1, 2)])...)
	var list []Request // as many of each policy, one policy after the other
	names := slices.Sorted(maps.Keys(policies))
	for _, name := range names {
		for _, r := range base {
			r.Model = name
			list = append(list, r)
		}
	}
	var want [][]said
	for _, c := range []struct {
		rule      schedule.Rule
		threshold int
		atOnce    int
		die       bool
		long      bool
	}{{schedule.Delayed, 1, 1, false, false}, {schedule.Delayed, 3, 7, false, true}, {schedule.Lockstep, 1, 4, false, true}, {schedule.Eager, 1, len(list), true, false}} {
		if c.long && testing.Short() {
			continue
		}
		e := patient(start(t, func(cfg *Config) {
			each(policies)(cfg)
			cfg.Schedule, cfg.Models[1].Threshold = c.rule, c.threshold
			cfg.Models[0].Replicas, cfg.Models[1].Replicas = 2, 2
		}))
		var once sync.Once
		got := answers(t, e, list, c.atOnce, func() {
			if c.die { // with the first of all, so that it meets every policy
				once.Do(func() { e.kill("tiny-s-0"); e.kill("tiny-l-1") })
			}
		})
		if want == nil {
			want = got
			for i, name := range names {
				t.Run(name, func(t *testing.T) { checkShares(t, got[i*len(base):(i+1)*len(base)]) })
			}
		}
		for i := range want {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s, %v, question %d: %s", list[i].Model, c, i%len(base), d)
			}
		}
		awaitIdle(t, e)
	}
}

// Whatever a request wants besides, under every policy it has one answer: alone, beside
// all the others at other thresholds, and moved on the way from one entry to another.
func TestPoliciesKeepWhatRequestsWant(t *testing.T) {
	policies := settled(t)
	deploy := each(policies)
	quiet := start(t, deploy)
	var list []Request
	var names []string
	for name := range policies {
		base := drawn(1, few(30, 50))[0]
		base.Model, base.Temperature = name, at(0.8)
		plain, err := ask(quiet, base)
		if err != nil {
			t.Fatal(err)
		}
		for kind, k := range kinds(plain) {
			if testing.Short() && kind != "all" {
				continue
			}
			r := base
			k.change(&r)
			r.MaxTokens = min(r.MaxTokens, few(30, 60))
			r.MinTokens = min(r.MinTokens, r.MaxTokens)
			list, names = append(list, r), append(names, name+", "+kind)
		}
	}
	want := answers(t, quiet, list, 1, nil)
	busy := start(t, func(cfg *Config) {
		deploy(cfg)
		cfg.PageSize, cfg.ChunkTokens = 16, 16
		cfg.Models[0].Replicas, cfg.Models[1].Replicas, cfg.Models[1].Threshold = 2, 2, 3
	})
	busy.cut(t, 9, true)
	got := answers(t, busy, list, 24, nil)
	for i := range list {
		if d := differs(got[i], want[i]); d != "" {
			t.Errorf("%s: %s", names[i], d)
		}
	}
	awaitIdle(t, busy)
}

// Log-probabilities are for the client alone: policies see as many of the largest logits
// as they want, clients as many as they asked for, and nothing else changes.
func TestLogprobsRouteNothing(t *testing.T) {
	policies := settled(t)
	e := start(t, each(policies))
	var list []Request
	for name := range policies {
		for _, top := range []int{0, 1, 20} {
			r := drawn(1, 40)[0]
			r.Model, r.Temperature = name, at(0.8)
			r.Logprobs, r.TopLogprobs = top > 0, top
			list = append(list, r)
		}
	}
	got := answers(t, e, list, 8, nil)
	for i, r := range list {
		plain, a := got[i-i%3][0], got[i][0]
		if !slices.Equal(a.IDs, plain.IDs) || !slices.Equal(a.Models, plain.Models) {
			t.Errorf("%s with %d log-probabilities: %q by %v, without %q by %v", r.Model, r.TopLogprobs, a.Text, a.Models, plain.Text, plain.Models)
		}
		if n := len(a.Logprobs); r.Logprobs && n != len(a.IDs)*(1+2*r.TopLogprobs) {
			t.Errorf("%s: %d values of %d tokens, with the %d likeliest", r.Model, n, len(a.IDs), r.TopLogprobs)
		}
	}
}

// Whoever leaves in the middle, on whichever model the turn is, leaves nothing behind,
// and those who stay have their answers.
func TestLeaveUnderEveryPolicy(t *testing.T) {
	policies := settled(t)
	e := start(t, each(policies))
	var stay, leave []Request
	for name := range policies {
		for i, r := range drawn(3, 60) {
			r.Model = name
			if i == 0 {
				stay = append(stay, r)
			} else {
				r.N = i
				leave = append(leave, r)
			}
		}
	}
	want := answers(t, e, stay, 1, nil)
	var leaving conc.WaitGroup
	for i, r := range leave {
		leaving.Go(func() {
			n := 0
			for _, err := range e.Generate(t.Context(), r) {
				if err != nil {
					t.Errorf("%s: %v", r.Model, err)
				}
				if n++; n > 1+i%25 {
					break
				}
			}
		})
	}
	got := answers(t, e, stay, len(stay), nil)
	leaving.Wait()
	for i := range stay {
		if d := differs(got[i], want[i]); d != "" {
			t.Errorf("%s: %s", stay[i].Model, d)
		}
	}
	awaitIdle(t, e)
}

// handed is a policy that hands over a number of times, and remembers how often by what
// Send puts into the state.
type handed struct{ self policies.ModelID }

func (handed) Spec() policies.Spec { return policies.Spec{Stateful: true} }

func (p handed) Route(b *policies.Batch, _ *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		out[i] = policies.Decision{To: 0, Keep: true}
		if p.self == 0 && handovers(&q.State) < 6 {
			out[i] = policies.Decision{To: 1}
		}
	}
}

func (handed) Send(_ *policies.Req, _ policies.Decision, h *policies.Handoff) {
	h.State.Set([]byte{handovers(&h.State) + 1})
}

func (p handed) Receive(q *policies.Req, h *policies.Handoff) (policies.Verdict, policies.ModelID) {
	return policies.Run, p.self
}

func handovers(s *policies.State) byte {
	if s.Len == 0 {
		return 0
	}
	return s.Bytes[0]
}

// What Send puts into the state is there on the other side, and comes back.
func TestOwnStateTravels(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Deployments[0].Policy = Policy{Own: policies.Named("handed", func(self policies.ModelID) policies.Policy { return handed{self} })}
		c.Models[0].Replicas = 2
	})
	list := questions(3, 30)
	check := func(what string) {
		t.Helper()
		for i, a := range answers(t, e, list, 3, nil) {
			if n := a[0].End.Count("tiny-l"); n != 3 {
				t.Errorf("%s, question %d: tiny-l wrote %d tokens, want 3", what, i, n)
			}
		}
	}
	check("undisturbed")
	e.cut(t, 2, true)
	check("moved")
}

// putting is a policy that puts ids behind the third token of an answer.
type putting struct {
	self policies.ModelID
	on   policies.ModelID
	ids  []int32
}

func (putting) Spec() policies.Spec { return policies.Spec{} }

func (p putting) Route(b *policies.Batch, r *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		out[i] = policies.Decision{To: p.self, Keep: true}
		switch {
		case p.self != p.on: // at the very first token
			out[i] = policies.Decision{To: p.on}
		case len(q.Out) == 2:
			out[i].Inject = p.ids
		}
	}
}

func (putting) Send(*policies.Req, policies.Decision, *policies.Handoff) {}

func (p putting) Receive(*policies.Req, *policies.Handoff) (policies.Verdict, policies.ModelID) {
	return policies.Run, p.self
}

// An end is an end and the limit the limit also among ids that a policy puts into the
// text, on either model; nothing of them follows it.
func TestEndsAmongWhatIsPutIn(t *testing.T) {
	const end, a, b = 746, 10, 11 // <|im_end|> and two others
	cases := map[string]struct {
		ids    []int32
		limit  int
		finish string
		want   []int32 // behind the third token
	}{
		"all":             {[]int32{a, b}, 5, "length", []int32{a, b}},
		"the limit":       {[]int32{a, b}, 4, "length", []int32{a}},
		"the limit there": {[]int32{a, b}, 3, "length", nil},
		"an end":          {[]int32{a, end, b, b}, 20, "stop", []int32{a, end}},
		"an end at once":  {[]int32{end, end}, 20, "stop", []int32{end}},
	}
	named := func(name string, on policies.ModelID) string { return fmt.Sprintf("%s on model %d", name, on) }
	e := start(t, func(cfg *Config) {
		cfg.Deployments = nil
		for on := range policies.ModelID(2) {
			for name, c := range cases {
				own := policies.Named("putting", func(self policies.ModelID) policies.Policy { return putting{self, on, c.ids} })
				cfg.Deployments = append(cfg.Deployments, Deployment{Name: named(name, on), Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Own: own}})
			}
		}
	})
	for on := range policies.ModelID(2) {
		for name, c := range cases {
			r := questions(1, c.limit)
			r[0].Model = named(name, on)
			got := answers(t, e, r, 1, nil)[0][0]
			if got.End.Finish != c.finish || got.End.Completion != 3+len(c.want) || len(got.IDs) < 3 || !slices.Equal(got.IDs[3:], c.want) {
				t.Errorf("%s: %v, %+v", r[0].Model, got.IDs, got.End)
			}
			awaitIdle(t, e)
		}
	}
}

// A route straight after the other model's token hands over no new id but that one,
// and a routed end never ends the answer: with every token routed, the answer is
// the large model's own.
func TestTrap04EmptySuffix(t *testing.T) {
	e := start(t, func(c *Config) { c.Deployments[0].Policy = Policy{Name: "random", Threshold: at(1)} })
	list := questions(4, 200)
	got := answers(t, e, list, 4, nil)
	for i := range list {
		list[i].Model = "tiny-l"
	}
	want := answers(t, e, list, 4, nil)
	for i := range want {
		if got[i][0].Text != want[i][0].Text || got[i][0].End.Count("tiny-l") != len(got[i][0].IDs) {
			t.Errorf("question %d: got %q, want %q", i, got[i][0].Text, want[i][0].Text)
		}
	}
}

// Rows of an output matrix beyond the tokenizer's ids are never sampled, on either
// model and under the mixture of both, however hot.
func TestTrap21PaddedRowsAreNeverSampled(t *testing.T) {
	nets := settled(t)
	for name, policy := range map[string]Policy{"random": {Name: "random", Threshold: at(0.5)}, "compose": nets["co-llm, compose"]} {
		e := start(t, func(c *Config) { c.Deployments[0].Policy, c.Device = policy, "cpu" })
		for _, m := range e.models {
			if m.config.VocabSize <= m.vocab {
				t.Fatalf("void: %s has %d rows for %d ids", m.cfg.Name, m.config.VocabSize, m.vocab)
			}
		}
		list := drawn(2, 400)
		for i := range list {
			list[i].Temperature, list[i].TopP, list[i].IgnoreEOS, list[i].Logprobs, list[i].TopLogprobs = at(2), at(1), true, true, 20
		}
		for _, a := range answers(t, e, list, 2, nil) {
			checkShares(t, [][]said{a})
			for i, id := range a[0].IDs {
				if int(id) >= e.models[0].vocab {
					t.Fatalf("%s: token %d is %d", name, i, id)
				}
			}
		}
	}
}

// Dropped tokens cost no length, and a visit ends at the limit in its middle.
func TestTrap15LengthCountsCommitted(t *testing.T) {
	for name, policy := range map[string]Policy{
		"random":   {Name: "random", Threshold: at(0.5)},
		"r-stitch": {Name: "r-stitch", Threshold: at(0)}, // never returns
	} {
		e := start(t, func(c *Config) { c.Deployments[0].Policy = policy })
		for n := 1; n < 8; n++ {
			got := answers(t, e, questions(1, n), 1, nil)
			if end := got[0][0].End; end.Completion != n || end.Finish != "length" {
				t.Errorf("%s: %d tokens, want %d (%s)", name, end.Completion, n, end.Finish)
			}
		}
	}
}

func TestOverrides(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Deployments[0].AllowOverride = true
		c.Models[0].Replicas, c.Models[1].Replicas = 2, 2
	})
	with := func(o *routing.Override) []Request {
		list := drawn(3, 80)
		for i := range list {
			list[i].Routing = o
		}
		return list
	}
	share := func(answers [][]said) (large, all int) {
		for _, a := range answers {
			large += a[0].End.Count("tiny-l")
			all += len(a[0].IDs)
		}
		return large, all
	}
	for name, c := range map[string]struct {
		o        *routing.Override
		from, to float64
	}{
		"single":         {&routing.Override{Policy: "single"}, 0, 0},
		"all":            {&routing.Override{Policy: "random", Threshold: at(1)}, 1, 1},
		"half":           {&routing.Override{Policy: "random", Threshold: at(1), MaxLargeShare: at(0.5)}, 0.47, 0.5},
		"none":           {&routing.Override{MaxLargeShare: at(0)}, 0, 0},
		"own, sure":      {&routing.Override{Threshold: at(1)}, 0, 0},
		"own, by name":   {&routing.Override{Policy: "r-stitch", Threshold: at(0)}, 1, 1},
		"request, large": {&routing.Override{Policy: "request-level", Threshold: at(0)}, 1, 1},
		"me, bounded":    {&routing.Override{Policy: "me", MaxLargeShare: at(0.25)}, 0.1, 0.25},
	} {
		want := answers(t, e, with(c.o), 1, nil)
		large, all := share(want)
		if got := float64(large) / float64(all); got < c.from || got > c.to {
			t.Errorf("%s: large share %.3f, want %g to %g", name, got, c.from, c.to)
		}
		// What a request wants goes with it, to whoever takes it over.
		var once sync.Once
		got := answers(t, e, with(c.o), 3, func() { once.Do(func() { e.kill("tiny-s-0"); e.kill("tiny-l-0") }) })
		for i := range want {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s, question %d, replicas lost: %s", name, i, d)
			}
		}
	}
	awaitIdle(t, e)
}

func TestOverridesRefused(t *testing.T) {
	for _, allow := range []bool{false, true} {
		e := start(t, func(c *Config) { c.Deployments[0].AllowOverride = allow })
		for field, o := range map[string]*routing.Override{
			"trctl.policy":          {Policy: "no-such"},
			"trctl.threshold":       {Threshold: at(1.5)},
			"trctl.max_large_share": {MaxLargeShare: at(0.5)},
		} {
			r := questions(1, 5)[0]
			r.Routing = o
			_, err := ask(e, r)
			var bad *sampling.FieldError
			switch {
			case allow && field == "trctl.max_large_share":
				if err != nil {
					t.Errorf("%s: %v", field, err)
				}
			case !errors.Is(err, session.ErrSettings) || !errors.As(err, &bad) || bad.Field != field:
				t.Errorf("allowed %t: error %v, want one of %s", allow, err, field)
			}
		}
	}
}

// What a policy lacks is said when its deployment is loaded.
func TestPoliciesRefused(t *testing.T) {
	for want, policy := range map[string]Policy{
		`line 1, column 1: the feature "entropi"`: {Name: "rule", Rule: "entropi > 1"},
		"no such router network":                  {Name: "r2r", Router: "no-such"},
	} {
		cfg := Defaults()
		cfg.Deployments[0].Policy = policy
		e, err := New(cfg)
		if err == nil {
			err = e.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	seed := uint64(1)
	cfg := Defaults()
	cfg.Models = []Model{{Name: "tiny-s", Dummy: &seed, Threshold: 1}, {Name: "tiny-l", Dummy: &seed, Threshold: 1}}
	cfg.Deployments[0].Policy = Policy{Name: "glimp-router"}
	if _, err := Load(cfg); !errors.Is(err, policies.ErrNoThinking) {
		t.Errorf("glimp-router without a vocabulary: %v", err)
	}
}
