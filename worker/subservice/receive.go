package subservice

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
)

// receiveProgress takes news of a turn that is elsewhere: who has it, or that it
// went on to a third model, and tokens. Only the entry gets it.
//
// News of several replicas come by several links, in any order. The newest hop
// counts; in one hop, what its holder says counts more than what the giver said.
func (s *Subservice) receiveProgress(l Link, q *sequence, f *handoff.Frame) error {
	if q.entry == nil {
		return notOurTurn(f)
	}
	if err := s.heard(l, q, f); err != nil {
		return err
	}
	name, _ := l.Peer()
	e, has := q.entry, f.From == f.To
	switch {
	case !q.away || !q.sent || int(f.To) >= len(q.dep.Models) || policies.ModelID(f.To) == q.q.Self:
		return notOurTurn(f)
	case has && f.Hop == q.hop && name != e.holder, f.Hop < q.hop:
		return notOurTurn(f)
	case has && f.Hop > q.hop:
		q.hop, e.holder = f.Hop, name
		q.replica[f.From] = name
		s.visit(q, policies.ModelID(f.From), name)
	}
	if f.Hop < e.news || f.Hop == e.news && !has {
		return notOurTurn(f)
	}
	if int(f.Base) > len(q.ids) {
		s.nack(l, f, q.q.Self, len(q.ids))
		return nil
	}
	from := len(q.q.Out)
	fresh, err := s.absorb(q, f)
	if err != nil {
		return err
	}
	e.news, q.turn, q.blob = f.Hop, policies.ModelID(f.To), nil
	s.noteSeen(q, f)
	if len(fresh) == 0 {
		return nil
	}
	if err := s.sched.Commit(s.now(), q.sid(), fresh...); err != nil {
		return err
	}
	s.reportArrived(q, from, f)
	return nil
}

// noteSeen takes the policy's state and what each model has seen from a turn frame
// whose tokens were absorbed.
func (s *Subservice) noteSeen(q *sequence, f *handoff.Frame) {
	q.q.State.Set(f.State)
	if len(f.Tokens) > 0 {
		q.seen[f.From] = max(q.seen[f.From], f.Base+int32(len(f.Tokens)))
	}
	for k, n := range f.Seen {
		if k < len(q.dep.Models) {
			q.seen[k] = max(q.seen[k], min(n, int32(len(q.ids))))
		}
	}
	q.seen[q.q.Self] = int32(len(q.ids))
}

// receiveHandoff applies a hand-off to a sequence that is known here.
func (s *Subservice) receiveHandoff(l Link, q *sequence, f *handoff.Frame) error {
	newest := q.hop
	if q.entry != nil {
		if err := s.heard(l, q, f); err != nil {
			return err
		}
		newest = max(newest, q.entry.news)
	}
	expected := q.away && f.Epoch == q.epoch && f.Hop > newest && int(f.From) < len(q.dep.Models)
	if !expected && (f.Epoch != q.fence.Epoch() || f.Hop != q.fence.Hop()) {
		return notOurTurn(f)
	}
	if expected && int(f.Base) > len(q.ids) {
		s.nack(l, f, q.q.Self, len(q.ids))
		return nil
	}
	switch verdict, err := q.fence.Check(f); {
	case !expected && verdict == handoff.Apply:
		return notOurTurn(f)
	case verdict != handoff.Apply:
		return err
	}
	from := len(q.q.Out)
	fresh, err := s.absorb(q, f)
	if err != nil {
		return err
	}
	if tryOf(f.Hop) > tryOf(q.hop) {
		clear(q.seen[:]) // what was said in an older try may not have been heard
	}
	s.noteSeen(q, f)
	q.seen[f.From] = int32(len(q.ids))
	q.hop, q.away, q.sent = f.Hop, false, false
	delete(s.lost, q.id)
	q.q.From = policies.ModelID(f.From)
	q.replica[f.From], _ = l.Peer()
	if q.entry != nil {
		q.entry.news, q.entry.holder = f.Hop, ""
		s.visit(q, q.q.Self, s.cfg.Replica)
		s.reportArrived(q, from, f)
	} else {
		q.keepLogprobs(f)
		s.announce(q)
	}
	return s.resume(q, f, fresh)
}

