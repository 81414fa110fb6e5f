package subservice

import (
	"errors"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// resendHops is what a re-send to another replica adds to the hop. It is more
// than one so that whatever the lost replica had started, hand-offs to third
// models included, is older than the new turn.
const resendHops = 256

// retryWait is how soon a turn whose link was full is offered again.
const retryWait = 5 * time.Millisecond

// handOver gives the turn of a parked sequence to another model.
func (s *Subservice) handOver(q *sequence, d policies.Decision) {
	q.away, q.turn, q.sent = true, d.To, false
	h := &s.handoff
	*h = policies.Handoff{From: q.q.Self, To: d.To, Base: int(q.seen[d.To]), Tokens: q.ids[q.seen[d.To]:], State: q.q.State}
	q.dep.Policy.Send(&q.q, d, h)
	q.q.State = h.State
	q.blob = h.Blob
	*h = policies.Handoff{}
	q.hop++
	s.sendTurn(q)
}

// sendTurn sends the hand-off of the turn, or notes that it waits for a link.
// Everything in it is derived from the sequence, so it can be sent again.
func (s *Subservice) sendTurn(q *sequence) {
	link := s.linkTo(q)
	if link != nil {
		if s.member != nil {
			s.member.Sent(s.now(), q.id, q.kept)
		}
		if err := link.Send(s.turnFrame(q)); err == nil {
			q.sent = true
			q.seen[q.turn] = int32(len(q.ids))
			if q.collab != nil {
				q.collab.logprobs = nil
			}
			s.handoffs++
			delete(s.lost, q.id)
			if q.done != handoff.NotDone {
				if len(q.dep.Models) > 2 {
					// The entry may have ended the request by itself, and knows nothing then
					// of those that only this replica has heard of.
					s.release(q, q.done)
				}
				s.forget(q)
			}
			return
		}
	}
	if s.lost[q.id] == nil {
		s.lost[q.id] = q
		q.lost = s.now()
	}
}

// turnFrame builds the hand-off of the turn: the ids that the other model has
// not seen, and on a first visit how to sample. It is valid until the next frame
// is built.
func (s *Subservice) turnFrame(q *sequence) *handoff.Frame {
	base := q.seen[q.turn]
	s.unseen = q.appendTokens(s.unseen[:0], base)
	f := &s.frame
	*f = handoff.Frame{
		Kind: handoff.KindHandoff, Request: q.id, Epoch: q.epoch, Hop: q.hop,
		From: uint8(q.q.Self), To: uint8(q.turn), Base: base, Tokens: s.unseen,
		State: q.q.State.Get(), Blob: q.blob, Done: q.done,
	}
	if q.collab != nil {
		f.Logprobs = q.logprobsFrom(base)
	}
	if base == 0 {
		f.First = &handoff.First{
			Deployment: q.dep.Name, PromptLen: int32(q.q.PromptLen), Entry: s.entryOf(q), Age: q.age, Salt: q.salt, Sampling: q.params,
		}
	}
	if len(q.dep.Models) > 2 {
		f.Seen = append([]int32(nil), q.seen[:len(q.dep.Models)]...)
	}
	return f
}

// entryOf is the name of the replica that owns the request.
func (s *Subservice) entryOf(q *sequence) string {
	if q.collab != nil {
		return q.collab.entry
	}
	return s.cfg.Replica
}

// appendTokens appends the ids from base on with the models that wrote them.
// Prompt ids carry model 0; the receiver knows the prompt's length.
func (q *sequence) appendTokens(tokens []handoff.Token, base int32) []handoff.Token {
	for i, id := range q.ids[base:] {
		t := handoff.Token{ID: id}
		if n := int(base) + i - q.q.PromptLen; n >= 0 {
			t.Model = uint8(q.q.Models[n])
		}
		tokens = append(tokens, t)
	}
	return tokens
}

// logprobsFrom returns what belongs to the tokens from base on, or nil if none was asked for.
func (q *sequence) logprobsFrom(base int32) []handoff.Logprob {
	want := len(q.ids) - int(base)
	if q.params.Logprobs < 0 || want == 0 || len(q.collab.logprobs) < want {
		return nil
	}
	return q.collab.logprobs[len(q.collab.logprobs)-want:]
}

// sendProgress tells the entry what a collaborator has committed that keeps the
// turn, or has given it to a third model.
func (s *Subservice) sendProgress(q *sequence) {
	owner, turn := q.q.Owner, q.q.Self
	if q.away {
		turn = q.turn
	}
	base := q.seen[owner]
	s.unseen = q.appendTokens(s.unseen[:0], base)
	f := &s.frame
	*f = handoff.Frame{
		Kind: handoff.KindProgress, Request: q.id, Epoch: q.epoch, Hop: q.hop,
		From: uint8(q.q.Self), To: uint8(turn), Base: base, Tokens: s.unseen,
		State: q.q.State.Get(), Logprobs: q.logprobsFrom(base),
	}
	if err := s.sendToEntry(q, f); err != nil {
		// The tokens go with the next progress or with the turn.
		s.log.Debug("progress not sent", "request", q.id, "err", err)
		return
	}
	q.seen[owner] = int32(len(q.ids))
	q.collab.logprobs = nil
}

// sendToEntry sends a frame to the entry of a request that is on loan here.
func (s *Subservice) sendToEntry(q *sequence, f *handoff.Frame) error {
	link := s.links[q.collab.entry]
	if link == nil {
		return peer.ErrLinkDown
	}
	return link.Send(f)
}

// linkTo returns the link to the replica that has, or gets, the turn of q;
// nil if none is up.
func (s *Subservice) linkTo(q *sequence) Link {
	if q.collab != nil && q.turn == q.q.Owner {
		return s.links[q.collab.entry]
	}
	return s.linkOf(q, q.turn)
}

// linkOf returns the link to the replica that serves model k for a request; nil
// if none is up. The first choice depends on the request's id alone, so that
// all replicas agree on it, and on those bits of it that the requests of one
// conversation share; a replica that is down is skipped.
func (s *Subservice) linkOf(q *sequence, k policies.ModelID) Link {
	if link := s.links[q.replica[k]]; link != nil {
		return link
	}
	names := q.dep.Replicas[k]
	for i := range names {
		name := names[(q.id%(1<<generate.PlacementBits)+uint64(i))%uint64(len(names))]
		if link := s.links[name]; link != nil {
			q.replica[k] = name
			if q.entry != nil && q.entry.servedBy != nil {
				s.group.assign(q, k, name)
			}
			return link
		}
	}
	return nil
}

// retryLost offers turns that wait for a link again.
func (s *Subservice) retryLost() {
	for _, q := range s.lost {
		s.sendTurn(q)
	}
}

// giveUp fails the requests whose turn has waited too long for a link.
func (s *Subservice) giveUp(now time.Duration) {
	for _, q := range s.lost {
		if now-q.lost >= s.cfg.CollaboratorWait {
			s.fail(q, &generate.Error{
				Code: generate.CodeUnavailable, Message: "no replica of model " + q.dep.Models[q.turn] + " can be reached",
			})
		}
	}
}

// linkChange says that a link came up or went down for good.
type linkChange struct {
	link Link
	up   bool
	err  error
}

func (m *linkChange) apply(s *Subservice) {
	name, _ := m.link.Peer()
	if m.up {
		s.links[name] = m.link
		s.forgetGroup(name)
		s.log.Debug("peer link up", "peer", name)
		s.retryLost()
		return
	}
	if s.links[name] == m.link {
		delete(s.links, name)
		s.forgetGroup(name)
	}
	s.log.Warn("peer link lost", "peer", name, "err", m.err)
	for _, q := range s.seqs {
		if q.collab != nil && q.collab.entry == name {
			s.forget(q) // its entry is gone, or will rebuild it
			continue
		}
		s.forgetReplica(q, name)
	}
}

// forgetReplica notes that a replica has lost what it knew of a request, and
// sends the turn to another one if it was there: Base 0, hop+1.
func (s *Subservice) forgetReplica(q *sequence, name string) {
	for k := range q.dep.Models {
		if q.replica[k] != name {
			continue
		}
		q.replica[k] = ""
		q.seen[k] = 0
		if q.away && q.sent && q.turn == policies.ModelID(k) {
			q.hop += resendHops
			q.sent = false
			s.sendTurn(q)
		}
	}
}

// errNotOurTurn says that a frame came from a model that does not have the turn.
var errNotOurTurn = errors.New("the sender does not have the turn")
