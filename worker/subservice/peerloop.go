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
	verdict, to := s.receive(q, f)
	switch verdict {
	case policies.Finish:
		s.end(q, handoff.DoneStop)
		return nil
	case policies.Bounce:
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

func (s *Subservice) receive(q *sequence, f *handoff.Frame) (policies.Verdict, policies.ModelID) {
	h := &s.handoff
	*h = policies.Handoff{From: q.q.From, To: q.q.Self, State: q.q.State, Tokens: s.came[:0]}
	if f != nil {
		h.Base, h.Blob = int(f.Base), f.Blob
		for _, t := range f.Tokens {
			h.Tokens = append(h.Tokens, t.ID)
		}
	}
	s.came = h.Tokens[:0]
	verdict, to := q.via.policy.Receive(&q.q, h)
	if verdict == policies.Bounce && (int(to) >= len(q.dep.Models) || to == q.q.Self) {
		s.log.Error("policy", "request", q.id, "deployment", q.dep.Name, "err", errBadDecision)
		return policies.Run, q.q.Self
	}
	return verdict, to
}

// receiveNew makes this replica a collaborator of a request, or replaces what an
// older epoch or try left here.
func (s *Subservice) receiveNew(m *arrival, old *sequence) {
	l, f := m.link, &m.frame
	switch {
	case f.Done != handoff.NotDone:
		return
	case old == nil && s.ended.has(f.Request, f.Epoch):
		s.dismiss(l, f)
		return
	}
	if old != nil {
		s.forget(old)
	}
	if f.First == nil {
		s.nack(l, f, policies.ModelID(f.To), 0)
		return
	}
	if name, _ := l.Peer(); name != f.First.Entry && s.links[f.First.Entry] == nil {
		s.reject(l, f, codeLost) // nobody could be told of what happens here
		return
	}
	q, code := s.newCollaborator(l, f)
	if q != nil {
		q.collab.sampling = m.sampling
	}
	if q == nil {
		s.reject(l, f, code)
		return
	}
	spec := s.spec(q)
	spec.Visit = true
	if err := s.sched.Submit(s.now(), q.sid(), spec); err != nil {
		s.log.Warn("hand-off refused", "request", f.Request, "err", err)
		s.reject(l, f, admissionError(err).Code)
		return
	}
	s.seqs[q.id] = q
	q.course.began = s.now()
	q.keepLogprobs(f)
	s.announce(q)
	if verdict, to := s.receive(q, f); verdict == policies.Bounce {
		s.log.Error("policy bounces a first visit", "request", q.id, "to", to)
		s.fail(q, &generate.Error{Code: generate.CodeInternal, Message: "the routing policy failed"})
	}
}

// newCollaborator builds the sequence of a first hand-off; nil and a code if
// its contents do not fit this replica.
func (s *Subservice) newCollaborator(l Link, f *handoff.Frame) (*sequence, string) {
	dep, _ := s.present.version(f.First.Deployment, f.First.Version)
	if dep == nil || int(f.From) >= len(dep.Models) || policies.ModelID(f.To) != dep.Self || f.From == f.To {
		return nil, generate.CodeNotFound
	}
	p := f.First
	via := dep.via(p.Override)
	if via == nil {
		return nil, generate.CodeInvalid
	}
	answer := len(f.Tokens) - int(p.PromptLen)
	if p.PromptLen < 1 || p.Sampling.MaxTokens < 1 || answer >= int(p.Sampling.MaxTokens) || len(f.Tokens) >= s.info.MaxContext {
		return nil, generate.CodeInvalid
	}
	q := &sequence{id: f.Request, epoch: f.Epoch, hop: f.Hop, dep: dep, via: via, params: p.Sampling, age: p.Age, salt: p.Salt, collab: &collabState{entry: p.Entry}}
	q.q = policies.Req{
		ID: q.id, Self: dep.Self, From: policies.ModelID(f.From), Owner: policies.Entry,
		PromptLen: int(p.PromptLen), Sampling: &q.params, Override: p.Override,
	}
	q.q.State.Set(f.State)
	for i, t := range f.Tokens {
		if int(t.ID) >= s.info.Vocab || int(t.Model) >= len(dep.Models) {
			return nil, generate.CodeInvalid
		}
		q.ids = append(q.ids, t.ID)
		if i >= int(p.PromptLen) {
			q.q.Models = append(q.q.Models, policies.ModelID(t.Model))
		}
	}
	q.q.Out, q.q.Prompt = q.ids[p.PromptLen:], q.ids[:p.PromptLen:p.PromptLen]
	for k, n := range f.Seen {
		if k < len(dep.Models) {
			q.seen[k] = min(n, int32(len(q.ids)))
		}
	}
	q.seen[f.From] = int32(len(q.ids))
	q.seen[dep.Self] = int32(len(q.ids))
	q.replica[f.From], _ = l.Peer()
	cfg := q.seqConfig()
	if err := cfg.Check(&s.info); err != nil {
		return nil, generate.CodeInvalid
	}
	if v, err := q.fence.Check(f); v != handoff.Apply || err != nil {
		return nil, generate.CodeConflict
	}
	return q, ""
}

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
	retryable := f.Code != generate.CodeKVExhausted && f.Code != generate.CodeInvalid
	s.fail(q, &generate.Error{
		Code: errorCode(f.Code), Retryable: retryable,
		Message: "model " + q.dep.Models[min(int(f.From), len(q.dep.Models)-1)] + " cannot go on with the request",
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
