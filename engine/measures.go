package engine

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Measures are what the replicas have measured of each of their deployments of several
// models, by replica: what thresholds can be solved from.
func (e *Engine) Measures() []cluster.Measure {
	var list []cluster.Measure
	for _, r := range e.list() {
		sub := r.current.Load()
		if sub == nil {
			continue
		}
		for _, m := range sub.Estimates() {
			if m.Routed == 0 || len(m.Models) < 2 || len(m.Models) > cluster.MaxMeasuredModels || len(list) == cluster.MaxMeasures {
				continue
			}
			list = append(list, measureOf(r.name, &m))
		}
	}
	slices.SortFunc(list, func(a, b cluster.Measure) int {
		return cmp.Or(strings.Compare(a.Replica, b.Replica), strings.Compare(a.Deployment, b.Deployment))
	})
	return list
}

func measureOf(replica string, m *subservice.Estimate) cluster.Measure {
	own := modelOf(m)
	out := cluster.Measure{
		Deployment: m.Deployment, Replica: replica, Model: int(m.Self), Routed: m.Routed, To: m.To, Kept: m.Kept,
		Slowdown: own.Slowdown, Prefill: own.Prefill, Hop: milliseconds(m.Hop.Mean), Live: m.Live,
	}
	for i, s := range own.Steps[:min(len(own.Steps), cluster.MaxMeasuredSteps)] {
		t := cluster.StepTime{N: s.N, MS: s.MS}
		if i < len(m.Alone) {
			t.Alone = milliseconds(m.Alone[i].Mean)
		}
		if i < len(m.Busy) {
			t.Busy = milliseconds(m.Busy[i].Mean)
		}
		out.Steps = append(out.Steps, t)
	}
	return out
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
