package scheduler

import (
	"slices"

	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Preemption says that a sequence gave its slot and pages back.
type Preemption struct {
	ID ID
	// Slot is the one to close, at once and before anything else is opened or launched.
	Slot step.Slot
	// Parked says that the turn is elsewhere: the sequence is queued by Append. If
	// not, it is queued already.
	Parked bool
	// Cached is the number of positions whose keys and values were given up.
	Cached int
}

// TakePreempted returns the sequences preempted since the last plan or call, for
// the caller to close their slots. Call it after Admit and before opening slots;
// Next reports in its plan.
func (s *Scheduler) TakePreempted() []Preemption {
	taken := s.preempted
	s.preempted = nil
	return taken
}

// secure promises the pages of the first n positions to a sequence that is about
// to run, from others if need be. It reports success. While an older sequence
// waits for pages, only those promised before may be used.
func (s *Scheduler) secure(q *sequence, n int) bool {
	need := s.pool.PagesFor(n) - len(q.table.Pages()) - q.table.Promised()
	if need > 0 {
		if s.starved != nil && s.starved != q && older(s.starved, q) {
			return false
		}
		s.reclaim(q, need)
		if q.table.Reserve(n) != nil {
			s.starve(q)
			return false
		}
	}
	if s.starved == q {
		s.starved = nil
	}
	return true
}

// starve notes that a sequence waits for pages.
func (s *Scheduler) starve(q *sequence) {
	if s.starved == nil || older(q, s.starved) {
		s.starved = q
	}
}

// reclaim preempts others until the given number of pages is available to a
// running sequence, now or when the steps in flight have completed.
func (s *Scheduler) reclaim(q *sequence, need int) {
	if s.pool.Coming() >= need {
		return
	}
	oldest := s.oldest()
	if q != oldest && s.pool.Coming()+s.gain(q, oldest) < need {
		return // in vain: keep what others have
	}
	for s.pool.Coming() < need {
		v := s.victim(q, oldest)
		if v == nil {
			return
		}
		s.preempt(v)
	}
}

// makeRoom preempts others until the queued sequence has a slot and its pages
// are available, now or when the steps in flight have completed. It reports
// whether there is a slot.
func (s *Scheduler) makeRoom(q *sequence) bool {
	fits := func() bool {
		return s.admitted() < s.cfg.MaxSlots && s.pool.Coming() >= s.pool.Need(s.prefixKeys(q), s.reserve(q))
	}
	if fits() {
		return true
	}
	oldest := s.oldest()
	if q != oldest && s.pool.Coming()+s.gain(q, oldest) < s.pool.Need(s.prefixKeys(q), s.reserve(q)) {
		return false
	}
	for !fits() {
		v := s.victim(q, oldest)
		if v == nil {
			return false
		}
		s.preempt(v)
	}
	return true
}

// oldest returns the oldest sequence here, in whatever state.
func (s *Scheduler) oldest() *sequence {
	var oldest *sequence
	for _, q := range s.seqs {
		if oldest == nil || older(q, oldest) {
			oldest = q
		}
	}
	return oldest
}

// spares reports whether v can give its pages to q. It must not be the oldest
// sequence, in flight, or waiting for the caller's decision. A running q may take
// from all parked sequences and from younger running ones; a queued q from younger
// parked ones, and from younger running ones only if it is the oldest.
func spares(v, q, oldest *sequence) bool {
	if v == q || v == oldest || !v.bound || v.flight != 0 {
		return false
	}
	younger := older(q, v)
	if v.state == Parked {
		return younger || q.state == Running
	}
	return v.ready && younger && (q.state == Running || q == oldest)
}

// victim returns who gives its pages to q next: the parked sequence that has
// waited longest, then the youngest running one; nil if nobody can.
func (s *Scheduler) victim(q, oldest *sequence) *sequence {
	var parked, running *sequence
	for _, v := range s.seqs {
		switch {
		case !spares(v, q, oldest):
		case v.state == Parked:
			if parked == nil || v.parked < parked.parked {
				parked = v
			}
		case running == nil || older(running, v):
			running = v
		}
	}
	if parked != nil {
		return parked
	}
	return running
}

// gain returns the pages that q gets for sure if all who can give theirs do.
func (s *Scheduler) gain(q, oldest *sequence) int {
	n := 0
	for _, v := range s.seqs {
		if spares(v, q, oldest) {
			n += v.table.Gain()
		}
	}
	return n
}

// preempt takes slot and pages from a sequence. It keeps its ids and is rebuilt
// from them. Its full pages go to the prefix cache, so that those that are not
// needed after all make the rebuild short.
func (s *Scheduler) preempt(v *sequence) {
	s.counts.Preemptions++
	s.preempted = append(s.preempted, Preemption{ID: v.id, Slot: v.slot, Parked: v.state == Parked, Cached: v.cached})
	if v.state == Parked {
		s.counts.Away++
	} else {
		s.counts.Running--
		s.enqueue(v)
		s.settle(v, 0)
	}
	s.giveBack(v)
	v.first = true
}

// giveBack takes all that a sequence holds: pages, slot, and what is to be told
// to the executor about it.
func (s *Scheduler) giveBack(q *sequence) {
	if q.table != nil {
		q.table.Retire(s.keysTo(q, q.cached))
	}
	if q.bound {
		delete(s.slots, q.slot)
	}
	if q.shorter {
		s.truncated = slices.DeleteFunc(s.truncated, func(r *sequence) bool { return r == q })
	}
	if s.starved == q {
		s.starved = nil
	}
	q.table, q.cached, q.unsent, q.bound, q.shorter = nil, 0, 0, false, false
}
