package scheduler

import (
	"errors"
	"fmt"
	"slices"
)

// ErrBroken says that a check found a broken invariant: a bug, never bad input.
var ErrBroken = errors.New("scheduler: invariant broken")

// Check verifies the invariants of the scheduler and its pool. Its cost is
// linear in pages and sequences: for tests and diagnosis.
func (s *Scheduler) Check() error {
	if err := s.pool.Check(); err != nil {
		return err
	}
	has := &s.counts
	want := Counts{Preemptions: has.Preemptions, Admissions: has.Admissions, QueueWait: has.QueueWait, Waits: has.Waits, BatchWait: has.BatchWait}
	promised := 0
	owner := make(map[int32]*sequence)
	for id, q := range s.seqs {
		if err := s.checkSequence(id, q); err != nil {
			return err
		}
		switch q.state {
		case Queued:
			want.Queued++
		case Running:
			want.Running++
		case Parked:
			want.Parked++
			if q.table == nil {
				want.Away++
			}
		}
		if q.ready {
			want.Ready++
		}
		if q.flight != 0 {
			want.InFlight++
		}
		if q.table == nil {
			continue
		}
		promised += q.table.Promised()
		for i, page := range q.table.Pages() {
			other := owner[page]
			if other != nil && !s.mayShare(q, other, i) {
				return fmt.Errorf("%w: page %d belongs to %d and %d", ErrBroken, page, other.id, id)
			}
			owner[page] = q
		}
	}
	if got := s.Counts(); got != want {
		return fmt.Errorf("%w: counts %+v, want %+v", ErrBroken, got, want)
	}
	if s.admitted() > s.cfg.MaxSlots {
		return fmt.Errorf("%w: %d admitted, %d slots", ErrBroken, s.admitted(), s.cfg.MaxSlots)
	}
	for i, q := range s.ready {
		if !q.ready || s.seqs[q.id] != q || i > 0 && s.ready[i-1].order >= q.order {
			return fmt.Errorf("%w: ready list at %d", ErrBroken, i)
		}
	}
	for i := 1; i < len(s.queue); i++ {
		if !older(s.queue[i-1], s.queue[i]) {
			return fmt.Errorf("%w: queue at %d", ErrBroken, i)
		}
	}
	if s.starved != nil && s.seqs[s.starved.id] != s.starved {
		return fmt.Errorf("%w: sequence %d is gone and waits for pages", ErrBroken, s.starved.id)
	}
	c := s.pool.Counts()
	if c.Held != len(owner) || c.Reserved != promised {
		return fmt.Errorf("%w: pool holds %d and promises %d, tables %d and %d", ErrBroken, c.Held, c.Reserved, len(owner), promised)
	}
	if len(s.seqs) == 0 && c.Free+c.Cached+c.Quarantined != c.Total {
		return fmt.Errorf("%w: idle with %d free and %d cached of %d pages", ErrBroken, c.Free, c.Cached, c.Total)
	}
	return nil
}

// mayShare reports whether page i of both tables can be the same one: all ids up
// to its end are equal, valid in both, and of one tenant.
func (s *Scheduler) mayShare(a, b *sequence, i int) bool {
	end := (i + 1) * s.pool.PageSize()
	return a.salt == b.salt && end <= min(a.cached, b.cached) && slices.Equal(a.ids[:end], b.ids[:end])
}

func (s *Scheduler) checkSequence(id ID, q *sequence) error {
	if q.id != id || q.cached < 0 || q.cached > len(q.ids) || len(q.ids) > q.maxLen {
		return fmt.Errorf("%w: sequence %d has id %d, %d cached, %d known, limit %d",
			ErrBroken, id, q.id, q.cached, len(q.ids), q.maxLen)
	}
	if q.table == nil && (q.state == Running || q.bound || q.cached > 0 || q.unsent > 0) ||
		q.table != nil && q.state == Queued || q.state == Gone || q.bound && s.slots[q.slot] != q {
		return fmt.Errorf("%w: sequence %d is %s", ErrBroken, id, q.state)
	}
	if ready := q.state == Running && q.bound && q.flight == 0 && q.uncached() > 0 && !q.deferred; ready != q.ready {
		return fmt.Errorf("%w: sequence %d ready %t, want %t", ErrBroken, id, q.ready, ready)
	}
	if q.next != 0 && q.flight == 0 || q.blind && !q.follows || q.follows && q.flight == 0 {
		return fmt.Errorf("%w: sequence %d in flight %d, next %d, follows %t, blind %t", ErrBroken, id, q.flight, q.next, q.follows, q.blind)
	}
	if q.flight != 0 && q.state != Running {
		return fmt.Errorf("%w: sequence %d in flight and %s", ErrBroken, id, q.state)
	}
	if q.table != nil {
		covered := q.cached
		if q.flight != 0 {
			covered += q.fed
		}
		if q.next != 0 {
			covered++
		}
		if got, want := len(q.table.Pages()), s.pool.PagesFor(covered); got != want {
			return fmt.Errorf("%w: sequence %d has %d pages for %d positions", ErrBroken, id, got, covered)
		}
		got, want := len(q.table.Pages())+q.table.Promised(), s.pool.PagesFor(q.maxLen)
		if got > want || got < want && s.cfg.Reserve == ReserveFull && !q.cache {
			return fmt.Errorf("%w: sequence %d holds and is promised %d pages, want %d", ErrBroken, id, got, want)
		}
	}
	return nil
}
