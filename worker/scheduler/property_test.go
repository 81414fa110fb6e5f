package scheduler

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// mirror is the slow second opinion about one sequence.
type mirror struct {
	state  State
	ids    []int32
	cached int
	maxLen int
	flight int // tokens in flight
	slot   step.Slot
	pages  map[int32]int32 // index → page, as the patches told
	ran    bool
}

// machine drives a scheduler with random events and compares it with mirrors.
type machine struct {
	t     *rapid.T
	cfg   Config
	now   time.Duration
	s     *Scheduler
	pool  *kv.Pool
	seqs  map[ID]*mirror
	plans []*Plan
	// owners of the rows of each plan in flight; those finished meanwhile too.
	owners [][]*mirror
	// busy has the pages that a step in flight may still touch, by step.
	busy  map[int32]uint64
	slots []step.Slot
	next  int32 // fresh token id
}

func (m *machine) fresh(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		m.next++
		out[i] = m.next
	}
	return out
}

func (m *machine) expect(err error, ok bool, what string) bool {
	if (err == nil) != ok {
		m.t.Fatalf("%s: error %v, want ok %t", what, err, ok)
	}
	return ok
}

func (m *machine) bind(id ID) {
	q := m.seqs[id]
	q.slot = m.slots[len(m.slots)-1]
	m.slots = m.slots[:len(m.slots)-1]
	m.expect(m.s.Bind(id, q.slot), true, "bind")
}

func (m *machine) submit(id ID, parked bool) {
	n := rapid.IntRange(1, 12).Draw(m.t, "tokens")
	maxLen := n + rapid.IntRange(0, 12).Draw(m.t, "more")
	q := &mirror{state: Queued, ids: m.fresh(n), maxLen: maxLen, pages: map[int32]int32{}}
	spec := Spec{Tokens: q.ids, MaxLen: maxLen}
	if !parked {
		ok := m.seqs[id] == nil && m.pool.PagesFor(maxLen) <= m.pool.Total() && m.s.Counts().Queued < m.cfg.MaxQueue
		if m.expect(m.s.Submit(m.now, id, spec), ok, "submit") {
			m.seqs[id] = q
		}
		return
	}
	if m.seqs[id] != nil {
		m.expect(m.s.SubmitParked(m.now, id, spec), false, "submit parked")
		return
	}
	if m.s.SubmitParked(m.now, id, spec) == nil {
		q.state = Parked
		m.seqs[id] = q
		m.bind(id)
	}
}

func (m *machine) admit() {
	for _, id := range m.s.Admit(m.now) {
		m.seqs[id].state = Running
		m.bind(id)
	}
}

func (m *machine) plan() {
	p, wake, ok := m.s.Next(m.now)
	if p == nil {
		if ok && wake <= m.now {
			m.t.Fatalf("wake %v at %v", wake, m.now)
		}
		return
	}
	m.plans = append(m.plans, p)
	var owners []*mirror
	for _, c := range p.Truncations {
		for _, q := range m.seqs {
			if q.state != Queued && q.slot == c.Slot && q.cached != c.Length {
				m.t.Fatalf("truncation of slot %d to %d, cached %d", c.Slot, c.Length, q.cached)
			}
		}
	}
	for _, c := range p.Batch.Patches {
		m.patch(c)
	}
	if len(p.IDs) > m.cfg.MaxRows || p.Batch.Tokens() > m.cfg.MaxTokens {
		m.t.Fatalf("%d rows, %d tokens", len(p.IDs), p.Batch.Tokens())
	}
	for i, id := range p.IDs {
		q, r := m.seqs[id], p.Batch.Rows[i]
		if q == nil || q.state != Running || q.flight != 0 || r.Slot != q.slot || int(r.Start) != q.cached || len(r.Tokens) == 0 {
			m.t.Fatalf("row %+v of %+v", r, q)
		}
		end := q.cached + len(r.Tokens)
		if end > len(q.ids) || !slices.Equal(r.Tokens, q.ids[q.cached:end]) || (r.Sample == 1) != (end == len(q.ids)) {
			m.t.Fatalf("row %+v of %+v", r, q)
		}
		if p.Kinds[i] == Prefill && len(r.Tokens) > m.cfg.ChunkTokens {
			m.t.Fatalf("chunk of %d", len(r.Tokens))
		}
		for k := range int32(m.pool.PagesFor(end)) {
			page, ok := q.pages[k]
			if !ok {
				m.t.Fatalf("sequence %d: no page %d for %d positions", id, k, end)
			}
			m.busy[page] = p.Batch.Step
		}
		q.flight, q.ran = len(r.Tokens), true
		owners = append(owners, q)
	}
	m.owners = append(m.owners, owners)
}

