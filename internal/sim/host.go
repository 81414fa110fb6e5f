package sim

import (
	"bytes"
	"fmt"
	"math"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// host is one model's replica in virtual time.
type host struct {
	s      *Simulation
	model  int
	name   string
	sub    *subservice.Subservice
	driver *subservice.Driver

	// dirty says that Begin must be called once no step runs.
	dirty bool
	// wake is when Begin must be called if nothing happens before, if waiting.
	wake    time.Duration
	waiting bool
	// running says that a step runs; left is the time it still takes at full speed,
	// in nanoseconds, and recorded is its entry in the result.
	running  bool
	left     float64
	recorded int
}

func (h *host) poke() { h.dirty = true }

// begin lets the replica take in what has arrived and start a step.
func (h *host) begin() error {
	h.dirty, h.waiting = false, false
	plan, wake, again, err := h.driver.Begin()
	if err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	if plan == nil {
		h.wake, h.waiting = wake, again
		if again && wake <= h.s.now {
			h.wake = h.s.now + 1 // always forward
		}
		return nil
	}
	m := &h.s.cfg.Models[h.model]
	prompts := 0
	for _, k := range plan.Kinds {
		if k == scheduler.Prefill {
			prompts++
		}
	}
	took := float64(m.time(prompts, len(plan.IDs)-prompts))
	if m.Jitter > 0 {
		took *= 1 + m.Jitter*(2*h.s.rng.Float64()-1)
	}
	h.running, h.left = true, max(1, math.Round(took))
	r := &h.s.result.Models[h.model]
	r.Steps++
	r.Rows += len(plan.IDs)
	if h.s.cfg.Record {
		h.record(plan)
	}
	return nil
}

// record notes a step that starts.
func (h *host) record(plan *scheduler.Plan) {
	st := Step{Model: policies.ModelID(h.model), Start: h.s.now}
	for _, id := range plan.IDs {
		st.Rows = append(st.Rows, Row{Request: int(id) - 1, Position: h.driver.Position(uint64(id))})
	}
	h.recorded = len(h.s.result.Steps)
	h.s.result.Steps = append(h.s.result.Steps, st)
}

// speed is how fast the step runs now.
func (h *host) speed() float64 {
	slowed := h.s.cfg.Models[h.model].Slowed
	if slowed == 0 || slowed == 1 {
		return 1
	}
	for _, x := range h.s.hosts {
		if x != h && x.running {
			return 1 / slowed
		}
	}
	return 1
}

// nextEvent is when something happens here if nothing happens elsewhere.
func (h *host) nextEvent() (time.Duration, bool) {
	switch {
	case h.running:
		return h.s.now + time.Duration(math.Ceil(h.left/h.speed())), true
	case h.waiting:
		return h.wake, true
	}
	return 0, false
}

// work lets a step run for some time.
func (h *host) work(took time.Duration) {
	if h.running {
		h.left -= float64(took) * h.speed()
		h.s.result.Models[h.model].Busy += took
	}
}

// happen ends a step whose time is over, or a wait.
func (h *host) happen() error {
	switch {
	case h.running && h.left < 0.5:
		h.running = false
		h.dirty = true
		if h.s.cfg.Record {
			h.s.result.Steps[h.recorded].End = h.s.now
		}
		if err := h.driver.End(); err != nil {
			return fmt.Errorf("%s: %w", h.name, err)
		}
	case h.waiting && h.wake <= h.s.now:
		h.dirty = true
	}
	if h.s.cfg.Checked {
		return h.driver.Check()
	}
	return nil
}

// connect links every pair of replicas.
func (s *Simulation) connect() {
	for _, a := range s.hosts {
		for _, b := range s.hosts {
			if a != b {
				l := &link{s: s, to: b, back: &link{s: s, to: a}}
				a.driver.Connect(l)
				a.dirty = true
			}
		}
	}
}

// link is the way from one replica to another. What is sent goes through the
// codec, as on a real one.
type link struct {
	s     *Simulation
	to    *host
	back  *link // names the sender for the receiver
	bytes []byte
}

// Send implements subservice.Link.
func (l *link) Send(f *handoff.Frame) error {
	var err error
	if l.bytes, err = handoff.Append(l.bytes[:0], f); err != nil {
		return err
	}
	if l.s.cfg.Transit == 0 {
		return l.deliver(l.bytes)
	}
	b := bytes.Clone(l.bytes)
	l.s.at(l.s.now+l.s.cfg.Transit, func() { l.s.fail(l.deliver(b)) })
	return nil
}

func (l *link) deliver(b []byte) error {
	l.to.dirty = true
	return l.to.driver.Deliver(l.back, b)
}

// Peer implements subservice.Link.
func (l *link) Peer() (replica, model string) {
	return l.to.name, l.to.name
}
