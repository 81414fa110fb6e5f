package subservice

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

// Link is the way to one replica, a *peer.Link outside of simulations.
type Link interface {
	// Send queues a frame without blocking, as peer.Link does.
	Send(f *handoff.Frame) error
	// Peer names the replica at the other side and its model.
	Peer() (replica, model string)
}

// arrival is a frame from a peer, copied.
type arrival struct {
	link  Link
	frame handoff.Frame
	// sampling is that of a first visit as it came, in the entry's ids.
	sampling sampling.Params
}

// HandleFrame posts a frame to the decode loop. Package peer calls it from its readers.
func (s *Subservice) HandleFrame(l *peer.Link, f *handoff.Frame) {
	s.in.post(&arrival{link: l, frame: cloneFrame(f)})
}

// cloneFrame copies a frame with all that it points to.
func cloneFrame(f *handoff.Frame) handoff.Frame {
	c := *f
	c.Tokens = slices.Clone(f.Tokens)
	c.Seen = slices.Clone(f.Seen)
	c.State = slices.Clone(f.State)
	c.Blob = slices.Clone(f.Blob)
	if f.First != nil {
		first := *f.First
		first.Sampling.StopIDs = slices.Clone(first.Sampling.StopIDs)
		c.First = &first
	}
	c.Logprobs = slices.Clone(f.Logprobs)
	for i := range c.Logprobs {
		c.Logprobs[i].Top = slices.Clone(c.Logprobs[i].Top)
	}
	return c
}

// LinkUp and LinkDown post a change of a link. Package peer calls them.
func (s *Subservice) LinkUp(l *peer.Link) { s.in.post(&linkChange{link: l, up: true}) }

// LinkDown says that what was in flight on the link is lost.
func (s *Subservice) LinkDown(l *peer.Link, err error) { s.in.post(&linkChange{link: l, err: err}) }

func (m *arrival) apply(s *Subservice) {
	f := &m.frame
	if f.Kind == handoff.KindGroup {
		name, _ := m.link.Peer()
		s.receiveGroup(name, f)
		return
	}
	if f.Kind == handoff.KindHandoff && f.First != nil && s.awaitVersion(m) {
		return
	}
	if s.member != nil && f.Kind == handoff.KindHandoff {
		defer s.arrived(f.Request)
	}
	q := s.seqs[f.Request]
	err := m.translate(s, q)
	switch {
	case err != nil && f.Kind == handoff.KindHandoff:
		s.log.Warn("hand-off refused", "request", f.Request, "err", err)
		s.reject(m.link, f, generate.CodeInvalid)
		err = nil
	case err != nil:
	case f.Kind == handoff.KindHandoff && (q == nil || q.collab != nil && q.replaces(f)):
		s.receiveNew(m, q)
	case q == nil:
		if f.Kind == handoff.KindProgress {
			s.dismiss(m.link, f)
		}
		if f.Kind == handoff.KindRelease {
			s.dropEarly(func(e *early) bool { return e.frame.Request == f.Request && e.frame.Epoch <= f.Epoch })
		}
	case f.Kind == handoff.KindNack:
		s.receiveNack(q, f)
	case f.Kind == handoff.KindRelease:
		s.receiveRelease(m.link, q, f)
	case f.Kind == handoff.KindProgress:
		err = s.receiveProgress(m.link, q, f)
	default:
		err = s.receiveHandoff(m.link, q, f)
	}
	if err != nil {
		s.refuse(m.link, q, f, err)
	}
}

// translate makes the ids of a frame this model's own, before anything compares them.
func (m *arrival) translate(s *Subservice, q *sequence) error {
	f := &m.frame
	var dep *deployment
	switch {
	case f.First != nil:
		m.sampling = f.First.Sampling
		dep, _ = s.present.version(f.First.Deployment, f.First.Version)
	case q != nil:
		dep = q.dep
	}
	if dep == nil {
		return nil
	}
	return dep.IDs.Receive(f)
}

// refuse handles a turn frame that was not applied: late ones are dropped, a
// conflict ends the request.
func (s *Subservice) refuse(l Link, q *sequence, f *handoff.Frame, err error) {
	switch {
	case errors.Is(err, errOldTry):
		if f.Epoch < q.epoch {
			s.dismiss(l, f)
			return
		}
		s.tell(l, &handoff.Frame{
			Kind: handoff.KindRelease, Request: f.Request, Epoch: f.Epoch, Hop: f.Hop,
			From: uint8(q.q.Self), To: f.From, Done: handoff.DoneError, Code: codeStale,
		})
		return
	case errors.Is(err, handoff.ErrStale) || errors.Is(err, errNotOurTurn):
		s.log.Debug("stale frame", "request", f.Request, "epoch", f.Epoch, "hop", f.Hop, "err", err)
		return
	}
	s.log.Error("hand-off conflict", "request", f.Request, "epoch", f.Epoch, "hop", f.Hop, "err", err)
	s.fail(q, &generate.Error{Code: generate.CodeConflict, Message: "two replicas disagree about the answer", Retryable: true})
}

// heard notes at the entry who speaks, and says whether it speaks of the present try.
func (s *Subservice) heard(l Link, q *sequence, f *handoff.Frame) error {
	if f.Epoch < q.epoch || f.Epoch == q.epoch && tryOf(f.Hop) < tryOf(q.hop) {
		return fmt.Errorf("%w: %s of epoch %d hop %d", errOldTry, f.Kind, f.Epoch, f.Hop)
	}
	if f.Epoch > q.epoch || tryOf(f.Hop) > tryOf(q.hop) || int(f.From) >= len(q.dep.Models) || policies.ModelID(f.From) == q.q.Self {
		return notOurTurn(f)
	}
	name, _ := l.Peer()
	q.entry.noteHolding(name, policies.ModelID(f.From))
	return nil
}
