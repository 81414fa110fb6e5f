package subservice

import (
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
)

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
	switch verdict, _, refusal := s.receive(q, f); {
	case refusal != nil:
		s.fail(q, refusal)
	case verdict == policies.Bounce:
		s.fail(q, s.blame(q, receivedFirst))
	case verdict == policies.Finish:
		s.end(q, handoff.DoneStop)
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
		return nil, faultCode + string(absent)
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
