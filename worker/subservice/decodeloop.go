package subservice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// decodeLoop applies what arrived, runs a step if one is due, routes its rows,
// and waits otherwise. It returns nil when ctx ends.
func (s *Subservice) decodeLoop(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		for _, m := range s.in.take() {
			m.apply(s)
		}
		if len(s.lost) > 0 {
			s.retryLost()
			s.giveUp(s.now())
		}
		if err := s.admit(); err != nil {
			return err
		}
		plan, wake, waiting := s.sched.Next(s.now())
		if plan != nil {
			if err := s.runStep(ctx, plan); err != nil {
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
			s.publish()
			continue
		}
		s.publish()
		s.idle(ctx, timer, wake, waiting)
	}
	return nil
}

// idle waits for a message, the end of the longest wait, or the time to offer
// a turn to a lost collaborator again.
func (s *Subservice) idle(ctx context.Context, timer *time.Timer, wake time.Duration, waiting bool) {
	until := time.Hour
	if waiting {
		until = max(wake-s.now(), 0)
	}
	if len(s.lost) > 0 {
		until = min(until, retryWait)
	}
	timer.Reset(until)
	select {
	case <-s.in.wake:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// admit opens an executor slot for every sequence that the scheduler lets in.
func (s *Subservice) admit() error {
	for _, id := range s.sched.Admit(s.now()) {
		q := s.seqs[uint64(id)]
		slot, err := s.exec.Open(executor.SeqConfig{Sampling: q.params, Model: uint8(q.q.Self)})
		if err != nil {
			return fmt.Errorf("open slot: %w", err)
		}
		if err := s.sched.Bind(id, slot); err != nil {
			return fmt.Errorf("bind slot: %w", err)
		}
	}
	return nil
}

// runStep executes a plan and applies its results.
func (s *Subservice) runStep(ctx context.Context, plan *scheduler.Plan) error {
	for _, t := range plan.Truncations {
		if err := s.exec.Truncate(t.Slot, t.Length); err != nil {
			return fmt.Errorf("truncate slot %d: %w", t.Slot, err)
		}
	}
	began := s.now()
	ticket, err := s.exec.Launch(&plan.Batch)
	if err != nil {
		return fmt.Errorf("launch step %d: %w", plan.Batch.Step, err)
	}
	// The step is waited for even when ctx ends: its pages may be reused only afterwards.
	if err := s.exec.Wait(context.WithoutCancel(ctx), ticket, &s.result); err != nil {
		return fmt.Errorf("step %d: %w", plan.Batch.Step, err)
	}
	now := s.now()
	s.sched.Complete(now, plan, now-began)
	s.route(plan)
	return nil
}

// route asks every deployment's policy about its rows and applies the decisions.
func (s *Subservice) route(plan *scheduler.Plan) {
	for i := range s.result.Out {
		out := &s.result.Out[i]
		q := s.seqs[uint64(plan.IDs[out.Row])]
		d := q.dep
		d.rows = append(d.rows, q)
		d.outs = append(d.outs, out)
		d.kinds = append(d.kinds, policies.Kind(plan.Kinds[out.Row]))
	}
	for _, d := range s.deployments {
		if len(d.rows) == 0 {
			continue
		}
		d.decide()
		for i, q := range d.rows {
			s.applyDecision(q, d.outs[i], d.choices[i])
		}
		clear(d.rows)
		d.rows, d.outs, d.kinds = d.rows[:0], d.outs[:0], d.kinds[:0]
	}
}

// decide fills d.choices for d.rows.
func (d *deployment) decide() {
	b, r := &d.batch, &d.result
	b.Reqs = b.Reqs[:0]
	*r = policies.Result{
		Token: r.Token[:0], Entropy: r.Entropy[:0], Score: r.Score[:0],
		TopK: r.TopK[:0], Hidden: r.Hidden[:0], Kind: d.kinds,
	}
	for i, q := range d.rows {
		out := d.outs[i]
		b.Reqs = append(b.Reqs, &q.q)
		r.Token = append(r.Token, out.Token)
		r.Entropy = append(r.Entropy, out.Entropy)
		r.LogV = out.LogV
		r.Score = append(r.Score, out.Score)
		if d.spec.Needs&policies.FeatureTopK != 0 {
			r.TopK = append(r.TopK, logitsOf(out.Top, d.spec.TopK))
		}
		if d.spec.Needs&policies.FeatureHidden != 0 {
			r.Hidden = append(r.Hidden, out.Hidden)
		}
	}
	if cap(d.choices) < len(d.rows) {
		d.choices = make([]policies.Decision, len(d.rows))
	}
	d.choices = d.choices[:len(d.rows)]
	clear(d.choices)
	d.Policy.Route(b, r, d.choices)
}

func logitsOf(top []step.TopEntry, n int) []float32 {
	v := make([]float32, 0, n)
	for _, e := range top[:min(n, len(top))] {
		v = append(v, e.Logit)
	}
	return v
}

// errBadDecision is a policy's fault: a dropped token that stays, or a model
// that the deployment does not have.
var errBadDecision = errors.New("the policy made an impossible decision")

// applyDecision commits or drops the sampled token of one row and moves the turn.
func (s *Subservice) applyDecision(q *sequence, out *step.Out, d policies.Decision) {
	switch {
	case out.Flags&step.FlagNaN != 0:
		s.log.Error("logits are not finite", "request", q.id, "position", out.Position)
		s.fail(q, &generate.Error{Code: generate.CodeInternal, Message: "the model produced logits that are not finite"})
		return
	case int(d.To) >= len(q.dep.Models) || !d.Keep && d.To == q.q.Self:
		s.log.Error("policy", "request", q.id, "deployment", q.dep.Name, "err", errBadDecision)
		s.fail(q, &generate.Error{Code: generate.CodeInternal, Message: "the routing policy failed"})
		return
	}
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
		s.handOver(q, d)
		if d.Keep && q.collab != nil && d.To != q.q.Owner {
			s.sendProgress(q) // the entry hears of the token, and of the third model
		}
		return
	}
	if q.collab != nil {
		s.sendProgress(q)
	}
}
