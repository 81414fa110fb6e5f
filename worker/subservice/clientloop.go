package subservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// ServeHTTP is the client loop: one call per request, POST on generate.Path.
// It answers with a JSON error until the request is admitted, and with a stream
// of events afterwards. When the gateway goes away the request is aborted
// wherever it is.
func (s *Subservice) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "POST only", http.StatusMethodNotAllowed)
		return
	}
	version, unspoken := generate.Choose(r.Header.Get("Accept"))
	if unspoken != nil {
		s.refused.Note(s.log, "gateway refused", unwelcome.Peer(r), unspoken, "addr", r.RemoteAddr)
		writeError(w, unspoken)
		return
	}
	s.refused.Forget(unwelcome.Peer(r))
	req, err := generate.DecodeRequest(r.Body)
	if err != nil {
		writeError(w, &generate.Error{Code: generate.CodeInvalid, Message: err.Error()})
		return
	}
	sub, problem := s.prepare(req)
	if problem == nil {
		problem = s.submit(r.Context(), sub)
	}
	if problem != nil {
		writeError(w, problem)
		return
	}
	w.Header().Set("Content-Type", generate.ContentType(version))
	s.copyEvents(r.Context(), w, sub)
}

// submit posts the request and waits for its admission.
func (s *Subservice) submit(ctx context.Context, sub *submission) *generate.Error {
	if !s.in.post(sub) {
		return &generate.Error{Code: generate.CodeUnavailable, Message: "the replica is stopping", Retryable: true}
	}
	select {
	case refusal := <-sub.reply:
		return refusal
	case <-ctx.Done():
		s.in.post(&cancellation{sub.q.id, sub.q.epoch})
		return &generate.Error{Code: generate.CodeUnavailable, Message: "the caller went away, or the replica is stopping", Retryable: true}
	}
}

// copyEvents writes the request's events until the last one, or until the
// gateway goes away.
func (s *Subservice) copyEvents(ctx context.Context, w http.ResponseWriter, sub *submission) {
	w.WriteHeader(http.StatusOK)
	out := generate.NewWriter(w)
	flush := http.NewResponseController(w)
	for {
		events, behind := sub.q.entry.stream.take()
		last := false
		for i := range events {
			if err := out.Write(&events[i]); err != nil {
				s.in.post(&cancellation{sub.q.id, sub.q.epoch})
				return
			}
			last = events[i].Kind == generate.EventFinish || events[i].Kind == generate.EventError
		}
		if len(events) > 0 {
			if err := flush.Flush(); err != nil {
				s.in.post(&cancellation{sub.q.id, sub.q.epoch})
				return
			}
		}
		if last {
			return
		}
		if behind {
			s.in.post(&caughtUp{sub.q.id, sub.q.epoch})
		}
		select {
		case <-sub.q.entry.stream.wake:
		case <-ctx.Done():
			s.in.post(&cancellation{sub.q.id, sub.q.epoch})
			return
		}
	}
}

func writeError(w http.ResponseWriter, e *generate.Error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.HTTPStatus())
	// The connection is gone if this fails; there is nobody to tell.
	_ = json.NewEncoder(w).Encode(e)
}

// submission is a prepared request on its way to the decode loop.
type submission struct {
	q *sequence
	// owner is the model that has the turn, other than the entry for some resumed requests.
	owner policies.ModelID
	// reply has room for one value: nil once the request is admitted, else why not.
	reply chan *generate.Error
}

func (m *submission) apply(s *Subservice) { m.reply <- s.accept(m) }

