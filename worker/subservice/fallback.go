package subservice

import (
	"cmp"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
)

// giveUp ends the wait of turns that no replica can take.
func (s *Subservice) giveUp(now time.Duration) {
	for _, q := range inOrder(s.lost) {
		set := s.settings(q.dep)
		until := q.lost
		if set.Fallback == FallbackWait {
			until += cmp.Or(set.FallbackWait, s.cfg.CollaboratorWait)
		} else {
			until = max(until, s.linkedBy)
		}
		if now < until {
			continue
		}
		if q.entry != nil && set.Fallback == FallbackAlone {
			s.goAlone(q)
			continue
		}
		s.fail(q, &generate.Error{
			Code: generate.CodeUnavailable, Message: "no replica of model " + q.dep.Models[q.turn] + " can be reached",
		})
	}
}

// goAlone takes a turn back to the entry that no other model can take, and keeps it
// here: the entry model writes the rest of the answer. It begins a new try, so that
// nothing which is still out counts any more.
func (s *Subservice) goAlone(q *sequence) {
	if tryOf(q.hop) == maxTry {
		s.fail(q, &generate.Error{Code: generate.CodeUnavailable, Message: "the turn was lost too often", Retryable: true})
		return
	}
	s.log.Info("no replica takes the turn; the entry model goes on alone", "request", q.id, "deployment", q.dep.Name, "model", q.dep.Models[q.turn])
	q.hop = (tryOf(q.hop) + 1) << tryBits
	q.entry.news, q.entry.holder = q.hop, ""
	q.away, q.sent, q.kept, q.blob = false, false, false, nil
	q.via = q.dep.alone
	s.visit(q, q.q.Self, s.cfg.Replica)
	delete(s.lost, q.id)
	if q.entry.stream.hold() {
		s.setHeld(q, true)
		return
	}
	if err := s.sched.Append(s.now(), q.sid(), nil); err != nil {
		s.broken(q, "go alone", err)
	}
}

// stay is the policy of an entry model that has been left alone.
type stay struct{ policies.Policy }

// Spec asks for nothing.
func (stay) Spec() policies.Spec { return policies.Spec{} }

// Route keeps every token here.
func (stay) Route(b *policies.Batch, _ *policies.Result, out []policies.Decision) {
	for i, q := range b.Reqs {
		out[i] = policies.Decision{To: q.Self, Keep: true}
	}
}
