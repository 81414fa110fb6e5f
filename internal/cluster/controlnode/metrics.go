package controlnode

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
)

// serveMetrics serves /metrics until ctx ends, if that was asked for.
func (n *Node) serveMetrics(ctx context.Context) error {
	if n.metrics == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newGauges(n), newQuarantineGauge(n))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /readyz", n.serveReady)
	if err := plainhttp.Serve(ctx, n.metrics, mux); err != nil && ctx.Err() == nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return context.Cause(ctx)
}

// serveReady answers whether the node can do what needs the other control nodes, as workers
// and gateways do.
func (n *Node) serveReady(w http.ResponseWriter, _ *http.Request) {
	taken := false
	select {
	case <-n.ready:
		taken = true
	default:
	}
	leader, _ := n.control.Leader()
	out := struct {
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{"ready", unready(n.control.Refused(), taken, leader)}
	code := http.StatusOK
	if out.Reason != "" {
		code, out.Status = http.StatusServiceUnavailable, "not ready"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(out) // the caller is gone if this fails
}

// unready says why a node is not ready; empty if it is.
func unready(refusal *control.Refusal, taken bool, leader string) string {
	switch {
	case refusal != nil:
		return fmt.Sprintf("since %s this node's certificate is refused by %s: it was removed, or clocks or CAs differ",
			refusal.Since.UTC().Format(time.RFC3339), strings.Join(refusal.By, ", "))
	case !taken:
		return "the cluster does not have this node yet"
	case leader == "":
		return "there is no leader"
	}
	return ""
}

// gauges are read from the node when they are asked for.
type gauges struct {
	n                                    *Node
	leads, term, index, applied, contact *prometheus.Desc
	voters, lag, nodes, replicas         *prometheus.Desc
	refused                              *prometheus.Desc
	snapshot, limit, objects             *prometheus.Desc
}

func newGauges(n *Node) *gauges {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("trctl_control_"+name, help, labels, nil)
	}
	return &gauges{
		n:        n,
		leads:    desc("leads", "1 if this node leads, else 0."),
		term:     desc("term", "Term of the consensus: it grows with every election."),
		index:    desc("log_index", "Last entry of the log on this node's disk."),
		applied:  desc("applied_index", "Last entry that is in this node's state."),
		contact:  desc("leader_contact_seconds", "Time since the leader was heard; 0 on the leader, -1 for never."),
		voters:   desc("voters", "Voting members of the consensus, as this node knows them."),
		refused:  desc("refused", "Control nodes that refuse this node's certificate, if they are the majority of the others; else 0."),
		lag:      desc("lag_entries", "Entries that a control node is behind; known to the leader.", "node"),
		nodes:    desc("nodes", "Nodes by role and by how they are: ok, draining or lost.", "role", "status"),
		replicas: desc("replicas", "Replicas by phase.", "phase"),
		snapshot: desc("snapshot_bytes", "Size of the state as a snapshot, looked at once a minute at most; absent before the first look."),
		limit:    desc("snapshot_limit_bytes", "Largest snapshot that can be made: beyond it the log grows."),
		objects:  desc("state_bytes", "Size of the objects of a kind in the state, not compressed.", "kind"),
	}
}

// Describe implements prometheus.Collector.
func (g *gauges) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.leads, g.term, g.index, g.applied, g.contact, g.voters, g.refused, g.lag, g.nodes, g.replicas, g.snapshot, g.limit, g.objects} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (g *gauges) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := g.n.control.Status()
	leads, voters := 0.0, 0.0
	if s.Leader == s.Node {
		leads = 1
	}
	for _, server := range s.Servers {
		if server.Voter {
			voters++
		}
		if server.Lag >= 0 {
			gauge(g.lag, float64(server.Lag), server.Node)
		}
	}
	contact := s.Contact.Seconds()
	if s.Contact < 0 {
		contact = -1
	}
	gauge(g.leads, leads)
	gauge(g.term, float64(s.Term))
	gauge(g.index, float64(s.Index))
	gauge(g.applied, float64(s.Applied))
	gauge(g.contact, contact)
	gauge(g.voters, voters)
	gauge(g.refused, float64(len(s.Refused)))
	if w := g.n.control.Weight(); w.Limit > 0 {
		gauge(g.snapshot, float64(w.Bytes))
		gauge(g.limit, float64(w.Limit))
		for kind, size := range w.Kinds {
			gauge(g.objects, float64(size), string(kind))
		}
	}
	g.collectState(gauge)
}

func (g *gauges) collectState(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	view := g.n.State()
	type group struct {
		role   cluster.Role
		status string
	}
	nodes := map[group]int{}
	for _, node := range view.AllNodes() {
		status := "ok"
		switch {
		case node.Lost:
			status = "lost"
		case node.Draining:
			status = "draining"
		}
		nodes[group{node.Role, status}]++
	}
	for k, count := range nodes {
		gauge(g.nodes, float64(count), string(k.role), k.status)
	}
	phases := map[cluster.Phase]int{}
	for _, r := range view.AllReplicas() {
		phases[r.Phase]++
	}
	for _, phase := range cluster.Phases() {
		gauge(g.replicas, float64(phases[phase]), string(phase))
	}
}
