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
	bound  bool
	salt   byte
	spec   Spec
}

// content is what a page holds: all ids up to its last valid position.
type content struct {
	salt byte
	ids  []int32
	step uint64 // that wrote it last
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
	holds map[int32]content
	done  uint64 // last step completed
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

// prompt returns ids of which many share a prefix.
func (m *machine) prompt(n int) []int32 {
	return ids(ID(rapid.IntRange(1, 2).Draw(m.t, "template")), 0, n)
}

func (m *machine) bind(id ID) {
	q := m.seqs[id]
	q.slot, q.bound = m.slots[len(m.slots)-1], true
	m.slots = m.slots[:len(m.slots)-1]
	m.expect(m.s.Bind(id, q.slot), true, "bind")
	q.cached = m.s.Cached(id) // what the prefix cache had
	if q.cached > max(0, len(q.ids)-1) || q.cached%m.pool.PageSize() != 0 || q.cached > 0 && !q.spec.Cache {
		m.t.Fatalf("sequence %d starts with %d cached of %d", id, q.cached, len(q.ids))
	}
}

func (m *machine) preempted(all []Preemption) {
	for _, p := range all {
		q := m.seqs[p.ID]
		if q == nil || q.flight > 0 || !q.bound || q.slot != p.Slot || p.Parked != (q.state == Parked) || p.Cached != q.cached {
			m.t.Fatalf("preemption %+v of %+v", p, q)
		}
		m.slots = append(m.slots, q.slot)
		q.bound, q.cached, q.pages = false, 0, map[int32]int32{}
		if q.state == Running {
			q.state = Queued
		}
	}
}

func (m *machine) submit(id ID, event int) {
	n := rapid.IntRange(1, 12).Draw(m.t, "tokens")
	maxLen := n + rapid.IntRange(0, 12).Draw(m.t, "more")
	salt := byte(rapid.IntRange(0, 3).Draw(m.t, "salt") / 3)
	q := &mirror{state: Queued, ids: m.prompt(n), maxLen: maxLen, pages: map[int32]int32{}, salt: salt}
	q.spec = Spec{
		Tokens: q.ids, MaxLen: maxLen, Salt: [32]byte{salt}, Cache: rapid.IntRange(0, 3).Draw(m.t, "cache") > 0,
		Visit: rapid.Bool().Draw(m.t, "visit"), Age: int64(rapid.IntRange(1, 9).Draw(m.t, "age")),
	}
	fits := m.seqs[id] == nil && m.pool.PagesFor(maxLen) <= m.pool.Total()
	switch event {
	case submitEvent:
		fits = fits && (q.spec.Visit || m.s.Counts().Queued < m.cfg.MaxQueue)
		if m.expect(m.s.Submit(m.now, id, q.spec), fits, "submit") {
			m.seqs[id] = q
		}
	case awayEvent:
		if m.expect(m.s.SubmitAway(m.now, id, q.spec), fits, "submit away") {
			q.state = Parked
			m.seqs[id] = q
		}
	case parkedEvent:
		if err := m.s.SubmitParked(m.now, id, q.spec); err == nil {
			m.expect(nil, fits, "submit parked")
			q.state = Parked
			m.seqs[id] = q
			m.bind(id)
		}
	}
}

func (m *machine) admit() {
	ids := m.s.Admit(m.now)
	m.preempted(m.s.TakePreempted())
	for _, id := range ids {
		m.seqs[id].state = Running
		m.bind(id)
	}
}

func (m *machine) plan() {
	p, wake, ok := m.s.Next(m.now)
	if p == nil {
		m.preempted(m.s.TakePreempted())
		if ok && wake <= m.now {
			m.t.Fatalf("wake %v at %v", wake, m.now)
		}
		return
	}
	m.preempted(p.Preempted)
	m.plans = append(m.plans, p)
	var owners []*mirror
	for _, c := range p.Truncations {
		for _, q := range m.seqs {
			if q.bound && q.slot == c.Slot && q.cached != c.Length {
				m.t.Fatalf("truncation of slot %d to %d, cached %d", c.Slot, c.Length, q.cached)
			}
		}
	}
	starts := map[step.Slot]int{}
	for _, r := range p.Batch.Rows {
		starts[r.Slot] = int(r.Start)
	}
	adopts := map[step.Slot]bool{}
	for _, c := range p.Batch.Patches {
		m.patch(c, starts[c.Slot])
		adopts[c.Slot] = adopts[c.Slot] || c.Index == 0 && starts[c.Slot] > 0
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
		if adopts[r.Slot] && !slices.Equal(r.Prefix, q.ids[:q.cached]) || !adopts[r.Slot] && r.Prefix != nil {
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
			m.read(q, int(k), page)
			if upTo := min(end, (int(k)+1)*m.pool.PageSize()); upTo > q.cached {
				m.write(page, content{q.salt, slices.Clone(q.ids[:upTo]), p.Batch.Step})
			}
		}
		q.flight, q.ran = len(r.Tokens), true
		owners = append(owners, q)
	}
	m.owners = append(m.owners, owners)
}

// patch enters a page. It must be free of other sequences and of steps in flight
// that ran for others, unless it is only read.
func (m *machine) patch(c step.PagePatch, start int) {
	var target *mirror
	adopted := (int(c.Index)+1)*m.pool.PageSize() <= start
	for _, q := range m.seqs {
		if q.bound && q.slot == c.Slot {
			target = q
		}
		for _, page := range q.pages {
			if page == c.Page && !adopted {
				m.t.Fatalf("page %d is in use", c.Page)
			}
		}
	}
	_, busy := m.busy[c.Page]
	if busy && !adopted || target == nil || adopted && m.holds[c.Page].step > m.done {
		m.t.Fatalf("patch %+v, target %v, busy %t", c, target, busy)
	}
	if int(c.Index) != len(target.pages) {
		m.t.Fatalf("patch %+v leaves a gap after %d pages", c, len(target.pages))
	}
	target.pages[c.Index] = c.Page
}

// read checks that page k of q holds the valid positions that it should.
func (m *machine) read(q *mirror, k int, page int32) {
	from, upTo := k*m.pool.PageSize(), min(q.cached, (k+1)*m.pool.PageSize())
	got := m.holds[page]
	if upTo > from && (got.salt != q.salt || len(got.ids) < upTo || !slices.Equal(got.ids[:upTo], q.ids[:upTo])) {
		m.t.Fatalf("page %d holds %v of tenant %d, want %v of %d", page, got.ids, got.salt, q.ids[:upTo], q.salt)
	}
}

func (m *machine) write(page int32, c content) {
	tables := 0
	for _, q := range m.seqs {
		for _, other := range q.pages {
			if other == page {
				tables++
			}
		}
	}
	if tables != 1 {
		m.t.Fatalf("page %d is written and belongs to %d tables", page, tables)
	}
	m.holds[page] = c
}

func (m *machine) complete() {
	if len(m.plans) == 0 {
		return
	}
	p := m.plans[0]
	m.s.Complete(m.now, p, ms)
	m.done = p.Batch.Step
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

// shorten follows a truncation to n. The scheduler may drop one page more, if
// that page must not be written.
func (m *machine) shorten(id ID, q *mirror, n int) {
	got := m.s.Cached(id)
	if n = min(q.cached, n); got != n && (!q.spec.Cache || got != n-n%m.pool.PageSize()) {
		m.t.Fatalf("sequence %d has %d cached, want %d", id, got, n)
	}
	q.cached = got
	for k := range q.pages {
		if int(k) >= m.pool.PagesFor(q.cached) {
			delete(q.pages, k)
		}
	}
}

func (m *machine) commit(id ID) {
	q, add := m.seqs[id], m.fresh(rapid.IntRange(0, 2).Draw(m.t, "commit"))
	if q != nil && len(add) > 0 && rapid.Bool().Draw(m.t, "known") {
		add = ids(1, len(q.ids), len(add)) // as others may have committed
	}
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
		if q.state = Running; !q.bound {
			q.state = Queued
		}
		m.shorten(id, q, len(q.ids)-1)
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
		m.shorten(id, q, n)
	}
}

func (m *machine) finish(id ID) {
	q := m.seqs[id]
	slot, bound, err := m.s.Finish(id)
	if !m.expect(err, q != nil, "finish") {
		return
	}
	if bound != q.bound || bound && slot != q.slot {
		m.t.Fatalf("finish gave slot %d, %t for %+v", slot, bound, q)
	}
	if bound {
		m.slots = append(m.slots, slot)
	}
	q.state, q.bound = Gone, false
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
	if c := m.pool.Counts(); c.Free+c.Cached != c.Total {
		m.t.Fatalf("pages left over: %+v", c)
	}
	m.pool.DropCache()
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
	awayEvent
	dropEvent
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
			case submitEvent, parkedEvent, awayEvent:
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
			Reserve:     rapid.SampledFrom([]Reserve{ReserveLazy, ReserveFull}).Draw(t, "reserve"),
			AheadPages:  rapid.IntRange(0, 2).Draw(t, "ahead"),
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
		m := &machine{t: t, cfg: cfg, s: s, pool: pool, seqs: map[ID]*mirror{}, busy: map[int32]uint64{}, holds: map[int32]content{}}
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
				m.submit(id, event)
				m.admit()
			case parkedEvent, awayEvent:
				m.submit(id, event)
			case dropEvent:
				if rapid.IntRange(0, 5).Draw(t, "drop") == 0 {
					m.pool.DropCache()
				}
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
