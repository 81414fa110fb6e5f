package gateway

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the gateway's own, besides those of its sessions. Labels come from
// configuration and from fixed lists alone, so the number of series is bounded.
type metrics struct {
	requests *prometheus.CounterVec // route, code
	inFlight prometheus.Gauge
	checks   *prometheus.CounterVec // result
}

// subsystem is the part of every metric's name after trctl_.
const subsystem = "gateway"

// newMetrics builds the metrics and registers them if r is not nil.
func newMetrics(r *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "trctl", Subsystem: subsystem,
			Name: "requests_total", Help: "Requests that ended, by route and status (499: the client went away)."}, []string{"route", "code"}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "trctl", Subsystem: subsystem,
			Name: "in_flight", Help: "Answers being computed."}),
		checks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "trctl", Subsystem: subsystem, Name: "freshness_checks_total",
			Help: "Requests for an unknown model, or for the list of models, by whether what is deployed here was current, behind, or that could not be found out (unsure, refused)."}, []string{"result"}),
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.inFlight, m.checks} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}
