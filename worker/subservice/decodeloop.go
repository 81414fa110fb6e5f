package subservice

import (
	"context"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// decodeLoop applies what arrived, runs a step if one is due, routes its rows,
// and waits otherwise. It returns nil when ctx ends and the steps in flight have ended,
// which are waited for until steps ends.
func (s *Subservice) decodeLoop(ctx, steps context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		plan, wake, waiting, err := s.begin()
		if err != nil {
			return err
		}
		if plan != nil {
			first, err := s.launch(plan)
			if err != nil {
				return err
			}
			s.flying = first
		}
		// The device works on the next step by now: what clients hear of the last one does not hold it up.
		s.publish()
		s.tellClients()
		if s.flying == nil {
			s.idle(ctx, timer, wake, waiting)
			continue
		}
		if err := s.oneStep(steps); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
	return s.landAll(steps)
}

// landAll takes the results of the steps in flight, for which nobody waits.
func (s *Subservice) landAll(ctx context.Context) error {
	for s.flying != nil {
		if s.land(ctx, nil) != nil {
			break
		}
	}
	return nil
}

// oneStep launches the next step ahead, if it should be, and takes the results of
// the one in flight.
func (s *Subservice) oneStep(ctx context.Context) error {
	next, err := s.lookAhead()
	if err != nil {
		return err
	}
	return s.land(ctx, next)
}

// begin applies what has arrived and plans a step if one is due and none is in
// flight. Without a plan, waiting says that it must be called again at wake if
// nothing happens before.
func (s *Subservice) begin() (plan *scheduler.Plan, wake time.Duration, waiting bool, err error) {
	s.measured.entered = s.now()
	s.takeRoster()
	for _, m := range s.in.take() {
		m.apply(s)
	}
	s.keepAlive()
	if len(s.early) > 0 {
		s.takeEarly()
	}
	if len(s.parcels) > 0 {
		s.sendParcels()
	}
	if len(s.lost) > 0 {
		s.retryLost()
		s.giveUp(s.now())
	}
	if err := s.admit(); err != nil {
		return nil, 0, false, err
	}
	s.regroup()
	if s.flying != nil {
		return nil, 0, false, nil
	}
	if s.member == nil {
		plan, wake, waiting = s.sched.Next(s.now())
		return plan, wake, waiting, nil
	}
	plan, wake, waiting = s.offer()
	return plan, wake, waiting, nil
}

// keepAlive tells the gateways of requests that wait that this loop still looks
// after them.
func (s *Subservice) keepAlive() {
	now := s.now()
	if now-s.alive < generate.AliveEvery/4 {
		return
	}
	s.alive = now
	for _, q := range s.seqs {
		if q.entry != nil && now-q.entry.stream.silentSince() >= generate.AliveEvery/2 {
			s.push(q, generate.Event{Kind: generate.EventAlive, Epoch: q.epoch})
		}
	}
}

// idle waits for a message, the end of the longest wait, or the time to offer
// a turn to a lost collaborator again.
func (s *Subservice) idle(ctx context.Context, timer *time.Timer, wake time.Duration, waiting bool) {
	until := time.Hour
	if waiting {
		until = max(wake-s.now(), 0)
	}
	if len(s.lost)+len(s.parcels)+len(s.early) > 0 || s.group.changed {
		until = min(until, retryWait)
	}
	if len(s.seqs) > 0 {
		until = min(until, generate.AliveEvery/4)
	}
	timer.Reset(until)
	select {
	case <-s.in.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// admit opens an executor slot for every sequence that the scheduler lets in,
// after closing those of the sequences that had to make room.
func (s *Subservice) admit() error {
	ids := s.sched.Admit(s.now())
	s.closePreempted(s.sched.TakePreempted())
	for _, id := range ids {
		q := s.seqs[uint64(id)]
		slot, err := s.exec.Open(q.seqConfig())
		if err != nil {
			return fmt.Errorf("open slot: %w", err)
		}
		if err := s.sched.Bind(id, slot); err != nil {
			return fmt.Errorf("bind slot: %w", err)
		}
	}
	return nil
}

// closePreempted gives back the slots of sequences that lost their pages. The
// scheduler rebuilds them by extend when it is their turn again; nobody else
// notices.
func (s *Subservice) closePreempted(list []scheduler.Preemption) {
	for _, p := range list {
		s.exec.Close(p.Slot)
	}
}

// launch starts a planned step.
func (s *Subservice) launch(plan *scheduler.Plan) (*flight, error) {
	began := s.now()
	s.closePreempted(plan.Preempted)
	for _, t := range plan.Truncations {
		if err := s.exec.Truncate(t.Slot, t.Length); err != nil {
			return nil, fmt.Errorf("truncate slot %d: %w", t.Slot, err)
		}
	}
	s.askPrompt(plan)
	s.mixIn(plan)
	s.watch.begin(&plan.Batch, began)
	exec := s.exec // inside the call nothing of s may be looked at
	s.watch.enter("launch")
	ticket, err := exec.Launch(&plan.Batch)
	if hung := s.watch.leave(); hung != nil {
		return nil, hung
	}
	if err != nil {
		return nil, fmt.Errorf("launch step %d: %w", plan.Batch.Step, err)
	}
	return &flight{plan, ticket, began}, nil
}

// route asks every deployment's policy about its rows and applies the decisions.
func (s *Subservice) route(plan *scheduler.Plan) {
	outs := s.result.Out
	for i := 0; i < len(outs); i++ {
		out := &outs[i]
		if !plan.Live(int(out.Row)) {
			continue
		}
		q := s.seqs[uint64(plan.IDs[out.Row])]
		if out.Given {
			n := i + 1
			for n < len(outs) && outs[n].Given && outs[n].Row == out.Row {
				n++
			}
			s.tellScored(q, outs[i:n])
			i = n - 1
			continue
		}
		if q.params.MaxTokens == 0 {
			s.finish(q, handoff.DoneLength) // the prompt was all that was wanted
			continue
		}
		if len(q.via.rows) == 0 {
			s.judged = append(s.judged, q.via)
		}
		q.via.add(q, out, policies.Kind(plan.Kinds[out.Row]))
	}
	for k, r := range s.judged {
		s.judged[k] = nil
		if err := r.decide(); err != nil {
			s.log.Error("policy", "deployment", r.dep.Name, "err", err)
		}
		for i, q := range r.rows {
			r.dep.routing.add(r.choices[i])
			s.applyDecision(q, r.outs[i], r.choices[i], r.panicked[i])
			s.ahead.note(s.seqs[q.id] == q && !q.away && len(r.choices[i].Inject) == 0)
		}
		r.reset()
	}
	s.judged = s.judged[:0]
}

// applyDecision commits or drops the sampled token of one row and moves the turn. Of a
// row about which the policy panicked there is no decision.
func (s *Subservice) applyDecision(q *sequence, out *step.Out, d policies.Decision, panicked bool) {
	wrong := s.wrong(q, d)
	if panicked {
		wrong = routePanicked
	}
	switch {
	case out.Flags&step.FlagNaN != 0:
		s.log.Error("logits are not finite", "request", q.id, "position", out.Position)
		s.sched.Distrust() // pages that took part may be shared
		s.fail(q, &generate.Error{Code: generate.CodeInternal, Message: "the model produced logits that are not finite"})
		return
	case wrong != "":
		s.fail(q, s.blame(q, wrong))
		return
	}
	q.kept = d.Keep
	if d.Keep {
		if s.commitHere(q, out, d) {
			return // finished
		}
	}
	if d.To != q.q.Self {
		if err := s.sched.Park(q.sid()); err != nil {
			s.broken(q, "park", err)
			return
		}
		if !s.handOver(q, d) {
			return
		}
		if d.Keep && q.collab != nil && d.To != q.q.Owner {
			_ = s.sendProgress(q) // the entry hears of the token, and of the third model
		}
		return
	}
	if q.collab != nil {
		_ = s.sendProgress(q) // else the tokens go with what comes next
	} else {
		s.holdBack(q)
	}
}

// holdBack parks a sequence whose gateway is too far behind.
func (s *Subservice) holdBack(q *sequence) {
	if !q.entry.stream.hold() {
		return
	}
	s.setHeld(q, true)
	if err := s.sched.Park(q.sid()); err != nil {
		s.broken(q, "hold", err)
	}
}

// setHeld notes whether a sequence waits for its gateway.
func (s *Subservice) setHeld(q *sequence, held bool) {
	if q.entry.held == held {
		return
	}
	q.entry.held = held
	if held {
		s.paused++
	} else {
		s.paused--
	}
}

// caughtUp says that a gateway has taken what was waiting for it.
type caughtUp struct {
	request uint64
	epoch   uint32
}

func (m *caughtUp) apply(s *Subservice) {
	q := s.seqs[m.request]
	if q == nil || q.entry == nil || q.epoch != m.epoch || !q.entry.held {
		return
	}
	s.setHeld(q, false)
	if q.away {
		return // the turn's return finds the way free
	}
	if err := s.sched.Append(s.now(), q.sid(), nil); err != nil {
		s.broken(q, "resume", err)
	}
}
