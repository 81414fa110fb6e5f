package scheduler

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/step"
)

// maxPassed is how many batches may pass over a ready sequence before it goes
// ahead of all others.
const maxPassed = 4

// Truncation sets the number of valid positions of a slot.
type Truncation struct {
	Slot   step.Slot
	Length int
}

// Plan is one step to run. The caller closes the slots of Preempted, applies
// Truncations (Executor.Truncate), launches Batch, waits, and calls Complete, in
// the order of the plans.
type Plan struct {
	// Preempted are the sequences that lost slot and pages since the last plan or
	// TakePreempted.
	Preempted []Preemption
	// Truncations are the slots whose valid length has shrunk since the last plan.
	Truncations []Truncation
	Batch       step.Batch
	IDs         []ID   // aligned with Batch.Rows
	Kinds       []Kind // aligned with Batch.Rows

	seqs []*sequence // aligned with Batch.Rows
	done bool
	live []bool // aligned with Batch.Rows, once done
	// ahead is the number of rows that go on from the step before, the first ones.
	ahead int
}

// budget is what is left of a step while it is filled.
type budget struct {
	rows, tokens int
	prefill      int // tokens of prefill chunks
	chunk        int // tokens of one chunk
}

// Next plans the next step. Without a plan, ok says whether sequences are ready
// and wait for others until wake. If ok is false, nothing can start before the
// next event: nothing is ready, or the pages needed are still in quarantine
// behind a step in flight.
//
// A plan counts as launched. Its sequences are not ready until Complete, and
// their row tokens alias the known ids, which do not change meanwhile.
func (s *Scheduler) Next(now time.Duration) (p *Plan, wake time.Duration, ok bool) {
	if len(s.ready) == 0 {
		return nil, 0, false
	}
	if wake, held := s.held(now); held {
		return nil, wake, true
	}
	p = s.Start()
	return p, 0, p != nil
}

// Start plans the next step without asking whether it should wait. It returns
// nil if nothing can start before the next event, as in Next.
func (s *Scheduler) Start() *Plan {
	if len(s.ready) == 0 {
		return nil
	}
	p := s.newPlan(min(len(s.ready), s.cfg.MaxRows))
	s.fill(p, s.budget())
	return s.planned(p)
}

func (s *Scheduler) newPlan(rows int) *Plan {
	return &Plan{
		Batch: step.Batch{Step: s.step + 1, Rows: make([]step.Row, 0, rows)},
		IDs:   make([]ID, 0, rows),
		Kinds: make([]Kind, 0, rows),
		seqs:  make([]*sequence, 0, rows),
	}
}

// planned counts a plan as launched. It returns nil for one without rows.
func (s *Scheduler) planned(p *Plan) *Plan {
	if len(p.IDs) == 0 {
		return nil
	}
	s.step = p.Batch.Step
	s.pool.Launched(s.step)
	s.counts.InFlight += len(p.IDs) - p.ahead // the others are in flight already
	s.ready = slices.DeleteFunc(s.ready, func(q *sequence) bool {
		if q.flight != 0 {
			q.ready, q.continues, q.passed = false, false, 0
			return true
		}
		q.passed++
		return false
	})
	for _, q := range s.truncated {
		p.Truncations = append(p.Truncations, Truncation{q.slot, q.cut})
		q.shorter = false
	}
	s.truncated = s.truncated[:0]
	p.Preempted = s.TakePreempted()
	return p
}

// budget is that of an empty step.
func (s *Scheduler) budget() budget {
	return budget{rows: s.cfg.MaxRows, tokens: s.cfg.MaxTokens, prefill: s.cfg.MaxTokens, chunk: s.cfg.ChunkTokens}
}

// fill adds rows of ready sequences: first those passed over too often, then class
// by class, in the order of becoming ready.
func (s *Scheduler) fill(p *Plan, left budget) {
	if len(p.IDs) > 0 {
		left.prefill = s.cfg.ChunkTokens
	}
	for _, q := range s.ready {
		if s.kind(q) != Prefill {
			left.prefill = s.cfg.ChunkTokens
			break
		}
	}
	// A row may preempt sequences further on, which leave s.ready.
	s.turn = append(s.turn[:0], s.ready...)
	defer clear(s.turn)
	for _, q := range s.turn {
		if q.passed >= maxPassed {
			s.add(p, q, &left)
		}
	}
	for _, kind := range [...]Kind{Decode, Extend, Prefill} {
		for _, q := range s.turn {
			if left.rows == 0 || left.tokens == 0 {
				return
			}
			if s.kind(q) == kind {
				s.add(p, q, &left)
			}
		}
	}
}

