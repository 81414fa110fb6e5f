package engine

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// collector reads the replicas' snapshots when metrics are scraped, so that the
// decode loops do nothing for them.
type collector struct{ e *Engine }

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
		metric("kv_pages_cached", "Pages kept for their prefix alone; they count as free.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Cached) }),
		metric("prefix_cache_queries_total", "Full pages of prompts that were looked for in the prefix cache.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Queries) }),
		metric("prefix_cache_hits_total", "Full pages of prompts that were found there.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Hits) }),
		metric("prefix_cache_evictions_total", "Pages that left the prefix cache to make room.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Evictions) }),
		metric("preemptions_total", "Sequences that gave slot and pages back to make room.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Preemptions) }),
		metric("sequences_paused", "Sequences that wait for a client that reads too slowly.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Paused) }),
		metric("admissions_total", "Sequences that left the queue.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Admissions) }),
		metric("queue_wait_seconds_total", "Time that admitted sequences spent in the queue.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return s.QueueWait.Seconds() }),
		metric("batch_waits_total", "Rows of completed steps, each of which waited for its step.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.Waits) }),
		metric("batch_wait_seconds_total", "Time for which rows were ready before their step: another was in progress, or more rows were waited for.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return s.BatchWait.Seconds() }),
		metric("ahead_steps_total", "Steps launched before the results of the one before were known.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.AheadSteps) }),
		metric("ahead_rows_used_total", "Rows of such steps whose sequence went on.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.AheadUsed) }),
		metric("ahead_rows_wasted_total", "Rows of such steps whose sequence had left, so that they did not count.", prometheus.CounterValue, func(s *subservice.Stats) float64 { return float64(s.AheadWasted) }),
		metric("peer_links", "Peer links that are up.", prometheus.GaugeValue, func(s *subservice.Stats) float64 { return float64(s.Links) }),
	}
}

// histogram is one distribution of a replica and where it comes from.
type histogram struct {
	desc  *prometheus.Desc
	first float64
	value func(*subservice.Stats) *subservice.Histogram
}

func replicaHistograms() []histogram {
	labels := []string{"model", "replica"}
	return []histogram{
		{prometheus.NewDesc("trctl_batch_rows", "Sequences in a forward pass.", labels, nil), subservice.FirstRows,
			func(s *subservice.Stats) *subservice.Histogram { return &s.BatchRows }},
		{prometheus.NewDesc("trctl_step_duration_seconds", "Time of a forward pass.", labels, nil), subservice.FirstSeconds,
			func(s *subservice.Stats) *subservice.Histogram { return &s.StepSeconds }},
	}
}

// hungMetric counts what ends the process, so few scrapes see it; restartsMetric tells afterwards.
func hungMetric() *prometheus.Desc {
	return prometheus.NewDesc("trctl_steps_hung_total", "Steps that did not end, for each of which the process is put to an end.", []string{"model", "replica"}, nil)
}

func restartsMetric() *prometheus.Desc {
	return prometheus.NewDesc("trctl_process_restarts", "How many processes in a row a spoilt GPU or a step that hung had ended before this one took their place.", nil, nil)
}

// modeMetric is how a replica computes: 1, with the answer in the labels.
func modeMetric() *prometheus.Desc {
	return prometheus.NewDesc("trctl_replica_mode", "How the replica computes; reproducible says that a token's bits depend on its own sequence alone.",
		[]string{"model", "replica", "device", "reproducible", "lookahead"}, nil)
}

// mode returns the values of modeMetric's labels.
func (e *Engine) mode(r *replica) []string {
	device, lookahead := "cpu", subservice.LookaheadOff
	if r.model.place.cuda {
		device, lookahead = "cuda", e.cfg.Lookahead
	}
	reproducible := !r.model.place.cuda || e.cfg.Reproducible
	return []string{r.model.cfg.Name, r.name, device, strconv.FormatBool(reproducible), lookahead.String()}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range replicaSeries() {
		ch <- s.desc
	}
	for _, h := range replicaHistograms() {
		ch <- h.desc
	}
	ch <- modeMetric()
	ch <- hungMetric()
	ch <- restartsMetric()
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(restartsMetric(), prometheus.GaugeValue, float64(c.e.cfg.Restarts))
	for _, r := range c.e.list() {
		ch <- prometheus.MustNewConstMetric(hungMetric(), prometheus.CounterValue, float64(r.hangs.Load()), r.model.cfg.Name, r.name)
		sub := r.current.Load()
		if sub == nil {
			continue
		}
		stats := sub.Stats()
		ch <- prometheus.MustNewConstMetric(modeMetric(), prometheus.GaugeValue, 1, c.e.mode(r)...)
		for _, s := range replicaSeries() {
			ch <- prometheus.MustNewConstMetric(s.desc, s.kind, s.value(&stats), r.model.cfg.Name, r.name)
		}
		for _, h := range replicaHistograms() {
			v := h.value(&stats)
			upTo, all := v.Buckets(h.first)
			ch <- prometheus.MustNewConstHistogram(h.desc, all, v.Sum, upTo, r.model.cfg.Name, r.name)
		}
	}
}
