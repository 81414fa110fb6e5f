package engine

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// collector reads the replicas' snapshots when metrics are scraped, so that the
// decode loops do nothing for them.
type collector struct{ replicas []*replica }

// series is one metric of a replica and where its value comes from.
type series struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(*subservice.Stats) float64
}

func metric(name, help string, kind prometheus.ValueType, value func(*subservice.Stats) float64) series {
	return series{prometheus.NewDesc("trctl_"+name, help, []string{"model", "replica"}, nil), kind, value}
}

func replicaSeries() []series {
	return []series{
		metric("sequences_queued", "Sequences that wait for a slot and pages.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Queued) }),
		metric("sequences_running", "Sequences that have the turn here.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Running) }),
		metric("sequences_parked", "Sequences whose turn is elsewhere and whose pages are kept.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Parked) }),
		metric("kv_pages_held", "Pages that are not free.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.PagesHeld) }),
		metric("kv_pages_total", "Pages of the pool.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.PagesTotal) }),
		metric("steps_total", "Forward passes.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Steps) }),
		metric("step_seconds_total", "Time in forward passes.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return s.StepTime.Seconds() }),
		metric("step_rows_total", "Sequences in forward passes.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Rows) }),
		metric("step_tokens_total", "Tokens fed to forward passes.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Tokens) }),
		metric("tokens_committed_total", "Tokens that this model wrote.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Committed) }),
		metric("handoffs_total", "Turns handed to another model.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Handoffs) }),
		metric("peer_links", "Peer links that are up.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Links) }),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range replicaSeries() {
		ch <- s.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	for _, r := range c.replicas {
		sub := r.current.Load()
		if sub == nil {
			continue
		}
		stats := sub.Stats()
		for _, s := range replicaSeries() {
			ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&stats), r.model.cfg.Name, r.name)
		}
	}
}
