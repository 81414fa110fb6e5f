package subservice

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// retryWait is how soon a turn whose link was full is offered again.
const retryWait = 5 * time.Millisecond

// handOver gives the turn of a parked sequence to another model. It reports whether the
// sequence is still there: its policy may fail.
func (s *Subservice) handOver(q *sequence, d policies.Decision) bool {
	h := &s.handoff
	*h = policies.Handoff{From: q.q.Self, To: d.To, Base: int(q.seen[d.To]), Tokens: q.ids[q.seen[d.To]:], State: q.q.State}
	if err := q.addTo(h, d); err != nil {
		*h = policies.Handoff{}
		s.fail(q, s.blame(q, err))
		return false
	}
	q.away, q.turn, q.sent = true, d.To, false
	s.leftVisit(q)
	q.q.State = h.State
	q.blob = h.Blob
	*h = policies.Handoff{}
	q.hop++
	if q.entry != nil {
		q.entry.news, q.entry.holder = q.hop, ""
	}
	s.sendTurn(q)
	return true
}

// sendTurn sends the hand-off of the turn, or notes that it waits for a link.
// Everything in it is derived from the sequence, so it can be built again.
func (s *Subservice) sendTurn(q *sequence) {
	link := s.linkTo(q)
	if link != nil {
		if s.member != nil {
			s.member.Sent(s.now(), q.id, q.kept)
		}
		f := s.turnFrame(q)
		if err := q.dep.IDs.Send(f); err != nil {
			s.broken(q, "send the turn", err)
			return
		}
		if err := link.Send(f); err == nil {
			q.sent = true
			q.seen[q.turn] = int32(len(q.ids))
			if q.entry != nil {
				q.entry.holder, _ = link.Peer()
				s.visit(q, q.turn, q.entry.holder)
				q.entry.noteHolding(q.entry.holder, q.turn)
			}
			s.handoffs++
			delete(s.lost, q.id)
			if q.done != handoff.NotDone && q.q.From == q.q.Owner {
				s.forget(q) // else somebody vouches for this replica until the entry has it
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
			Deployment: q.dep.Name, PromptLen: int32(q.q.PromptLen), Entry: s.entryOf(q), Age: q.age, Salt: q.salt, Sampling: q.sampling(), Override: q.q.Override, Version: q.dep.Version,
		}
	}
	if len(q.dep.Models) > 2 {
		f.Seen = append([]int32(nil), q.seen[:len(q.dep.Models)]...)
	}
	return f
}

// sampling is how the other models are to sample, in the entry's ids.
func (q *sequence) sampling() sampling.Params {
	if q.collab != nil {
		return q.collab.sampling
	}
	return q.params
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

// logprobsFrom returns what belongs to the tokens from base on, or nil if none was
// asked for. Those of the prompt and of tokens that came from the entry are zero.
func (q *sequence) logprobsFrom(base int32) []handoff.Logprob {
	if q.params.Logprobs < 0 || int(base) == len(q.ids) {
		return nil
	}
	n := int(base) - q.q.PromptLen
	if n >= 0 {
		return q.collab.logprobs[n:]
	}
	return append(make([]handoff.Logprob, -n, len(q.ids)-int(base)), q.collab.logprobs...)
}

// keepLogprobs keeps those of a hand-off whose tokens were absorbed.
func (q *sequence) keepLogprobs(f *handoff.Frame) {
	if q.params.Logprobs < 0 {
		return
	}
	lps := slices.Grow(q.collab.logprobs, len(q.q.Out)-len(q.collab.logprobs))[:len(q.q.Out)]
	clear(lps[len(q.collab.logprobs):])
	q.collab.logprobs = lps
	for i, lp := range f.Logprobs {
		n := int(f.Base) + i - q.q.PromptLen
		if n >= 0 && n < len(lps) && (lp.Logprob != 0 || len(lp.Top) > 0) {
			lp.Top = slices.Clone(lp.Top)
			lps[n] = lp
		}
	}
}

// sendProgress tells the entry what a collaborator has committed that keeps the
// turn, or has given it to a third model.
func (s *Subservice) sendProgress(q *sequence) error {
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
		return err
	}
	q.seen[owner] = int32(len(q.ids))
	return nil
}

// sendToEntry sends a frame to the entry of a request that is on loan here.
func (s *Subservice) sendToEntry(q *sequence, f *handoff.Frame) error {
	link := s.links[q.collab.entry]
	if link == nil {
		return peer.ErrLinkDown
	}
	if err := q.dep.IDs.Send(f); err != nil {
		return err // the turn says it, too, and then ends the request
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
// if none is up. A replica that is to be left is left as soon as another can take
// its place.
func (s *Subservice) linkOf(q *sequence, k policies.ModelID) Link {
	present := s.links[q.replica[k]]
	if present != nil && !s.present.avoid[q.replica[k]] {
		return present
	}
	name := s.choose(q, k)
	if name == "" {
		if present != nil {
			return present
		}
		if name = s.lastResort(q, k); name == "" {
			return nil
		}
	}
	if present != nil {
		s.leave(q, k)
	}
	q.replica[k] = name
	if q.entry != nil && q.entry.servedBy != nil {
		s.group.assign(q, k, name)
	}
	return s.links[name]
}

// choose picks a replica of model k for a request, among those that may be given
// something new; empty if no link to one is up. The first choice depends on the
// request's id alone, so that all replicas agree on it, and on those bits of it that
// the requests of one conversation share; a replica that is down is skipped.
func (s *Subservice) choose(q *sequence, k policies.ModelID) string {
	return s.pick(q, k, func(name string) bool { return s.links[name] != nil && !s.present.avoid[name] })
}

// lastResort is choose among the replicas that should not be given anything new.
func (s *Subservice) lastResort(q *sequence, k policies.ModelID) string {
	return s.pick(q, k, func(name string) bool { return s.links[name] != nil })
}

func (s *Subservice) pick(q *sequence, k policies.ModelID, fits func(name string) bool) string {
	names := s.replicas(q.dep, k)
	for i := range names {
		name := names[(q.id%(1<<generate.PlacementBits)+uint64(i))%uint64(len(names))]
		if fits(name) {
			return name
		}
	}
	return ""
}

// retryLost offers turns that wait for a link again.
func (s *Subservice) retryLost() {
	for _, q := range inOrder(s.lost) {
		s.sendTurn(q)
	}
}

// inOrder lists sequences by request, so that what is sent for all of them is sent
// in the same order every time.
func inOrder(m map[uint64]*sequence) []*sequence {
	list := make([]*sequence, 0, len(m))
	for _, q := range m {
		list = append(list, q)
	}
	slices.SortFunc(list, func(a, b *sequence) int { return cmp.Compare(a.id, b.id) })
	return list
}

// linkChange says that a link came up or went down for good. A link to a replica
// goes down before the next one to it comes up, and no frame of it comes later.
type linkChange struct {
	link Link
	up   bool
	err  error
}

func (m *linkChange) apply(s *Subservice) {
	name, _ := m.link.Peer()
	switch {
	case m.up:
		s.links[name] = m.link
		s.forgetGroup(name)
		s.log.Debug("peer link up", "peer", name)
		s.retryLost()
	case s.links[name] == m.link:
		level := slog.LevelWarn
		if errors.Is(m.err, peer.ErrClosed) {
			level = slog.LevelInfo // it was meant
		}
		s.log.Log(context.Background(), level, "peer link lost", "peer", name, "err", m.err)
		s.linkLost(name)
	}
}

// linkLost gives up what was in flight on the link to a replica, and what that
// replica knew.
func (s *Subservice) linkLost(name string) {
	lost := s.links[name]
	delete(s.links, name)
	s.forgetGroup(name)
	s.dropEarly(func(e *early) bool { return e.link == lost })
	for _, q := range inOrder(s.seqs) {
		if q.collab != nil && q.collab.entry == name {
			s.surrender(q) // its entry is gone, or begins a new try
			continue
		}
		s.lostReplica(q, name)
	}
}

// errNotOurTurn says that a frame came from a model that does not have the turn.
var errNotOurTurn = errors.New("the sender does not have the turn")
