package engine

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// tuneCollector reads what is known of thresholds when metrics are scraped.
type tuneCollector struct{ e *Engine }

// tuneDescs are its metrics.
type tuneDescs struct{ live, threshold, step, routed, observed, predicted *prometheus.Desc }

func newTuneDescs() tuneDescs {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("trctl_"+name, help, labels, nil)
	}
	return tuneDescs{
		live:      desc("group_live_requests", "Live requests of the routing group, which batching thresholds depend on.", "model", "replica"),
		threshold: desc("batch_threshold", "Fewest ready sequences that start a step now.", "model", "replica"),
		step:      desc("step_seconds", "Time of a step without prefill: the mean by batch size, alone or while another model runs.", "model", "replica", "batch", "company"),
		routed:    desc("routed_share", "Share of routed steps after which the sequence goes on with a model.", "model", "replica", "to"),
		observed:  desc("deployment_tokens_per_second", "Throughput of a deployment while it has requests, smoothed over 10 s.", "deployment"),
		predicted: desc("deployment_predicted_tokens_per_second", "Throughput that the model of delayed batching predicts from what is measured.", "deployment"),
	}
}

// Describe implements prometheus.Collector.
func (c *tuneCollector) Describe(ch chan<- *prometheus.Desc) {
	d := newTuneDescs()
	for _, desc := range []*prometheus.Desc{d.live, d.threshold, d.step, d.routed, d.observed, d.predicted} {
		ch <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *tuneCollector) Collect(ch chan<- prometheus.Metric) {
	d := newTuneDescs()
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
	for _, r := range c.e.list() {
		sub := r.current.Load()
		if sub == nil {
			continue
		}
		m, model := sub.Estimate(), r.model.cfg.Name
		gauge(d.live, float64(m.Live), model, r.name)
		gauge(d.threshold, float64(m.Threshold), model, r.name)
		for i, e := range m.Alone {
			if e.N > 0 {
				gauge(d.step, e.Mean.Seconds(), model, r.name, strconv.Itoa(i+1), "alone")
			}
		}
		for i, e := range m.Busy {
			if e.N > 0 {
				gauge(d.step, e.Mean.Seconds(), model, r.name, strconv.Itoa(i+1), "busy")
			}
		}
		if m.Routed > 0 && len(m.To) > 1 {
			for k, share := range m.To {
				gauge(d.routed, share, model, r.name, m.Models[k])
			}
		}
	}
	for _, s := range c.e.ThresholdStatus() {
		gauge(d.observed, s.Observed, s.Deployment)
		if s.Predicted != nil {
			gauge(d.predicted, *s.Predicted, s.Deployment)
		}
	}
}
