package controlnode

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// newQuarantineGauge counts the GPUs in quarantine, as the node's state has them when it is asked.
func newQuarantineGauge(n *Node) prometheus.Collector {
	return &quarantineGauge{n, prometheus.NewDesc("trctl_control_quarantined_gpus", "GPUs in quarantine, by what put them there.", []string{"cause"}, nil)}
}

type quarantineGauge struct {
	n    *Node
	desc *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (g *quarantineGauge) Describe(out chan<- *prometheus.Desc) { out <- g.desc }

// Collect implements prometheus.Collector.
func (g *quarantineGauge) Collect(out chan<- prometheus.Metric) {
	counts := map[cluster.Cause]int{}
	for _, q := range g.n.State().AllQuarantines() {
		counts[q.Cause]++
	}
	for _, cause := range cluster.Causes() {
		out <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(counts[cause]), string(cause))
	}
}
