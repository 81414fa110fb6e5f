package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// sequence is the token list of one request on this sub-service.
type sequence struct {
	id    ID
	state State
	// ids are the known ids. A step in flight reads a part of them, so they are
	// only appended to, and never while in flight.
	ids    []int32
	cached int
	maxLen int

	table *kv.Table // nil while queued, and after preemption
	slot  step.Slot
	bound bool

	age int64
	// keys are those of the leading full pages of ids, as far as they were needed.
	keys  []kv.Key
	salt  [32]byte
	cache bool
	// unsent is the number of leading pages that came from the cache and that the
	// executor has not been told of. While it is not 0 the slot has no valid position.
	unsent int
	hit    int // positions found in the cache at the first admission
	// claimed says that the sequence has been admitted at least once.
	claimed bool

	want           step.Feature
	topK, logprobs int32
	net            uint8

	flight uint64 // step in flight, 0 if none
	fed    int    // tokens of the step in flight
	// next is the step after flight if that was launched ahead, with one token, else 0.
	next uint64
	// follows says that the step in flight was launched ahead; blind, that the token
	// which it feeds is not among ids yet.
	follows, blind bool
	// first says that the first pass over the context is not complete.
	first bool
	// continues says that the sequence is ready because its chunk has completed;
	// it has waited for others already and does not wait again.
	continues bool
	// shorter says that the executor must be told of a shorter length, cut.
	shorter bool
	cut     int

	ready bool
	// deferred says that the sequence is kept out of steps until Undefer.
	deferred bool
	order    uint64        // position among the ready sequences
	since    time.Duration // when it became ready (or was submitted)
	passed   int           // batches that it was ready for and not part of
	parked   uint64        // position among the parked sequences
	lived    Lived
}

// Lived is what a sequence has been through.
type Lived struct {
	// Queued is the time until it was admitted, each time that it was. BatchWait is the
	// time from being ready to the start of its steps, Steps their number.
	Queued, BatchWait time.Duration
	Steps             int
}

// older is the order of requests, the same on every model.
func older(a, b *sequence) bool { return a.age < b.age || a.age == b.age && a.id < b.id }

func (q *sequence) uncached() int { return len(q.ids) - q.cached }

// settle makes the sequence ready, or not ready, as its state says.
func (s *Scheduler) settle(q *sequence, now time.Duration) {
	ready := q.state == Running && q.bound && q.flight == 0 && q.uncached() > 0 && !q.deferred
	switch {
	case ready && !q.ready:
		q.ready, q.since = true, now
		if !q.continues {
			s.order++
			q.order = s.order
		}
		i, _ := s.readyIndex(q)
		s.ready = slices.Insert(s.ready, i, q)
	case !ready && q.ready:
		if i, ok := s.readyIndex(q); ok {
			s.ready = slices.Delete(s.ready, i, i+1)
		}
		q.ready, q.continues, q.passed = false, false, 0
		if s.starved == q {
			s.starved = nil
		}
	}
}

func (s *Scheduler) readyIndex(q *sequence) (int, bool) {
	return slices.BinarySearchFunc(s.ready, q.order, func(r *sequence, order uint64) int {
		return cmp.Compare(r.order, order)
	})
}

// extendIDs appends tokens at the known end.
func (q *sequence) extendIDs(tokens []int32) error {
	if len(tokens) > q.maxLen-len(q.ids) {
		return fmt.Errorf("%w: %d ids and %d more, limit %d", ErrTooLong, len(q.ids), len(tokens), q.maxLen)
	}
	q.ids = append(q.ids, tokens...)
	return nil
}

// Commit appends ids at the known end. A running sequence becomes ready again;
// a parked one stays parked (tokens that the owner of the turn reports). One that is
// in a step ahead stays in it if its token is the only one that is committed.
// Errors, after which nothing has changed: ErrUnknown, ErrState, ErrInFlight,
// ErrNoTokens, ErrTooLong.
func (s *Scheduler) Commit(now time.Duration, id ID, tokens ...int32) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	switch {
	case q.state == Queued:
		return fmt.Errorf("%w: commit to %d, which is queued", ErrState, id)
	case q.flight != 0 && !q.blind:
		return fmt.Errorf("%w: commit to %d", ErrInFlight, id)
	case len(tokens) == 0:
		return fmt.Errorf("%w: commit to %d", ErrNoTokens, id)
	}
	if err := q.extendIDs(tokens); err != nil {
		return fmt.Errorf("commit to %d: %w", id, err)
	}
	if q.blind && len(tokens) > 1 {
		s.void(q)
	}
	q.blind = false
	s.settle(q, now)
	return nil
}

