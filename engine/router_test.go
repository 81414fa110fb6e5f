package engine

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/models/routers"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// writeRouter saves a net that nobody trained, for a model of that hidden size, and
// returns its path. Its checkpoint has the threshold.
func writeRouter(t *testing.T, kind router.Kind, hidden int, threshold *float64) string {
	t.Helper()
	s := router.Sidecar{Format: 1, Kind: kind, Model: "tiny-s", HiddenSize: hidden, Threshold: threshold}
	if kind == router.R2R {
		s.LogitsSize = 100
	}
	sidecar, weights, err := router.Random("net", s, router.Shape{Width: 64, Inner: 128, Blocks: 2}, "F32", 3).Encode()
	if err != nil {
		t.Fatal(err)
	}
	stem := filepath.Join(t.TempDir(), "net")
	for file, text := range map[string][]byte{stem + ".json": sidecar, stem + ".safetensors": weights} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return stem
}

// TestRouterThresholds: traps 8 and 17. Every kind of net scores inside the entry
// model's steps, at thresholds that send all tokens or none, and the threshold in
// force is the flag's, else the configuration's, else the checkpoint's.
func TestRouterThresholds(t *testing.T) {
	list := questions(2, 40)
	with := func(p Policy) [][]said {
		return answers(t, start(t, func(c *Config) {
			c.Device = "cpu"
			c.Deployments[0].Policy = p
		}), list, 2, nil)
	}
	writers := func(got [][]said) map[string]bool {
		names := map[string]bool{}
		for _, a := range got {
			for _, m := range a[0].Models {
				names[m] = true
			}
		}
		return names
	}
	only := func(names map[string]bool, want string) bool { return len(names) == 1 && names[want] }
	// The values of thresholds that send everything and nothing to the large model.
	for _, tc := range []struct {
		kind      router.Kind
		all, none float64
	}{{router.R2R, 0, 1}, {router.CITER, 1, 0}, {router.CoLLM, 0, 1}} {
		t.Run(string(tc.kind), func(t *testing.T) {
			tuned := writeRouter(t, tc.kind, 128, &tc.all)
			name := string(tc.kind)
			if got := writers(with(Policy{Name: name, Router: tuned})); !only(got, "tiny-l") {
				t.Errorf("by the checkpoint's threshold %v writes", got)
			}
			if got := writers(with(Policy{Name: name, Router: tuned + ".json", Threshold: &tc.none})); !only(got, "tiny-s") {
				t.Errorf("by the configuration's threshold %v writes", got)
			}
		})
	}
}

// TestRouterBatches: greedy texts with a net are the same whatever runs beside them.
func TestRouterBatches(t *testing.T) {
	net := writeRouter(t, router.R2R, 128, half())
	list := questions(6, 40)
	change := func(c *Config) {
		c.Device, c.Deployments[0].Policy = "cpu", Policy{Name: "r2r", Router: net}
	}
	one := answers(t, start(t, change), list, 1, nil)
	six := answers(t, start(t, func(c *Config) {
		change(c)
		c.Models[1].Threshold, c.ChunkTokens = 3, 16
	}), list, 6, nil)
	shares := map[string]int{}
	for i := range one {
		if d := differs(six[i], one[i]); d != "" {
			t.Errorf("question %d: %s", i, d)
		}
		for _, m := range one[i][0].Models {
			shares[m]++
		}
	}
	if shares["tiny-s"] == 0 || shares["tiny-l"] == 0 {
		t.Errorf("nothing was routed, or everything: %v", shares)
	}
	t.Logf("tokens by model: %v", shares)
}

// TestSeveralRouters: two deployments with one entry model and different nets.
func TestSeveralRouters(t *testing.T) {
	r2r, citer := writeRouter(t, router.R2R, 128, half()), writeRouter(t, router.CITER, 128, half())
	alone := map[string][][]said{}
	list := questions(2, 30)
	for name, net := range map[string]string{"r2r": r2r, "citer": citer} {
		alone[name] = answers(t, start(t, func(c *Config) {
			c.Device, c.Deployments[0].Policy = "cpu", Policy{Name: name, Router: net}
		}), list, 1, nil)
	}
	e := start(t, func(c *Config) {
		c.Device, c.Deployments = "cpu", nil
		for name, net := range map[string]string{"r2r": r2r, "citer": citer} {
			c.Deployments = append(c.Deployments, Deployment{Name: name, Models: []string{"tiny-s", "tiny-l"}, Policy: Policy{Name: name, Router: net}})
		}
	})
	both := slices.Clone(list)
	for i := range list {
		list[i].Model = "r2r"
		other := list[i]
		other.Model = "citer"
		both = append(both, other)
	}
	copy(both, list)
	got := answers(t, e, both, 4, nil)
	for i := range list {
		for k, name := range []string{"r2r", "citer"} {
			if d := differs(got[i+k*len(list)], alone[name][i]); d != "" {
				t.Errorf("%s, question %d: %s", name, i, d)
			}
		}
	}
}