// patch enters a page, which must be free of other sequences and of steps in
// flight that ran for others.
func (m *machine) patch(c step.PagePatch) {
	var target *mirror
	for _, q := range m.seqs {
		if q.state == Queued {
			continue
		}
		if q.slot == c.Slot {
			target = q
		}
		for _, page := range q.pages {
			if page == c.Page {
				m.t.Fatalf("page %d is in use", c.Page)
			}
		}
	}
	if _, busy := m.busy[c.Page]; busy || target == nil {
		m.t.Fatalf("patch %+v, target %v, busy %t", c, target, busy)
	}
	if int(c.Index) != len(target.pages) {
		m.t.Fatalf("patch %+v leaves a gap after %d pages", c, len(target.pages))
	}
	target.pages[c.Index] = c.Page
}

func (m *machine) complete() {
	if len(m.plans) == 0 {
		return
	}
	p := m.plans[0]
	m.s.Complete(m.now, p, ms)
	for page, last := range m.busy {
		if last <= p.Batch.Step {
			delete(m.busy, page)
		}
	}
	for _, q := range m.owners[0] {
		if q.state == Running {
			q.cached += q.flight
			q.flight = 0
		}
	}
	m.plans, m.owners = m.plans[1:], m.owners[1:]
}

func (m *machine) shorten(q *mirror, n int) {
	q.cached = min(q.cached, n)
	for k := range q.pages {
		if int(k) >= m.pool.PagesFor(q.cached) {
			delete(q.pages, k)
		}
	}
}

func (m *machine) commit(id ID) {
	q, add := m.seqs[id], m.fresh(rapid.IntRange(0, 2).Draw(m.t, "commit"))
	ok := q != nil && q.state != Queued && q.flight == 0 && len(add) > 0 && len(q.ids)+len(add) <= q.maxLen
	if m.expect(m.s.Commit(m.now, id, add...), ok, "commit") {
		q.ids = append(q.ids, add...)
	}
}

func (m *machine) giveBack(id ID) {
	q, add := m.seqs[id], m.fresh(max(0, rapid.IntRange(-2, 9).Draw(m.t, "append")))
	ok := q != nil && q.state == Parked && len(q.ids)+len(add) > 0 && len(q.ids)+len(add) <= q.maxLen
	if m.expect(m.s.Append(m.now, id, add), ok, "append") {
		q.ids = append(q.ids, add...)
		q.state = Running
		m.shorten(q, len(q.ids)-1)
	}
}

func (m *machine) park(id ID) {
	q := m.seqs[id]
	if m.expect(m.s.Park(id), q != nil && q.state == Running && q.flight == 0, "park") {
		q.state = Parked
	}
}

func (m *machine) truncate(id ID) {
	q, n := m.seqs[id], rapid.IntRange(0, 14).Draw(m.t, "length")
	ok := q != nil && q.flight == 0 && n <= len(q.ids) && (n > 0 || q.state != Queued)
	if m.expect(m.s.Truncate(id, n), ok, "truncate") {
		q.ids = slices.Clone(q.ids[:n])
		m.shorten(q, n)
	}
}

func (m *machine) finish(id ID) {
	q := m.seqs[id]
	slot, bound, err := m.s.Finish(id)
	if !m.expect(err, q != nil, "finish") {
		return
	}
	if bound != (q.state != Queued) || bound && slot != q.slot {
		m.t.Fatalf("finish gave slot %d, %t for %+v", slot, bound, q)
	}
	if bound {
		m.slots = append(m.slots, slot)
	}
	q.state = Gone
	delete(m.seqs, id)
}

func (m *machine) check() {
	if err := m.s.Check(); err != nil {
		m.t.Fatal(err)
	}
	for id, q := range m.seqs {
		if m.s.State(id) != q.state || m.s.Cached(id) != q.cached || !slices.Equal(m.s.Tokens(id), q.ids) {
			m.t.Fatalf("sequence %d is %s with %d cached and %v, want %+v", id, m.s.State(id), m.s.Cached(id), m.s.Tokens(id), q)
		}
	}
}

