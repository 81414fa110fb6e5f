package subservice

import (
	"slices"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/policies"
)

// Bounds of what is remembered of requests that have ended: parts, and the visits of all
// of them.
const (
	maxParts      = 2048
	maxPartVisits = 1 << 16
)

// traces remember the requests that ended last. The decode loop adds, anybody reads.
type traces struct {
	mu sync.Mutex
	// parts are a queue, the oldest first; visits counts theirs.
	parts  []trace.Part
	visits int
}

func (t *traces) add(p trace.Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.parts = append(t.parts, p)
	t.visits += len(p.Visits)
	old := 0
	for len(t.parts)-old > maxParts || t.visits > maxPartVisits {
		t.visits -= len(t.parts[old].Visits)
		t.parts[old] = trace.Part{}
		old++
	}
	t.parts = t.parts[old:]
}

func (t *traces) of(request string) (out []trace.Part) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.parts {
		if t.parts[i].Request == request {
			out = append(out, t.parts[i])
		}
	}
	return out
}

// Trace is what the replica remembers of a request that has ended here. Any goroutine may
// call it. The parts' visits are shared and must not be changed.
func (s *Subservice) Trace(id uint64) []trace.Part { return s.traces.of(trace.Text(id)) }

// course is how a request has gone so far, as this replica knows it.
type course struct {
	began time.Duration
	// wrote counts the tokens that were written here.
	wrote int
	// end is trace.Part.End.
	end string
	// visits are the entry's. Those that are not open have ended.
	visits  []trace.Visit
	open    bool
	dropped int
	// known is the length of the answer when the last visit began.
	known int
}

// visit notes at the entry who has the turn from now on: a model's replica, in a hop.
func (s *Subservice) visit(q *sequence, model policies.ModelID, replica string) {
	if q.entry == nil {
		return
	}
	s.leftVisit(q)
	c := &q.course
	if len(c.visits) == trace.MaxVisits {
		c.dropped++
		return
	}
	c.open, c.known = true, len(q.q.Out)
	c.visits = append(c.visits, trace.Visit{
		Model: q.dep.Models[model], Replica: replica, Try: tryOf(q.hop), Hop: q.hop & (1<<tryBits - 1), From: s.now() - c.began,
	})
}

// leftVisit notes that nobody has the turn until somebody takes it.
func (s *Subservice) leftVisit(q *sequence) {
	c := &q.course
	if !c.open {
		return
	}
	v := &c.visits[len(c.visits)-1]
	v.Took, v.Tokens = s.now()-c.began-v.From, len(q.q.Out)-c.known
	c.open = false
}

// remember keeps what is known of a sequence that ends here. The scheduler still has it.
func (s *Subservice) remember(q *sequence) {
	s.leftVisit(q)
	c := &q.course
	lived := s.sched.Lived(q.sid())
	p := trace.Part{
		Request: trace.Text(q.id), Epoch: q.epoch, Deployment: q.dep.Name, Model: s.cfg.Model, Replica: s.cfg.Replica,
		Entry: q.entry != nil, Began: s.cfg.Start.Add(c.began), Took: s.now() - c.began,
		Queued: lived.Queued, BatchWait: lived.BatchWait, Steps: lived.Steps, Tokens: c.wrote,
	}
	if q.entry != nil {
		p.Prompt, p.Answer, p.Cached = q.q.PromptLen, len(q.q.Out), min(s.sched.PrefixHit(q.sid()), q.q.PromptLen)
		p.End, p.Visits, p.Dropped = c.end, slices.Clip(c.visits), c.dropped
		if p.End == "" {
			p.End = "left" // the gateway did not want it any more
		}
	}
	s.traces.add(p)
}
