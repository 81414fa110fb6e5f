package engine

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Lookahead and reproducible change no answer on a CPU, and the metrics say how
// replicas compute.
func TestModes(t *testing.T) {
	list := append(questions(4, 40), seeded(questions(2, 40))...)
	want := answers(t, start(t, nil), list, 3, nil)
	registry := prometheus.NewRegistry()
	e := start(t, func(c *Config) {
		c.Lookahead, c.Reproducible, c.Metrics = subservice.LookaheadOn, true, registry
	})
	got := answers(t, e, list, 3, nil)
	for i := range want {
		if d := differs(got[i], want[i]); d != "" {
			t.Errorf("question %d: %s", i, d)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	modes := 0
	for _, f := range families {
		if f.GetName() != "trctl_replica_mode" {
			continue
		}
		for _, m := range f.GetMetric() {
			labels := ""
			for _, l := range m.GetLabel() {
				labels += l.GetName() + "=" + l.GetValue() + " "
			}
			modes++
			if !strings.Contains(labels, "device=cpu lookahead=off ") || !strings.Contains(labels, "reproducible=true ") || m.GetGauge().GetValue() != 1 {
				t.Errorf("%s%v", labels, m.GetGauge().GetValue())
			}
		}
	}
	if modes != 2 {
		t.Errorf("%d replicas", modes)
	}
	plan := e.Plan()
	if s := plan.String(); !strings.HasPrefix(s, "CPU, reproducible arithmetic") {
		t.Errorf("plan %q", s)
	}
	awaitIdle(t, e)
}

// What a GPU's executor is asked for follows the settings.
func TestCUDAModes(t *testing.T) {
	for _, tc := range []struct {
		lookahead    subservice.Lookahead
		reproducible bool
		depth        int
	}{{subservice.LookaheadAuto, false, 2}, {subservice.LookaheadOn, true, 2}, {subservice.LookaheadOff, true, 1}} {
		e := &Engine{cfg: Config{Lookahead: tc.lookahead, Reproducible: tc.reproducible}}
		if c := e.cudaConfig(&loaded{}, 1); c.Depth != tc.depth || c.Reproducible != tc.reproducible {
			t.Errorf("%+v: depth %d, reproducible %t", tc, c.Depth, c.Reproducible)
		}
	}
	c := Defaults()
	c.Lookahead = 9
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "lookahead") {
		t.Errorf("error %v", err)
	}
}
