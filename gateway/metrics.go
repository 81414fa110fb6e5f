package gateway

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the gateway's own. Labels come from configuration and from fixed
// lists alone, so the number of series is bounded.
type metrics struct {
	requests   *prometheus.CounterVec // route, code
	inFlight   prometheus.Gauge
	firstToken *prometheus.HistogramVec // deployment; seconds
	interToken *prometheus.HistogramVec // deployment; seconds
	tokens     *prometheus.CounterVec   // deployment, model
	moves      *prometheus.CounterVec   // reason
	stale      prometheus.Counter
	conflicts  prometheus.Counter
}

// newMetrics builds the metrics and registers them if r is not nil.
func newMetrics(r *prometheus.Registry) (*metrics, error) {
	const namespace, subsystem = "trctl", "gateway"
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help}, labels)
	}
	seconds := func(name, help string, first float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
			Buckets: prometheus.ExponentialBuckets(first, 2, 16),
		}, []string{"deployment"})
	}
	m := &metrics{
		requests:   counter("requests_total", "Requests that ended, by route and status (499: the client went away).", "route", "code"),
		inFlight:   prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Subsystem: subsystem, Name: "in_flight", Help: "Answers being computed."}),
		firstToken: seconds("time_to_first_token_seconds", "From the request's arrival to its first committed token.", 0.001),
		interToken: seconds("inter_token_latency_seconds", "Between committed tokens of one answer.", 0.0001),
		tokens:     counter("tokens_total", "Committed tokens, by the model that wrote them.", "deployment", "model"),
		moves:      counter("resubmissions_total", "Re-submissions of a request in a new epoch.", "reason"),
		stale: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: "stale_frames_total", Help: "Events refused because they were of another epoch."}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem,
			Name: "conflicts_total", Help: "Committed positions sent again with another content. Never expected."}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.inFlight, m.firstToken, m.interToken, m.tokens, m.moves, m.stale, m.conflicts} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