// Append takes the turn back: a parked sequence is running again with the
// tokens that it has not seen, and ready. The suffix may be empty. If nothing is
// uncached then, the last id is fed once more. A sequence that was preempted
// while parked, or submitted away, goes to the queue instead and is rebuilt after
// Admit has returned it.
// Errors, after which nothing has changed: ErrUnknown, ErrState, ErrNoTokens
// (no id at all), ErrTooLong.
func (s *Scheduler) Append(now time.Duration, id ID, tokens []int32) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if q.state != Parked {
		return fmt.Errorf("%w: append to %d, which is %s", ErrState, id, q.state)
	}
	if len(q.ids)+len(tokens) == 0 {
		return fmt.Errorf("%w: append to %d", ErrNoTokens, id)
	}
	if err := q.extendIDs(tokens); err != nil {
		return fmt.Errorf("append to %d: %w", id, err)
	}
	s.counts.Parked--
	q.since = now
	if q.table == nil {
		s.counts.Away--
		s.enqueue(q)
		return nil
	}
	if q.uncached() == 0 {
		s.shorten(q, len(q.ids)-1)
	}
	q.state = Running
	s.counts.Running++
	s.settle(q, now)
	return nil
}

// Park gives the turn away. The sequence keeps slot and pages until it returns,
// or until others need them. It is taken out of a step ahead.
// Errors: ErrUnknown, ErrState, ErrInFlight.
func (s *Scheduler) Park(id ID) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if q.state != Running {
		return fmt.Errorf("%w: park %d, which is %s", ErrState, id, q.state)
	}
	if q.flight != 0 && !q.follows {
		return fmt.Errorf("%w: park %d", ErrInFlight, id)
	}
	if q.flight != 0 {
		s.void(q)
	}
	q.state = Parked
	s.noteParked(q)
	s.counts.Running--
	s.settle(q, 0)
	return nil
}

// Truncate forgets the ids from length on, and with them their keys and values;
// all of a page if it is shared or cached. Pages stay promised if nobody else has
// them. The executor hears of it through Plan.Truncations.
// Errors: ErrUnknown, ErrInFlight, ErrBadLength.
func (s *Scheduler) Truncate(id ID, length int) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if q.flight != 0 {
		return fmt.Errorf("%w: truncate %d", ErrInFlight, id)
	}
	if length < 0 || length > len(q.ids) || length == 0 && q.state == Queued {
		return fmt.Errorf("%w: truncate %d from %d to %d", ErrBadLength, id, len(q.ids), length)
	}
	q.ids = q.ids[:length]
	q.keys = q.keys[:min(len(q.keys), length/s.pool.PageSize())]
	s.shorten(q, length)
	s.settle(q, 0)
	return nil
}

// shorten lowers the cached length to n, or to the start of n's page if that
// page must not be written, drops the pages past it and notes that the executor
// must be told.
func (s *Scheduler) shorten(q *sequence, n int) {
	if n >= q.cached {
		return
	}
	if q.unsent > 0 {
		n -= n % s.pool.PageSize() // the first row starts at a page
	}
	q.cached = q.table.Truncate(n)
	q.first = q.first || q.cached == 0
	if q.unsent > 0 {
		q.unsent = min(q.unsent, len(q.table.Pages()))
		return // the executor knows of no position yet
	}
	if q.bound && !q.shorter {
		q.shorter = true
		s.truncated = append(s.truncated, q)
	}
	q.cut = q.cached
}

// Finish ends a sequence in any state. Its full pages stay in the prefix cache
// if Spec.Cache says so; the others are freed, through quarantine while a step is
// in flight. If bound, the caller closes the executor slot at
// once, before it launches another step. The id may be used again.
func (s *Scheduler) Finish(id ID) (slot step.Slot, bound bool, err error) {
	q, err := s.find(id)
	if err != nil {
		return 0, false, err
	}
	switch q.state {
	case Queued:
		if i := slices.Index(s.queue, q); i >= 0 {
			s.queue = slices.Delete(s.queue, i, i+1)
		}
	case Running:
		s.counts.Running--
	case Parked:
		s.counts.Parked--
		if q.table == nil {
			s.counts.Away--
		}
	}
	q.state = Gone
	s.settle(q, 0)
	if q.flight != 0 {
		q.flight, q.next = 0, 0
		s.counts.InFlight--
	}
	if q.deferred {
		s.deferred = slices.DeleteFunc(s.deferred, func(d *sequence) bool { return d == q })
	}
	bound = q.bound
	s.giveBack(q)
	delete(s.seqs, id)
	return q.slot, bound, nil
}
