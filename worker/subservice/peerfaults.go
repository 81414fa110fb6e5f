package subservice

import (
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// nack tells the sender how much of a request is known here.
func (s *Subservice) nack(l Link, f *handoff.Frame, self policies.ModelID, known int) {
	n := handoff.Frame{
		Kind: handoff.KindNack, Request: f.Request, Epoch: f.Epoch, Hop: f.Hop,
		From: uint8(self), To: f.From, Known: int32(known),
	}
	s.tell(l, &n)
}

// receiveNack sends the turn again from what the other side has, or to an entry
// that missed progress what it has not.
func (s *Subservice) receiveNack(q *sequence, f *handoff.Frame) {
	if f.Epoch != q.epoch || int(f.Known) > len(q.ids) || int(f.From) >= len(q.dep.Models) {
		return
	}
	q.seen[f.From] = min(q.seen[f.From], f.Known)
	switch {
	case f.Hop != q.hop:
	case q.away && f.From == uint8(q.turn):
		q.seen[q.turn] = f.Known
		q.sent = false
		s.sendTurn(q)
	case q.collab != nil && !q.away && policies.ModelID(f.From) == q.q.Owner:
		_ = s.sendProgress(q)
	}
}

// receiveRelease ends a request, or a turn: the entry says that a request or a try
// is over, or a collaborator that it cannot go on.
func (s *Subservice) receiveRelease(l Link, q *sequence, f *handoff.Frame) {
	if f.Epoch < q.epoch || f.Epoch == q.epoch && tryOf(f.Hop) < tryOf(q.hop) {
		return
	}
	switch {
	case q.entry != nil:
		s.turnFailed(l, q, f)
	case policies.ModelID(f.From) == q.q.Owner:
		if f.Code == codeStale {
			s.forget(q)
			return
		}
		s.remove(q)
	case f.Epoch != q.epoch || !q.away || f.Hop != q.hop || f.From != uint8(q.turn):
		// The turn has moved on since.
	case f.Done == handoff.DoneError:
		s.reportLost(q, f.Code) // a third model does not take the turn
	default:
		s.forget(q) // the third model knows that the request has ended
	}
}

// turnFailed is called at the entry when a collaborator says that it cannot go on
// with a turn, or that a turn which it gave away is lost.
func (s *Subservice) turnFailed(l Link, q *sequence, f *handoff.Frame) {
	name, _ := l.Peer()
	counts := f.Hop > q.hop || f.Hop == q.hop && name == q.entry.holder
	if f.Done != handoff.DoneError || f.Epoch != q.epoch || !q.away || !q.sent || !counts {
		return
	}
	if f.Code == codeLost {
		s.renew(q, "so says "+name)
		return
	}
	if f.Code == generate.CodeUnavailable && s.settings(q.dep).Fallback == FallbackAlone {
		s.goAlone(q)
		return
	}
	at := min(int(f.From), len(q.dep.Models)-1)
	if wrong := faultOf(f.Code); wrong != "" {
		// Another replica has the same policy.
		s.fail(q, q.policyFailed(policies.ModelID(at), wrong))
		return
	}
	retryable := f.Code != generate.CodeKVExhausted && f.Code != generate.CodeInvalid
	s.fail(q, &generate.Error{
		Code: errorCode(f.Code), Retryable: retryable,
		Message: "model " + q.dep.Models[at] + " cannot go on with the request",
	})
}

// dismiss tells the sender of a frame that its request has ended.
func (s *Subservice) dismiss(l Link, f *handoff.Frame) {
	r := handoff.Frame{
		Kind: handoff.KindRelease, Request: f.Request, Epoch: f.Epoch, Hop: f.Hop, From: f.To, To: f.From, Done: handoff.DoneAbort,
	}
	if f.Kind == handoff.KindProgress {
		r.From = uint8(policies.Entry) // progress goes to the entry, whoever has the turn
	}
	s.tell(l, &r)
}

// reject answers a hand-off that this replica cannot take.
func (s *Subservice) reject(l Link, f *handoff.Frame, code string) {
	s.giveBack(l, &handoff.Frame{Request: f.Request, Epoch: f.Epoch, Hop: f.Hop, From: f.To, To: f.From, Code: code})
}

// giveBack sends a Release that says why a collaborator cannot go on.
func (s *Subservice) giveBack(l Link, f *handoff.Frame) {
	f.Kind, f.Done = handoff.KindRelease, handoff.DoneError
	if l == nil {
		s.notSent(f, peer.ErrLinkDown)
		return
	}
	s.tell(l, f)
}

// errorCode keeps a peer's code if the gateway knows it.
func errorCode(code string) string {
	switch code {
	case generate.CodeKVExhausted, generate.CodeQueueFull, generate.CodeConflict, generate.CodeUnavailable, generate.CodeInternal:
		return code
	}
	return generate.CodeInternal
}