// The threshold of a network that runs elsewhere is known where its file is, without
// its weights.
func TestTunedElsewhere(t *testing.T) {
	tuned := 0.4
	net := writeRouter(t, router.R2R, 128, &tuned)
	if err := os.Remove(net + ".safetensors"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{net: 0.4, net + ".json": 0.4, net + ".safetensors": 0.4, "tiny-s-r2r": 0.0455, "no-such": -1, "": -1} {
		got, err := tunedElsewhere("r2r", name)
		if err != nil || (got == nil) != (want < 0) || got != nil && math.Abs(*got-want) > 1e-4 {
			t.Errorf("%q: %v, %v, want %g", name, got, err, want)
		}
	}
}

func TestRouterRefusals(t *testing.T) {
	cut := writeRouter(t, router.R2R, 128, nil)
	raw, err := os.ReadFile(cut + ".safetensors")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut+".safetensors", raw[:len(raw)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		policy Policy
		is     error
		says   []string
	}{
		{"absent", Policy{Name: "r2r", Router: "no-such-net"}, ErrNoRouter, []string{"deployment tiny", `"no-such-net"`, "convert-router", "models/train"}},
		{"another model's", Policy{Name: "r2r", Router: writeRouter(t, router.R2R, 64, nil)}, router.ErrBad, []string{"hidden size 64", "tiny-s"}},
		{"damaged", Policy{Name: "r2r", Router: cut}, nil, []string{"safetensors"}},
		{"own, absent", Policy{Name: "mine", Own: policies.Named("mine", func(self policies.ModelID) policies.Policy { return wantsNet{} })},
			ErrNoRouter, []string{"mine-net"}},
	}
	for policy, net := range map[string]string{"r2r": "tiny-s-citer", "citer": "tiny-s-r2r", "r-stitch+": "tiny-s-r2r", "co-llm": "tiny-s-citer"} {
		kind := net[len("tiny-s-"):]
		tests = append(tests, struct {
			name   string
			policy Policy
			is     error
			says   []string
		}{policy + " by scores of " + kind, Policy{Name: policy, Router: net}, router.ErrBad, []string{"kind " + kind + ",", "of kind " + strings.TrimPrefix(RouterOf(policy, "tiny-s"), "tiny-s-")}})
	}
	for _, tc := range tests {
		cfg := Defaults()
		cfg.Device, cfg.Deployments[0].Policy = "cpu", tc.policy
		_, err := Load(cfg)
		if err == nil || tc.is != nil && !errors.Is(err, tc.is) {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		for _, s := range tc.says {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v, want %q in it", tc.name, err, s)
			}
		}
		if _, plan := MakePlan(cfg); fmt.Sprint(plan) != fmt.Sprint(err) {
			t.Errorf("%s: the plan says %v, loading %v", tc.name, plan, err)
		}
	}
}

// wantsNet is a policy of one's own with a net.
type wantsNet struct{}

func (wantsNet) Spec() policies.Spec {
	return policies.Spec{Needs: policies.FeatureScore, Net: "mine-net"}
}
func (wantsNet) Route(*policies.Batch, *policies.Result, []policies.Decision) {}
func (wantsNet) Send(*policies.Req, policies.Decision, *policies.Handoff)     {}
func (wantsNet) Receive(*policies.Req, *policies.Handoff) (policies.Verdict, policies.ModelID) {
	return policies.Run, 0
}

// TestRouterOverride: a request chooses a policy, and its net is there if it is
// embedded; without it the policy cannot be chosen.
func TestRouterOverride(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Device = "cpu"
		c.Deployments[0].Policy = Policy{Name: "r2r", Router: writeRouter(t, router.R2R, 128, half())}
		c.Deployments[0].AllowOverride = true
	})
	r := questions(1, 10)[0]
	r.Routing = &routing.Override{Policy: "r-stitch"}
	if _, err := ask(e, r); err != nil {
		t.Error(err)
	}
	zero := 0.0
	r.Routing = &routing.Override{Threshold: &zero}
	got, err := ask(e, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range got[0].Models {
		if m != "tiny-l" {
			t.Errorf("at the threshold 0 tokens are of %v", got[0].Models)
			break
		}
	}
}

// TestEmbeddedRouters: the trio's own nets are found by policy, with their thresholds,
// and requests may choose among them.
func TestEmbeddedRouters(t *testing.T) {
	shipped := routers.Names()
	if !slices.Contains(shipped, "tiny-s-r2r") {
		t.Fatalf("shipped: %v", shipped)
	}
	e := start(t, func(c *Config) {
		c.Device, c.Deployments[0].Policy, c.Deployments[0].AllowOverride = "cpu", Policy{Name: "r2r"}, true
	})
	r := questions(1, 20)[0]
	for _, policy := range []string{"", "citer", "co-llm", "r-stitch+"} {
		if policy != "" && !slices.Contains(shipped, RouterOf(policy, "tiny-s")) {
			continue
		}
		r.Routing = &routing.Override{Policy: policy}
		if _, err := ask(e, r); err != nil {
			t.Errorf("policy %q: %v", policy, err)
		}
	}
}

func half() *float64 { v := 0.5; return &v }