// accept admits a request to the scheduler's queue, or says why not.
func (s *Subservice) accept(m *submission) *generate.Error {
	q := m.q
	if old := s.seqs[q.id]; old != nil {
		if old.epoch >= q.epoch {
			return &generate.Error{Code: generate.CodeStaleEpoch, Message: "the request is served in this epoch or a later one"}
		}
		s.supersede(old)
	} else if s.ended.has(q.id, q.epoch) {
		return &generate.Error{Code: generate.CodeStaleEpoch, Message: "the request has ended"}
	}
	verdict, to, refusal := s.receive(q, nil)
	if refusal != nil {
		return refusal
	}
	if m.owner != q.q.Self {
		verdict, to = policies.Bounce, m.owner
	}
	spec := s.spec(q)
	var err error
	done := q.finished()
	if verdict == policies.Finish && done == handoff.NotDone {
		done = handoff.DoneStop
	}
	switch {
	case done != handoff.NotDone && (q.params.MaxTokens > 0 || !q.scored() || q.q.PromptLen == 1):
		// The last token that was committed before the move ended the answer, or
		// only the prompt is wanted.
		s.admitted(q)
		s.push(q, generate.Event{
			Kind: generate.EventFinish, Epoch: q.epoch, Finish: finishOf(done), Tail: q.entry.decoder.Flush(),
		})
		s.ended.add(q.id, q.epoch)
		return nil
	case verdict == policies.Bounce && !q.scored():
		// It holds nothing here until the turn comes back.
		err = s.sched.SubmitAway(s.now(), q.sid(), spec)
	default:
		verdict = policies.Run // a prompt is scored where it is admitted
		err = s.sched.Submit(s.now(), q.sid(), spec)
	}
	if err != nil {
		return admissionError(err)
	}
	s.seqs[q.id] = q
	q.course.began = s.now()
	s.countIn(q)
	s.admitted(q)
	if verdict != policies.Bounce {
		s.visit(q, q.q.Self, s.cfg.Replica)
	}
	if verdict == policies.Bounce {
		_ = s.handOver(q, policies.Decision{To: to, Keep: true}) // its stream hears of a failure
	}
	return nil
}

// spec is what the scheduler needs to know of a sequence.
func (s *Subservice) spec(q *sequence) scheduler.Spec {
	want, topK := q.via.wants()
	return scheduler.Spec{
		Tokens: q.ids, MaxLen: s.reserve(q), Age: q.age, Salt: q.salt,
		// Scoring a prompt needs a forward pass over all of it.
		Cache: s.info.Features&step.FAdopt != 0 && !q.scored(),
		Want:  want, TopK: topK, Net: q.via.net, Logprobs: q.params.Logprobs,
	}
}

// admitted is the first event of a request.
func (s *Subservice) admitted(q *sequence) {
	s.push(q, generate.Event{
		Kind: generate.EventAdmitted, Epoch: q.epoch, PromptIDs: slices.Clone(q.ids[:q.q.PromptLen]),
		Replica: s.cfg.Replica, Models: q.dep.Models, Version: q.dep.Version,
	})
	s.startEcho(q)
}

// supersede ends the older epoch of a request that was submitted again.
func (s *Subservice) supersede(old *sequence) {
	s.fail(old, &generate.Error{Code: generate.CodeStaleEpoch, Message: "the request was submitted again"})
}

// admissionError is what a refusal by the scheduler means to the client.
func admissionError(err error) *generate.Error {
	switch {
	case errors.Is(err, scheduler.ErrQueueFull), errors.Is(err, scheduler.ErrNoRoom):
		return &generate.Error{Code: generate.CodeQueueFull, Message: "too many requests are waiting", Retryable: true}
	case errors.Is(err, scheduler.ErrNeverFits):
		return &generate.Error{Code: generate.CodeKVExhausted, Message: "the prompt and max_tokens need more cache than this model has", Param: "max_tokens"}
	case errors.Is(err, scheduler.ErrDuplicate):
		return &generate.Error{Code: generate.CodeConflict, Message: "the request id is in use"}
	}
	return &generate.Error{Code: generate.CodeInternal, Message: fmt.Sprintf("admission failed: %v", err)}
}

// cancellation aborts a request in whatever state it is.
type cancellation struct {
	request uint64
	epoch   uint32
}

func (m *cancellation) apply(s *Subservice) {
	q := s.seqs[m.request]
	if q == nil || q.entry == nil || q.epoch != m.epoch {
		return
	}
	s.release(q, handoff.DoneAbort)
	s.remove(q)
}