// drain runs until everything that was submitted has run, then ends everything.
func (m *machine) drain() {
	for m.s.Counts().InFlight > 0 || len(m.plans) > 0 {
		m.complete()
	}
	for id, q := range m.seqs {
		if q.state == Parked {
			m.finish(id)
		}
	}
	for rounds := 0; len(m.seqs) > 0; rounds++ {
		if rounds > 1000 {
			m.t.Fatalf("never scheduled: %+v", m.s.Counts())
		}
		m.now += time.Second
		m.admit()
		m.plan()
		m.complete()
		m.check()
		for id, q := range m.seqs {
			if q.state == Running && q.cached == len(q.ids) {
				m.finish(id)
			}
		}
	}
	m.check()
	if c := m.pool.Counts(); c.Free != c.Total || c.Reserved != 0 || c.Quarantined != 0 {
		m.t.Fatalf("pages left over: %+v", c)
	}
}

// Events of the random test. The generator prefers small numbers.
const (
	planEvent = iota
	completeEvent
	submitEvent
	commitEvent
	appendEvent
	parkEvent
	finishEvent
	truncateEvent
	parkedEvent
	admitEvent
	events
)

// pick returns a sequence for the event: mostly one for which it is allowed, so
// that long lives are common, sometimes any.
func (m *machine) pick(event int) ID {
	var fit []ID
	if rapid.IntRange(0, 3).Draw(m.t, "any") > 0 {
		for id := ID(1); id <= 6; id++ {
			q := m.seqs[id]
			ok := false
			switch event {
			case submitEvent, parkedEvent:
				ok = q == nil
			case commitEvent, parkEvent, truncateEvent:
				ok = q != nil && q.state == Running && q.flight == 0 && q.ran
			case appendEvent:
				ok = q != nil && q.state == Parked
			case finishEvent:
				ok = q != nil && q.flight > 0
			}
			if ok {
				fit = append(fit, id)
			}
		}
	}
	if len(fit) == 0 {
		return ID(rapid.IntRange(1, 6).Draw(m.t, "id"))
	}
	return rapid.SampledFrom(fit).Draw(m.t, "fit")
}

func TestRandomEvents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := Config{
			MaxRows:     rapid.IntRange(1, 4).Draw(t, "rows"),
			MaxTokens:   rapid.IntRange(1, 12).Draw(t, "tokens"),
			MaxSlots:    rapid.IntRange(1, 5).Draw(t, "slots"),
			MaxQueue:    rapid.IntRange(1, 4).Draw(t, "queue"),
			Threshold:   rapid.IntRange(0, 3).Draw(t, "threshold"),
			LongestWait: time.Duration(rapid.IntRange(0, 20).Draw(t, "wait")) * ms,
		}
		cfg.ChunkTokens = rapid.IntRange(1, cfg.MaxTokens).Draw(t, "chunk")
		size := rapid.IntRange(1, 5).Draw(t, "size")
		pool, err := kv.NewPool(rapid.IntRange(4, 32).Draw(t, "pages"), size)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(cfg, pool)
		if err != nil {
			t.Fatal(err)
		}
		m := &machine{t: t, cfg: cfg, s: s, pool: pool, seqs: map[ID]*mirror{}, busy: map[int32]uint64{}}
		for i := range cfg.MaxSlots {
			m.slots = append(m.slots, step.Slot(i))
		}
		depth := rapid.IntRange(1, 2).Draw(t, "depth")
		// Long runs are the rule, as small numbers are preferred.
		for range 150 - rapid.IntRange(0, 149).Draw(t, "fewer events") {
			event := rapid.IntRange(0, events-1).Draw(t, "event")
			id := m.pick(event)
			m.now += time.Duration(rapid.IntRange(0, 10).Draw(t, "later")) * ms
			switch event {
			case submitEvent:
				m.submit(id, false)
				m.admit()
			case parkedEvent:
				m.submit(id, true)
			case commitEvent:
				m.commit(id)
			case appendEvent:
				m.giveBack(id)
			case parkEvent:
				m.park(id)
			case truncateEvent:
				m.truncate(id)
			case finishEvent:
				m.finish(id)
			case admitEvent:
				m.admit()
			case completeEvent:
				m.complete()
			case planEvent:
				if len(m.plans) < depth {
					m.plan()
				}
			}
			m.check()
		}
		m.drain()
	})
}
