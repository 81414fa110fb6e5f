package workernode

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
	"github.com/tokenrouter/tokenrouter/internal/vllmnames"
)

// unready is why the node does not serve all that is placed on it, as the state has it,
// which may be of before this start, and in this process; empty if it does. A node
// without replicas is not ready: nobody can use it.
func (n *Node) unready() string {
	s := n.cluster.View().State()
	here := map[string]cluster.ReplicaReport{}
	for _, r := range n.engine.Reports() {
		here[r.ID] = r
	}
	barred := n.quarantined()
	why := "no replica is placed here" + noRoom(barred)
	for _, r := range s.AllReplicas() {
		if r.Node != n.name {
			continue
		}
		own := here[r.ID]
		reason := whyBarred(&r, barred)
		switch {
		case reason != "":
			return fmt.Sprintf("replica %s: %s", r.ID, reason)
		case own.Phase == "":
			return fmt.Sprintf("replica %s has not started", r.ID)
		case own.Phase != cluster.Ready:
			return fmt.Sprintf("replica %s is %s", r.ID, own.Phase)
		case r.Phase != cluster.Ready || own.Generation != r.Generation:
			return fmt.Sprintf("the cluster does not know yet that replica %s serves", r.ID)
		}
		why = ""
	}
	return why
}

// probes is /metrics, and what load balancers and supervisors ask: /healthz says that the
// process answers and looks at nothing else, /readyz whether it serves all that it is to.
func (n *Node) probes() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET "+vllmnames.Path, vllmnames.Handler(n.registry))
	health := func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok", "") }
	mux.HandleFunc("GET /healthz", health)
	mux.HandleFunc("GET /health", health)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		why := n.unready()
		if own, ok := n.cluster.View().State().Node(n.name); n.draining.Load() || ok && own.Draining {
			why = "the node drains"
		}
		if why != "" {
			answer(w, http.StatusServiceUnavailable, "not ready", why)
			return
		}
		answer(w, http.StatusOK, "ready", "")
	})
	return mux
}

// answer writes a status as JSON, as gateways do.
func answer(w http.ResponseWriter, code int, status, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(struct { // the caller is gone if this fails
		Status string `json:"status"`
		Reason string `json:"reason,omitempty"`
	}{status, reason})
}

// serveMetrics serves probes until ctx ends, if they have a port.
func (n *Node) serveMetrics(ctx context.Context) error {
	if n.metrics == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := plainhttp.Serve(ctx, n.metrics, n.probes()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return context.Cause(ctx)
}