// notOurTurn is errNotOurTurn for a frame.
func notOurTurn(f *handoff.Frame) error {
	return fmt.Errorf("%w: %s of epoch %d hop %d from model %d", errNotOurTurn, f.Kind, f.Epoch, f.Hop, f.From)
}

// absorb appends the tokens of f that are new here and returns their ids. What
// overlaps must be equal, and what is new must be possible.
func (s *Subservice) absorb(q *sequence, f *handoff.Frame) ([]int32, error) {
	known := len(q.ids)
	fresh := make([]int32, 0, len(f.Tokens))
	for i, t := range f.Tokens {
		at := int(f.Base) + i
		switch {
		case int(t.ID) >= s.info.Vocab || int(t.Model) >= len(q.dep.Models):
			return nil, fmt.Errorf("%w: token %d of model %d at position %d", handoff.ErrConflict, t.ID, t.Model, at)
		case at < known:
			if n := at - q.q.PromptLen; q.ids[at] != t.ID || n >= 0 && uint8(q.q.Models[n]) != t.Model {
				return nil, fmt.Errorf("%w: token %d of model %d at position %d, have %d", handoff.ErrConflict, t.ID, t.Model, at, q.ids[at])
			}
		case len(q.q.Out) >= int(q.params.MaxTokens):
			return nil, fmt.Errorf("%w: more than %d tokens", handoff.ErrConflict, q.params.MaxTokens)
		default:
			q.commit(t.ID, policies.ModelID(t.Model))
			fresh = append(fresh, t.ID)
		}
	}
	return fresh, nil
}

// reportArrived tells the gateway of tokens that another model committed.
func (s *Subservice) reportArrived(q *sequence, from int, f *handoff.Frame) {
	if q.entry == nil || from == len(q.q.Out) {
		return
	}
	var lps []handoff.Logprob
	if n := len(q.q.Out) - from; len(f.Logprobs) >= n {
		lps = f.Logprobs[len(f.Logprobs)-n:]
	}
	owner := q.q.Self
	if q.away {
		owner = q.turn
	}
	s.report(q, from, lps, owner)
}

// resume goes on with a sequence whose turn has come back.
func (s *Subservice) resume(q *sequence, f *handoff.Frame, fresh []int32) error {
	if f.Done != handoff.NotDone && q.entry != nil {
		if len(q.dep.Models) == 2 {
			q.entry.dropHolding(q.replica[f.From]) // it has let go already
		}
		s.finish(q, f.Done)
		return nil
	}
	q.kept = false
	verdict, to, refusal := s.receive(q, f)
	switch {
	case refusal != nil:
		s.fail(q, refusal)
		return nil
	case verdict == policies.Finish:
		s.end(q, handoff.DoneStop)
		return nil
	case verdict == policies.Bounce:
		if len(fresh) > 0 {
			if err := s.sched.Commit(s.now(), q.sid(), fresh...); err != nil {
				return err
			}
		}
		s.handOver(q, policies.Decision{To: to, Keep: true})
		return nil
	}
	if q.entry != nil && q.entry.stream.hold() {
		s.setHeld(q, true)
		if len(fresh) == 0 {
			return nil
		}
		return s.sched.Commit(s.now(), q.sid(), fresh...)
	}
	return s.sched.Append(s.now(), q.sid(), fresh)
}

// receive shows the policy a hand-off, or the admission. What it got wrong is noted, and
// ends the request.
func (s *Subservice) receive(q *sequence, f *handoff.Frame) (policies.Verdict, policies.ModelID, *generate.Error) {
	h := &s.handoff
	*h = policies.Handoff{From: q.q.From, To: q.q.Self, State: q.q.State, Tokens: s.came[:0]}
	if f != nil {
		h.Base, h.Blob = int(f.Base), f.Blob
		for _, t := range f.Tokens {
			h.Tokens = append(h.Tokens, t.ID)
		}
	}
	s.came = h.Tokens[:0]
	verdict, to, err := q.take(h)
	if err != nil {
		return verdict, to, s.blame(q, err)
	}
	return verdict, to, nil
}
