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

// LongestWait returns the bound on a ready sequence's wait for others.
func (s *Scheduler) LongestWait() time.Duration {
	switch {
	case s.delay.fixed > 0:
		return s.delay.fixed
	case s.delay.own == 0:
		return firstWait
	}
	return max(2*s.delay.own, s.delay.peer)
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

// held reports whether the ready sequences must wait for others, and until when.
func (s *Scheduler) held(now time.Duration) (wake time.Duration, held bool) {
	if len(s.ready) >= s.Threshold() {
		return 0, false
	}
	oldest := s.ready[0].since
	for _, q := range s.ready {
		if q.continues {
			return 0, false
		}
		oldest = min(oldest, q.since)
	}
	wake = oldest + s.LongestWait()
	return wake, now < wake
}
