package scheduler

import "time"

// firstWait is the automatic longest wait until a step has been measured.
const firstWait = 50 * time.Millisecond

// delay holds what delayed batching needs to know (paper, section 3.1).
type delay struct {
	threshold int
	// live is the number of live requests of the routing group; 0 if never told.
	live  int
	fixed time.Duration // Config.LongestWait
	// own and peer are smoothed step times, 0 until known. own leaves out steps
	// with prefill chunks, whose time says nothing about a decode.
	own, peer time.Duration
}

// ObserveGroup tells the number of live requests of the routing group and the
// threshold to use with it. A value below 1 leaves the old one in place.
// Until the first call, the live requests are those running or parked here.
func (s *Scheduler) ObserveGroup(live, threshold int) {
	if live > 0 {
		s.delay.live = live
	}
	if threshold > 0 {
		s.delay.threshold = threshold
	}
}

// ObservePeerStep tells the step time of the peer model, for the automatic
// longest wait.
func (s *Scheduler) ObservePeerStep(d time.Duration) {
	if d > 0 {
		s.delay.peer = d
	}
}

// SetLongestWait replaces Config.LongestWait; 0 means automatic.
func (s *Scheduler) SetLongestWait(d time.Duration) { s.delay.fixed = max(d, 0) }

// Threshold returns the fewest ready sequences that start a step now: the
// configured threshold, clamped to the live requests (more can never be ready,
// so the tail of a run would hang) and to a full step.
func (s *Scheduler) Threshold() int {
	live := s.delay.live
	if live == 0 {
		live = s.admitted()
	}
	return max(1, min(s.delay.threshold, live, s.cfg.MaxRows, s.cfg.MaxSlots))
}

// LongestWait returns the bound on a ready sequence's wait for others. By itself
// it is what both models of a pair use: two steps of the faster one, or one of the
// slower one if that is longer.
func (s *Scheduler) LongestWait() time.Duration {
	own, peer := s.delay.own, s.delay.peer
	switch {
	case s.delay.fixed > 0:
		return s.delay.fixed
	case own == 0:
		return firstWait
	case peer == 0:
		return 2 * own
	}
	return max(2*min(own, peer), own, peer)
}

// StepTime returns the smoothed time of a step without prefill, 0 until one was measured.
func (s *Scheduler) StepTime() time.Duration { return s.delay.own }

// measure takes the time of one step without prefill.
func (d *delay) measure(took time.Duration) {
	switch {
	case took <= 0:
	case d.own == 0:
		d.own = took
	default:
		d.own += (took - d.own) / 8
	}
}

// Waiting is what waits for the next step.
type Waiting struct {
	// Ready sequences could be in a step that starts now; Deferred ones are kept
	// out by Defer.
	Ready, Deferred int
	// Since is when the ready sequence that has waited longest became ready.
	Since time.Duration
	// Urgent says that one of them is in the middle of its prefill: it has waited
	// for others before and does not again.
	Urgent bool
}

// Waiting returns what waits now.
func (s *Scheduler) Waiting() Waiting {
	w := Waiting{Ready: len(s.ready), Deferred: len(s.deferred)}
	for i, q := range s.ready {
		if i == 0 || q.since < w.Since {
			w.Since = q.since
		}
		w.Urgent = w.Urgent || q.continues
	}
	return w
}

// held reports whether the ready sequences must wait for others, and until when.
func (s *Scheduler) held(now time.Duration) (wake time.Duration, held bool) {
	if len(s.ready) >= s.Threshold() {
		return 0, false
	}
	w := s.Waiting()
	if w.Urgent {
		return 0, false
	}
	wake = w.Since + s.LongestWait()
	return wake, now < wake
}

// Defer keeps a sequence out of steps, whatever its state, until Undefer. It is
// for schedules that go round by round. Errors: ErrUnknown.
func (s *Scheduler) Defer(id ID) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if !q.deferred {
		q.deferred = true
		s.deferred = append(s.deferred, q)
		s.settle(q, 0)
	}
	return nil
}

// Undefer lets all deferred sequences take part again.
func (s *Scheduler) Undefer(now time.Duration) {
	for i, q := range s.deferred {
		s.deferred[i] = nil
		q.deferred = false
		s.settle(q, now)
	}
	s.deferred = s.deferred[:0]
}
