package subservice

import (
	"context"
	"errors"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
)

// Driver runs a replica step by step for a caller that owns time: a simulation.
// It does what Run and ServeHTTP do, without a goroutine, so one caller can drive
// many replicas. A replica is either run or driven.
type Driver struct {
	s *Subservice
	// next is the step that Begin has launched ahead.
	next  *flight
	asked []*submission // not answered yet
	// came are the frames that wait for Begin, spare those to decode into.
	came, spare []*arrival
}

// Drive makes the caller the owner of the replica's decode loop. wake is called
// when another member of the coordinator wants Begin to be called.
func (s *Subservice) Drive(wake func()) *Driver {
	s.join(wake)
	return &Driver{s: s}
}

// Stop ends the loop; what Run does at its end.
func (d *Driver) Stop() {
	_ = d.s.stop(nil)
	d.answer()
}

// answer tells the refusals of requests that were submitted.
func (d *Driver) answer() {
	for _, sub := range d.asked {
		if refusal := <-sub.reply; refusal != nil {
			sub.q.entry.stream.sink(generate.Event{Kind: generate.EventError, Epoch: sub.q.epoch, Err: refusal})
		}
	}
	d.asked = d.asked[:0]
}

// Connect tells of a link, Disconnect that what was in flight on it is lost.
func (d *Driver) Connect(l Link)    { d.s.in.post(&linkChange{link: l, up: true}) }
func (d *Driver) Disconnect(l Link) { d.s.in.post(&linkChange{link: l, err: errCut}) }

var errCut = errors.New("cut by the simulation")

// Deliver hands over a frame that came by the link, encoded. The bytes are not kept.
func (d *Driver) Deliver(l Link, b []byte) error {
	m := new(arrival)
	if n := len(d.spare); n > 0 {
		m, d.spare = d.spare[n-1], d.spare[:n-1]
	}
	m.link = l
	if err := handoff.Decode(b, &m.frame); err != nil {
		return err
	}
	d.came = append(d.came, m)
	d.s.in.post(m)
	return nil
}

// Submit posts a request; the next Begin admits it. Its events go to sink, which
// is called from Begin and End and must not keep them. The error is a refusal.
func (d *Driver) Submit(req *generate.Request, sink func(generate.Event)) error {
	sub, refusal := d.s.prepare(req)
	if refusal != nil {
		return refusal
	}
	sub.q.entry.stream.sink = sink
	d.s.in.post(sub)
	d.asked = append(d.asked, sub)
	return nil
}

// Cancel does what a gateway that goes away does.
func (d *Driver) Cancel(request uint64, epoch uint32) { d.s.in.post(&cancellation{request, epoch}) }

// Begin applies what has arrived and starts a step if one is due, or takes up the
// one that was launched ahead: its plan.
// Without a plan, again says that Begin must be called at wake if nothing happens
// before. It must not be called while a step runs.
func (d *Driver) Begin() (plan *scheduler.Plan, wake time.Duration, again bool, err error) {
	plan, wake, again, err = d.s.begin()
	d.answer()
	d.spare = append(d.spare, d.came...) // they have been applied
	d.came = d.came[:0]
	if plan != nil && err == nil {
		d.s.flying, err = d.s.launch(plan)
	}
	if d.s.flying == nil || err != nil {
		return nil, wake, again, err
	}
	d.next, err = d.s.lookAhead()
	return d.s.flying.plan, 0, false, err
}

// End applies the results of the step that Begin has returned. The clock says when
// it has ended.
func (d *Driver) End() error { return d.s.land(context.Background(), d.next) }

// Stats returns a snapshot as of now.
func (d *Driver) Stats() Stats {
	d.s.publish()
	return d.s.Stats()
}

// Position is the number of tokens that a request's answer has here.
func (d *Driver) Position(request uint64) int {
	if q := d.s.seqs[request]; q != nil {
		return len(q.q.Out)
	}
	return 0
}

// Check verifies the invariants of the scheduler and its pages.
func (d *Driver) Check() error { return d.s.sched.Check() }
