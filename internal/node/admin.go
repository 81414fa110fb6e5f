package node

import (
	"encoding/json"
	"net/http"

	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/engine"
)

// ThresholdsPath is where Admin tells of batching thresholds.
const ThresholdsPath = "/v1/thresholds"

// Thresholds is the answer on ThresholdsPath.
type Thresholds struct {
	Deployments []engine.GroupStatus `json:"deployments"`
}

// Admin is the handler of the admin endpoint: what operators read of a running
// node. It has no authentication of its own, so it belongs on a socket that only
// the node's user can open.
func (n *Node) Admin() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ThresholdsPath, func(w http.ResponseWriter, _ *http.Request) {
		list := n.engine.ThresholdStatus()
		if list == nil {
			list = []engine.GroupStatus{}
		}
		w.Header().Set("Content-Type", "application/json")
		// The caller has gone if this fails.
		_ = json.NewEncoder(w).Encode(Thresholds{list})
	})
	mux.Handle("GET "+trace.Path, trace.Handler(n.engine.Trace))
	return mux
}
