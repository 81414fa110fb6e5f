package subservice

import (
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// commitHere commits a token sampled by this replica, and the ids that the
// policy injects after it. It reports whether the answer has ended.
func (s *Subservice) commitHere(q *sequence, out *step.Out, d policies.Decision) (ended bool) {
	from := len(q.q.Out)
	lps := []handoff.Logprob{*s.logprobOf(q, out)}
	q.commit(out.Token, q.q.Self)
	done := q.finished()
	for _, id := range d.Inject {
		if done != handoff.NotDone {
			break
		}
		q.commit(id, q.q.Self)
		lps = append(lps, handoff.Logprob{})
		done = q.finished()
	}
	s.committed += uint64(len(q.q.Out) - from)
	q.course.wrote += len(q.q.Out) - from
	q.seen[q.q.Self] = int32(len(q.ids))
	if err := s.sched.Commit(s.now(), q.sid(), q.q.Out[from:]...); err != nil {
		s.broken(q, "commit", err)
		return true
	}
	if q.entry != nil {
		s.report(q, from, lps, d.To)
	} else if q.params.Logprobs >= 0 {
		q.collab.logprobs = append(q.collab.logprobs, lps...)
	}
	if done == handoff.NotDone {
		return false
	}
	if err := s.sched.Park(q.sid()); err != nil {
		s.broken(q, "park", err)
		return true
	}
	s.end(q, done)
	return true
}

// report sends the gateway the answer's tokens from index from on, and who has
// the turn after them and the policy state if they have changed. A resumed
// request starts from just that, so it must hold as soon as the tokens do.
func (s *Subservice) report(q *sequence, from int, lps []handoff.Logprob, owner policies.ModelID) {
	e := generate.Event{Kind: generate.EventTokens, Epoch: q.epoch, Base: int32(from), Alone: q.via == q.dep.alone}
	for i, id := range q.q.Out[from:] {
		t := generate.TokenEvent{ID: id, Model: uint8(q.q.Models[from+i]), Text: q.entry.decoder.Next(id)}
		if q.params.Logprobs >= 0 && i < len(lps) {
			s.addLogprob(&t, &lps[i])
		}
		e.Tokens = append(e.Tokens, t)
	}
	if owner != q.entry.reportedTurn || q.q.State != q.entry.reportedState {
		q.entry.reportedTurn, q.entry.reportedState = owner, q.q.State
		e.Turn, e.Owner, e.State = true, uint8(owner), append([]byte(nil), q.q.State.Get()...)
	}
	e.Cached = s.tellCached(q)
	s.push(q, e)
}

// untold is an event that its client loop has not been given yet.
type untold struct {
	to    *stream
	event generate.Event
}

// push gives the client loop an event. Tokens wait until the next step has been
// launched (tellClients); a stream with a sink has all at once.
func (s *Subservice) push(q *sequence, e generate.Event) {
	if q.entry.stream.sink != nil {
		q.entry.stream.sink(e)
		return
	}
	s.untold = append(s.untold, untold{q.entry.stream, e})
	if e.Kind != generate.EventTokens {
		s.tellClients()
	}
}

// tellClients gives the client loops what was noted for them, in order.
func (s *Subservice) tellClients() {
	now := s.now()
	for i := range s.untold {
		s.untold[i].to.push(now, s.untold[i].event)
	}
	clear(s.untold)
	s.untold = s.untold[:0]
}

// tellCached returns, once, how many prompt tokens the prefix cache had.
func (s *Subservice) tellCached(q *sequence) int32 {
	if q.entry.cacheTold {
		return 0
	}
	q.entry.cacheTold = true
	return int32(min(s.sched.PrefixHit(q.sid()), q.q.PromptLen))
}

// lowestLogprob stands for minus infinity, which JSON cannot say.
const lowestLogprob = -9999

func (s *Subservice) addLogprob(t *generate.TokenEvent, lp *handoff.Logprob) {
	t.Logprob = max(lp.Logprob, lowestLogprob)
	t.Bytes = s.words.TokenBytes(t.ID)
	for _, e := range lp.Top {
		b := s.words.TokenBytes(e.ID)
		t.Top = append(t.Top, generate.TopLogprob{ID: e.ID, Logprob: max(e.Logprob, lowestLogprob), Text: string(b), Bytes: b})
	}
}

// end finishes an answer of a parked sequence: the entry tells the gateway and
// releases the request everywhere, a collaborator tells the entry.
func (s *Subservice) end(q *sequence, done handoff.Done) {
	if q.entry != nil {
		s.finish(q, done)
		return
	}
	q.turn, q.away, q.sent = q.q.Owner, true, false
	q.done = done
	q.hop++
	q.blob = nil
	s.sendTurn(q)
}

// finish ends a request well. Only its entry calls it.
func (s *Subservice) finish(q *sequence, done handoff.Done) {
	s.push(q, generate.Event{
		Kind: generate.EventFinish, Epoch: q.epoch, Finish: finishOf(done), Tail: q.entry.decoder.Flush(), Cached: s.tellCached(q),
	})
	if q.course.end = "stop"; finishOf(done) == generate.FinishLength {
		q.course.end = "length"
	}
	s.release(q, done)
	s.remove(q)
}

// fail ends a request with an error that the gateway (or the entry) is told.
func (s *Subservice) fail(q *sequence, e *generate.Error) {
	q.course.end = e.Code
	if q.entry != nil {
		s.push(q, generate.Event{Kind: generate.EventError, Epoch: q.epoch, Err: e})
		s.release(q, handoff.DoneError)
	} else {
		s.giveBack(s.links[q.collab.entry], &handoff.Frame{
			Request: q.id, Epoch: q.epoch, Hop: q.hop, From: uint8(q.q.Self), To: uint8(q.q.Owner), Code: e.Code,
		})
		s.forget(q)
		return
	}
	s.remove(q)
}

// broken ends a request because an invariant of our own does not hold.
func (s *Subservice) broken(q *sequence, op string, err error) {
	s.log.Error("sequence is broken", "request", q.id, "op", op, "err", err)
	s.fail(q, &generate.Error{Code: generate.CodeInternal, Message: "the request's state is inconsistent"})
}

// release tells every replica that may have something of the request that it has
// ended. Only its entry calls it. Who has taken the turn and was not heard of yet
// is told when it announces that.
func (s *Subservice) release(q *sequence, done handoff.Done) {
	for _, h := range q.entry.holdings {
		if link := s.links[h.replica]; link != nil {
			s.tell(link, &handoff.Frame{
				Kind: handoff.KindRelease, Request: q.id, Epoch: q.epoch, Hop: q.hop,
				From: uint8(q.q.Self), To: uint8(h.model), Done: done,
			})
		}
	}
}

// remove forgets a sequence that has ended for good: late frames of it change
// nothing any more. The entry knows, and a collaborator that the entry has told.
func (s *Subservice) remove(q *sequence) {
	s.forget(q)
	s.ended.add(q.id, q.epoch)
}

// forget frees what a sequence holds here. A collaborator's turn may be one that
// the entry has given up and made anew elsewhere, so the request can come back in
// the same epoch.
func (s *Subservice) forget(q *sequence) {
	s.remember(q)
	slot, bound, err := s.sched.Finish(q.sid())
	if err != nil {
		s.log.Error("finish", "request", q.id, "err", err)
	}
	if bound {
		s.exec.Close(slot)
	}
	delete(s.seqs, q.id)
	delete(s.lost, q.id)
	if q.entry != nil {
		s.setHeld(q, false)
		s.group.ended(q)
	}
}
