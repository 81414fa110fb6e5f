package engine

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Reports tell how far the assigned replicas are, by name. Replicas that are not wanted
// any more are not among them.
func (e *Engine) Reports() []cluster.ReplicaReport {
	e.mu.Lock()
	var list []cluster.ReplicaReport
	for _, f := range e.failed {
		if e.assigned != nil && e.assigned.placement(f.ID) != nil {
			list = append(list, f.ReplicaReport)
		}
	}
	replicas, assigned := e.replicas, e.assigned
	e.mu.Unlock()
	for _, r := range replicas {
		if r.leaving.Load() {
			continue
		}
		report := e.report(r)
		if assigned.maps(r.model.cfg.Name) {
			report.Facts.Words, _ = r.model.summary() // an error is told with the deployment that wants it
		}
		list = append(list, report)
	}
	slices.SortFunc(list, func(a, b cluster.ReplicaReport) int { return strings.Compare(a.ID, b.ID) })
	return list
}

// maps says that a deployment with a special map has the model.
func (a *Assignment) maps(model string) bool {
	return a != nil && slices.ContainsFunc(a.Groups, func(g Routing) bool {
		return len(g.SpecialMap) > 0 && slices.Contains(g.Models, model)
	})
}

func (e *Engine) report(r *replica) cluster.ReplicaReport {
	m := r.model
	own := defaults(m)
	out := cluster.ReplicaReport{ID: r.name, Generation: r.generation, Facts: cluster.Facts{
		Fingerprint: m.fingerprint, Vocab: m.vocab, MaxContext: e.maxContext(m), StopIDs: m.stopIDs,
		Temperature: own.Temperature, TopP: own.TopP, TopK: own.TopK, KVTokens: m.place.pages * e.cfg.PageSize, Backend: "cpu",
	}}
	if m.place.cuda {
		out.Facts.Backend = "cuda"
	}
	if m.template != nil {
		sum := sha256.Sum256([]byte(m.template.Source()))
		out.Facts.Template = hex.EncodeToString(sum[:])
	}
	out.Facts.Policies, out.Facts.Routers = r.offers, r.routers
	r.mu.Lock()
	defer r.mu.Unlock()
	out.Phase, out.Reason, out.Facts.LeftOut = r.phase, r.why, r.left
	return out
}

// Loads tell how busy the replicas are, by name.
func (e *Engine) Loads() map[string]cluster.Load {
	out := map[string]cluster.Load{}
	for _, r := range e.list() {
		sub := r.current.Load()
		if sub == nil {
			continue
		}
		s := sub.Stats()
		load := cluster.Load{Live: s.Queued + s.Running + s.Parked, Waiting: s.Queued}
		if s.PagesTotal > 0 {
			load.KV = float32(s.PagesHeld) / float32(s.PagesTotal)
		}
		out[r.name] = load
	}
	return out
}
