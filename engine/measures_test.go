package engine

import (
	"math"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Two deployments of the same replicas are measured each for itself: where their
// requests go is theirs, and times of steps belong to the replica. The thresholds of the
// one that has more to do count.
func TestDeploymentsAreMeasuredApart(t *testing.T) {
	e := start(t, func(c *Config) {
		c.Deployments[0].Policy = Policy{Name: "random", Threshold: at(0.1)}
		second := c.Deployments[0]
		second.Name, second.Policy = "second", Policy{Name: "random", Threshold: at(0.6)}
		c.Deployments = append(c.Deployments, second)
	})
	main := func() string { return e.list()[0].current.Load().Estimate().Deployment }
	if got := main(); got != "" && got != "tiny" {
		t.Errorf("before there is anything to do the thresholds of %q count", got)
	}
	measured := func() map[string]cluster.Measure {
		out := map[string]cluster.Measure{}
		for _, m := range e.Measures() {
			if m.Model == 0 {
				out[m.Deployment] = m
			}
		}
		return out
	}
	ask := func(deployment string, enough func() bool) {
		t.Helper()
		list := drawn(4, 100)
		for i := range list {
			list[i].Model = deployment
		}
		for deadline := time.Now().Add(20 * time.Second); !enough(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: measured %+v, main %q", deployment, measured(), main())
			}
			answers(t, e, list, 4, nil)
		}
	}
	ask("tiny", func() bool { return measured()["tiny"].Routed > 500 })
	ask("second", func() bool { return measured()["second"].Routed > 500 && main() == "second" })
	got := measured()
	for name, want := range map[string]float64{"tiny": 0.1, "second": 0.6} {
		if m := got[name]; len(m.To) != 2 || math.Abs(m.To[1]-want) > 0.08 || len(m.Steps) == 0 {
			t.Errorf("%s: a share of %v of %d goes on, want %g", name, m.To, m.Routed, want)
		}
	}
	if a, b := got["tiny"], got["second"]; len(a.Steps) != len(b.Steps) || a.Steps[0] != b.Steps[0] || a.Live != b.Live {
		t.Errorf("times differ: %+v and %+v", a, b)
	}
	for _, g := range e.Groups() {
		if g.Models[0].Routed == 0 || g.Models[1].Routed == 0 {
			t.Errorf("%s: nothing was measured", g.Deployment)
		}
	}
}
