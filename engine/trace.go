package engine

import "github.com/tokenrouter/tokenrouter/api/trace"

// Trace is what the replicas that run here remember of a request that has ended, in
// order. A replica that was started anew has forgotten.
func (e *Engine) Trace(id uint64) []trace.Part {
	parts := []trace.Part{}
	for _, r := range e.list() {
		if s := r.current.Load(); s != nil {
			parts = append(parts, s.Trace(id)...)
		}
	}
	trace.Sort(parts)
	return parts
}
