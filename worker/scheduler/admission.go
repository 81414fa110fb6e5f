package scheduler

import (
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Submit queues a sequence. It needs at least one token.
// Errors: ErrBadSpec, ErrNeverFits, ErrDuplicate, ErrQueueFull.
func (s *Scheduler) Submit(now time.Duration, id ID, spec Spec) error {
	if len(spec.Tokens) == 0 {
		return fmt.Errorf("%w: no tokens", ErrBadSpec)
	}
	if err := s.checkSpec(id, spec); err != nil {
		return err
	}
	if len(s.queue) >= s.cfg.MaxQueue && !spec.Visit {
		return fmt.Errorf("%w: %d waiting", ErrQueueFull, len(s.queue))
	}
	s.enqueue(s.newSequence(now, id, spec))
	return nil
}

// SubmitParked admits a sequence at once, before the queue, and parks it: the
// turn is elsewhere. The caller opens a slot and calls Bind. The token list may
// be empty. It takes slot and pages from nobody.
// Errors: ErrBadSpec, ErrNeverFits, ErrDuplicate, ErrNoRoom.
func (s *Scheduler) SubmitParked(now time.Duration, id ID, spec Spec) error {
	if err := s.checkSpec(id, spec); err != nil {
		return err
	}
	if s.admitted() >= s.cfg.MaxSlots {
		return fmt.Errorf("%w: %d slots in use", ErrNoRoom, s.admitted())
	}
	q := s.newSequence(now, id, spec)
	if err := s.claim(q); err != nil {
		delete(s.seqs, id)
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	q.state = Parked
	s.noteParked(q)
	return nil
}

// SubmitAway registers a sequence whose turn is elsewhere and that holds
// nothing here until Append: then it is queued and admitted like a new one. The
// token list may be empty. Errors: ErrBadSpec, ErrNeverFits, ErrDuplicate.
func (s *Scheduler) SubmitAway(now time.Duration, id ID, spec Spec) error {
	if err := s.checkSpec(id, spec); err != nil {
		return err
	}
	q := s.newSequence(now, id, spec)
	q.state = Parked
	s.noteParked(q)
	s.counts.Away++
	return nil
}

func (s *Scheduler) checkSpec(id ID, spec Spec) error {
	if len(spec.Tokens) > spec.MaxLen || spec.MaxLen < 1 {
		return fmt.Errorf("%w: %d tokens, MaxLen %d", ErrBadSpec, len(spec.Tokens), spec.MaxLen)
	}
	if need := s.pool.PagesFor(spec.MaxLen); need > s.pool.Total() {
		return fmt.Errorf("%w: %d pages, the pool has %d", ErrNeverFits, need, s.pool.Total())
	}
	if s.seqs[id] != nil {
		return fmt.Errorf("%w: %d", ErrDuplicate, id)
	}
	return nil
}

func (s *Scheduler) newSequence(now time.Duration, id ID, spec Spec) *sequence {
	q := &sequence{
		id:       id,
		ids:      slices.Clone(spec.Tokens),
		maxLen:   spec.MaxLen,
		age:      spec.Age,
		cache:    spec.Cache,
		salt:     spec.Salt,
		want:     spec.Want,
		topK:     spec.TopK,
		net:      spec.Net,
		logprobs: spec.Logprobs,
		first:    true,
		since:    now,
	}
	if q.age == 0 {
		s.arrivals++
		q.age = s.arrivals
	}
	s.seqs[id] = q
	return q
}

// enqueue puts a sequence into the queue, by age.
func (s *Scheduler) enqueue(q *sequence) {
	q.state = Queued
	i, _ := slices.BinarySearchFunc(s.queue, q, func(a, b *sequence) int {
		if older(a, b) {
			return -1
		}
		return 1
	})
	s.queue = slices.Insert(s.queue, i, q)
}

// noteParked counts a sequence that has just been parked.
func (s *Scheduler) noteParked(q *sequence) {
	s.counts.Parked++
	s.parks++
	q.parked = s.parks
}

// Admit moves queued sequences to running, oldest first, while slots and pages
// permit. One that does not fit holds back those behind it, so that a long
// sequence is not overtaken for ever, after it has taken what younger ones can
// spare. Preempted sequences are admitted again in the same way. The caller closes
// the slots of TakePreempted, then opens a slot for each id and calls Bind.
func (s *Scheduler) Admit(now time.Duration) []ID {
	var ids []ID
	for len(s.queue) > 0 {
		q := s.queue[0]
		if s.starved != nil && older(s.starved, q) || !s.makeRoom(q) {
			break
		}
		if err := s.claim(q); err != nil {
			s.starve(q) // the pages are in quarantine until a step in flight completes
			break
		}
		if s.starved == q {
			s.starved = nil
		}
		s.counts.Admissions++
		wait := max(now-q.since, 0)
		s.counts.QueueWait += wait
		q.lived.Queued += wait
		q.state = Running
		q.since = now
		s.counts.Running++
		s.queue[0] = nil
		s.queue = s.queue[1:]
		ids = append(ids, q.id)
	}
	return ids
}

// claim gives a sequence that holds nothing its table: the pages of its longest
// cached prefix, and promises for the rest. At least one id stays to be fed.
func (s *Scheduler) claim(q *sequence) error {
	table := kv.NewTable(s.pool)
	found, err := table.Claim(s.prefixKeys(q), s.reserve(q))
	if err != nil {
		return err
	}
	q.table, q.unsent = table, found
	q.cached = found * s.pool.PageSize()
	if !q.claimed {
		q.claimed, q.hit = true, q.cached
	}
	return nil
}

// reserve returns the number of positions to promise pages for.
func (s *Scheduler) reserve(q *sequence) int {
	if s.cfg.Reserve == ReserveFull {
		return q.maxLen
	}
	return min(q.maxLen, len(q.ids)+max(1, s.cfg.AheadPages)*s.pool.PageSize())
}

// prefixKeys returns the keys to look up: full pages that end before the last id.
func (s *Scheduler) prefixKeys(q *sequence) []kv.Key {
	return s.keysTo(q, max(0, len(q.ids)-1))
}

// keysTo returns the keys of the full pages of the first n ids, none if the
// sequence does not use the cache.
func (s *Scheduler) keysTo(q *sequence, n int) []kv.Key {
	if !q.cache {
		return nil
	}
	q.keys = s.pool.AppendKeys(q.keys, &q.salt, q.ids[:n])
	return q.keys[:n/s.pool.PageSize()]
}

// publish lets others find the pages that are full and valid.
func (s *Scheduler) publish(q *sequence) {
	if q.cache {
		q.table.Publish(s.keysTo(q, q.cached))
	}
}

// Distrust says that keys and values may be wrong (a sequence's logits were not
// finite). The prefix cache is emptied, and no sequence that is here now uses it
// any more.
func (s *Scheduler) Distrust() {
	for _, q := range s.seqs {
		q.cache = false
	}
	s.pool.DropCache()
}

// Bind tells the executor slot of an admitted sequence. A running one becomes
// ready, and counts as waiting since its admission.
// Errors: ErrUnknown, ErrState, ErrBadSlot.
func (s *Scheduler) Bind(id ID, slot step.Slot) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if q.table == nil {
		return fmt.Errorf("%w: bind %d, which is %s and not admitted", ErrState, id, q.state)
	}
	if q.bound || slot < 0 || s.slots[slot] != nil {
		return fmt.Errorf("%w: bind %d to slot %d", ErrBadSlot, id, slot)
	}
	q.slot, q.bound = slot, true
	s.slots[slot] = q
	s.settle(q, q.since)
	return nil
}