// kind says what the sequence's next row does. A suffix longer than a chunk is
// chunked like a prefill; every other row fits into an empty step.
func (s *Scheduler) kind(q *sequence) Kind {
	n := q.uncached()
	switch {
	case q.first || n > s.cfg.ChunkTokens:
		return Prefill
	case n > 1:
		return Extend
	}
	return Decode
}

// add puts the sequence into the plan, if budget and pages permit. One that is
// in the plan already, or not ready any more, is ignored.
func (s *Scheduler) add(p *Plan, q *sequence, left *budget) {
	if q.flight != 0 || !q.ready {
		return
	}
	kind, n := s.kind(q), q.uncached()
	if kind == Prefill {
		n = min(n, left.chunk, left.prefill, left.tokens)
	}
	if n == 0 || n > left.tokens || left.rows == 0 {
		return
	}
	if !s.secure(q, q.cached+n) {
		return
	}
	entries, err := q.table.Grow(q.cached+n, s.entries[:0])
	s.entries = entries
	if err != nil {
		return // in quarantine until a step in flight completes
	}
	end := q.cached + n
	row := step.Row{Slot: q.slot, Start: int32(q.cached), Tokens: q.ids[q.cached:end:end], Logprobs: -1}
	if q.unsent > 0 {
		row.Prefix = q.ids[:q.cached:q.cached]
		for i, page := range q.table.Pages()[:q.unsent] {
			p.Batch.Patches = append(p.Batch.Patches, step.PagePatch{Slot: q.slot, Index: int32(i), Page: page})
		}
		q.unsent = 0
	}
	for _, e := range entries {
		p.Batch.Patches = append(p.Batch.Patches, step.PagePatch{Slot: q.slot, Index: e.Index, Page: e.Page})
	}
	if end == len(q.ids) {
		row.Sample = 1
		row.Want, row.TopK, row.Net, row.Logprobs = q.want, q.topK, q.net, q.logprobs
	}
	p.add(q, kind, row)
	q.flight, q.fed = p.Batch.Step, n
	left.rows--
	left.tokens -= n
	if kind == Prefill {
		left.prefill -= n
	}
}

// add appends the row of a sequence.
func (p *Plan) add(q *sequence, kind Kind, row step.Row) {
	p.Batch.Rows = append(p.Batch.Rows, row)
	p.IDs = append(p.IDs, q.id)
	p.Kinds = append(p.Kinds, kind)
	p.seqs = append(p.seqs, q)
}

// Complete says that the plan's step is done and took that long: its tokens are
// cached, pages freed before are out of quarantine. Sequences in the middle of
// a prefill are ready for their next chunk; the others wait for Commit, Park or
// Finish, those in a step ahead (Ahead) in flight. Sequences finished meanwhile, or
// taken out of the step, are ignored, as is a second call.
func (s *Scheduler) Complete(now time.Duration, p *Plan, took time.Duration) {
	if p == nil || p.done {
		return
	}
	p.done = true
	s.pool.Completed(p.Batch.Step)
	if !slices.Contains(p.Kinds, Prefill) {
		s.delay.measure(took)
	}
	p.live = make([]bool, len(p.seqs))
	for i, q := range p.seqs {
		if q.flight != p.Batch.Step {
			continue // finished or taken out while in flight
		}
		p.live[i] = true
		q.cached += q.fed
		s.counts.Waits++
		q.lived.Steps++
		if !q.follows {
			wait := max(now-took-q.since, 0)
			s.counts.BatchWait += wait
			q.lived.BatchWait += wait
		}
		q.flight, q.follows, q.blind = 0, false, false
		if q.next != 0 {
			q.promote()
		} else {
			s.counts.InFlight--
		}
		q.continues = q.uncached() > 0
		if q.first && !q.continues {
			q.first = false
			s.publish(q)
		}
		s.settle(q, now)
	}
}
