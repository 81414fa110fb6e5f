package scheduler

import (
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Ahead plans the step after cur before the results of cur are known. cur is the
// only step in flight, and the step before it was completed and decided about.
//
// Sequences that cur samples from, and of which goesOn says that they may go on,
// take part with the token that cur samples (step.Row.Continue): only the executor
// knows it yet. Ready sequences take part as in any step. A sequence goes on only
// with pages that nobody else has to give.
//
// It returns nil if a step ahead is of no use now: less than Threshold sequences
// would be in it, or one of cur is in the middle of its prefill, whose next chunk
// would have to wait for one step more, or a sequence waits for pages. While no
// sequence of cur counts any more, what is ready alone makes the step.
//
// The plan counts as launched. When cur completes, its rows are in flight; Commit
// of one token lets a sequence stay in it, and anything else (Commit of more, Park,
// Finish) takes it out: its row is void.
func (s *Scheduler) Ahead(cur *Plan, goesOn func(ID) bool) *Plan {
	if cur.done || s.starved != nil {
		return nil
	}
	s.going = s.going[:0]
	for i, q := range cur.seqs {
		switch {
		case q.flight != cur.Batch.Step:
		case cur.Batch.Rows[i].Sample&1 == 0:
			return nil
		case !q.deferred && q.cached+q.fed < q.maxLen && goesOn(q.id):
			s.going = append(s.going, q)
		}
	}
	if len(s.going) == 0 && cur.counts() || len(s.going)+len(s.ready) < s.Threshold() {
		return nil
	}
	p := s.newPlan(min(len(s.going)+len(s.ready), s.cfg.MaxRows))
	left := s.budget()
	for _, q := range s.going {
		s.goOn(p, q, &left)
	}
	if len(p.IDs) == 0 && cur.counts() {
		return nil
	}
	p.ahead = len(p.IDs)
	s.fill(p, left)
	return s.planned(p)
}

// counts reports whether a row of a step in flight is not void.
func (p *Plan) counts() bool {
	for _, q := range p.seqs {
		if q.flight == p.Batch.Step {
			return true
		}
	}
	return false
}

// goOn puts a sequence that is in flight into the step after, if budget and pages
// permit.
func (s *Scheduler) goOn(p *Plan, q *sequence, left *budget) {
	start := q.cached + q.fed
	if left.rows == 0 || left.tokens == 0 || q.table.Reserve(start+1) != nil {
		return
	}
	entries, err := q.table.Grow(start+1, s.entries[:0])
	s.entries = entries
	if err != nil {
		return // in quarantine
	}
	for _, e := range entries {
		p.Batch.Patches = append(p.Batch.Patches, step.PagePatch{Slot: q.slot, Index: e.Index, Page: e.Page})
	}
	p.add(q, Decode, step.Row{
		Slot: q.slot, Start: int32(start), Tokens: s.unknown[:], Continue: true,
		Sample: 1, Want: q.want, TopK: q.topK, Logprobs: q.logprobs,
	})
	q.next = p.Batch.Step
	left.rows--
	left.tokens--
}

// promote lets the step that was launched ahead be the one in flight.
func (q *sequence) promote() {
	q.flight, q.fed, q.next = q.next, 1, 0
	q.follows, q.blind = true, true
}

// void takes a sequence out of the step ahead that it is in. The position that was
// written there is not valid.
func (s *Scheduler) void(q *sequence) {
	q.flight, q.fed, q.follows, q.blind = 0, 0, false, false
	s.counts.InFlight--
	q.cached = q.table.Truncate(q.cached) // a page that begins there
	q.cut = q.cached
	if !q.shorter {
		q.shorter = true
		s.truncated = append(s.truncated, q)
	}
}

// Live says whether row i of a completed plan counts: its sequence is the one that
// was planned and has not been taken out since.
func (p *Plan) Live(i int) bool { return p.live[i] }

// AheadRows is the number of rows that go on from the step before, the first of
// the plan; Void is how many of them did not count. It is known once the plan has
// completed.
func (p *Plan) AheadRows() (rows, void int) {
	for _, live := range p.live[:p.ahead] {
		if !live {
			void++
		}
	}
	return p.ahead, void
}
