package scheduler_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

const vocab = 50

// tb is what both testing.T and rapid.T can do.
type tb interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// request is one request of the pair of models.
type request struct {
	id     scheduler.ID
	age    int64
	entry  int // model that it is submitted to
	first  int // model that has the first turn
	prompt []int32
	answer int
	salt   byte
	cache  bool
	arrive int // round
	cancel int // round, 0 for never
	// go0 and go1 say how often a turn leaves a model: one in so many tokens.
	go0, go1 uint64

	ids   []int32
	turns int
	known [2]bool
	done  bool
	// due is the round in which the turn arrives at model to, 0 if it is not on the way.
	due, to int
}

func config(r *request, model int) executor.SeqConfig {
	return executor.SeqConfig{Sampling: sampling.Params{Seed: uint64(r.id)}, Model: uint8(model)}
}

// decide is the policy: model 0 drops the token when it gives the turn away, model
// 1 keeps it.
func (r *request) decide(model, position int) (keep, leave bool) {
	h := uint64(r.id)*1_000_003 + uint64(position)*7919 + uint64(r.turns)*104_729
	h ^= h >> 13
	if model == 0 {
		leave = h%r.go0 == 0
		return !leave, leave
	}
	return true, h%r.go1 == 0
}

// reference computes the answer without schedulers, pages or batches.
func reference(r request) []int32 {
	script := fakeexec.Hashed(vocab)
	ids, model := slices.Clone(r.prompt), r.first
	r.turns = 0
	for len(ids) < len(r.prompt)+r.answer {
		keep, leave := r.decide(model, len(ids))
		if keep {
			ids = append(ids, script(config(&r, model), ids).Token)
		}
		if leave {
			model = 1 - model
			r.turns++
		}
	}
	return ids
}

// side is one model: scheduler, pages, executor, steps in flight.
type side struct {
	model   int
	e       *fakeexec.Executor
	s       *scheduler.Scheduler
	pool    *kv.Pool
	flights []flight
}

type flight struct {
	plan   *scheduler.Plan
	ticket executor.Ticket
}

// pair is a small and a large model joined by hand-offs.
type pair struct {
	t        tb
	sides    [2]*side
	requests []*request
	byID     map[scheduler.ID]*request
	round    int
	now      time.Duration
	delay    int // rounds of a hand-off
	progress func(r *request) bool
	each     func() // called after each round, if not nil
	// ahead launches steps ahead; used and wasted are rows of such steps.
	ahead        bool
	used, wasted int
	left         int
	// oldest is the oldest live request, its work so far, and since when there was none.
	oldest *request
	work   [4]int
	since  int
}

func newPair(t tb, cfg [2]scheduler.Config, info [2]executor.Info, requests []*request, delay int) *pair {
	p := &pair{t: t, requests: requests, byID: map[scheduler.ID]*request{}, delay: delay, left: len(requests)}
	for i := range p.sides {
		e, err := fakeexec.New(fakeexec.Config{Info: info[i]})
		p.must(err)
		pool, err := kv.NewPool(info[i].Pages, info[i].PageSize)
		p.must(err)
		s, err := scheduler.New(cfg[i], pool)
		p.must(err)
		p.sides[i] = &side{model: i, e: e, s: s, pool: pool}
	}
	for _, r := range requests {
		r.ids = slices.Clone(r.prompt)
		p.byID[r.id] = r
	}
	return p
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *pair) spec(r *request) scheduler.Spec {
	return scheduler.Spec{
		Tokens: r.ids, MaxLen: len(r.prompt) + r.answer, Logprobs: -1,
		Age: r.age, Cache: r.cache, Salt: [32]byte{r.salt},
	}
}

// events applies arrivals, cancellations and hand-offs of this round.
func (p *pair) events() {
	for _, r := range p.requests {
		if r.done {
			continue
		}
		if r.arrive == p.round {
			r.known[r.entry] = true
			if r.first == r.entry {
				p.must(p.sides[r.entry].s.Submit(p.now, r.id, p.spec(r)))
			} else {
				p.must(p.sides[r.entry].s.SubmitAway(p.now, r.id, p.spec(r)))
				p.send(r, r.first)
			}
		}
		if r.cancel > 0 && r.cancel == p.round {
			p.finish(r)
			continue
		}
		if r.due > 0 && r.due <= p.round {
			r.due = 0
			p.deliver(r, p.sides[r.to])
		}
	}
}

func (p *pair) send(r *request, to int) {
	r.to, r.due = to, p.round+1+p.delay
}

// deliver gives the turn to a model: with all ids on the first visit, with what
// it has not seen later.
func (p *pair) deliver(r *request, m *side) {
	if r.known[m.model] {
		p.must(m.s.Append(p.now, r.id, r.ids[m.s.Known(r.id):]))
		return
	}
	r.known[m.model] = true
	spec := p.spec(r)
	spec.Visit = true
	p.must(m.s.Submit(p.now, r.id, spec))
}

func (p *pair) finish(r *request) {
	r.done, r.due = true, 0
	p.left--
	for i, m := range p.sides {
		if !r.known[i] {
			continue
		}
		slot, bound, err := m.s.Finish(r.id)
		p.must(err)
		if bound {
			m.e.Close(slot)
		}
	}
}

func (m *side) closeAll(preempted []scheduler.Preemption) {
	for _, v := range preempted {
		m.e.Close(v.Slot)
	}
}

// launch admits what fits and starts the next step; false if there is none.
func (p *pair) launch(m *side) bool {
	ids := m.s.Admit(p.now)
	m.closeAll(m.s.TakePreempted())
	for _, id := range ids {
		slot, err := m.e.Open(config(p.byID[id], m.model))
		p.must(err)
		p.must(m.s.Bind(id, slot))
	}
	var plan *scheduler.Plan
	if p.ahead && len(m.flights) == 1 {
		plan = m.s.Ahead(m.flights[0].plan, func(id scheduler.ID) bool {
			r := p.byID[id]
			return len(r.ids)+1 < len(r.prompt)+r.answer
		})
	}
	if plan == nil {
		plan, _, _ = m.s.Next(p.now)
	}
	if plan == nil {
		m.closeAll(m.s.TakePreempted())
		return false
	}
	m.closeAll(plan.Preempted)
	for _, c := range plan.Truncations {
		p.must(m.e.Truncate(c.Slot, c.Length))
	}
	ticket, err := m.e.Launch(&plan.Batch)
	p.must(err)
	m.flights = append(m.flights, flight{plan, ticket})
	return true
}

// wait ends the oldest step in flight and applies its results.
func (p *pair) wait(m *side) {
	f := m.flights[0]
	m.flights = m.flights[1:]
	var result step.Result
	p.must(m.e.Wait(context.Background(), f.ticket, &result))
	m.s.Complete(p.now, f.plan, time.Millisecond)
	for i := range result.Out {
		if row := int(result.Out[i].Row); f.plan.Live(row) {
			p.route(m, p.byID[f.plan.IDs[row]], &result.Out[i])
		}
	}
	rows, void := f.plan.AheadRows()
	p.used += rows - void
	p.wasted += void
}

func (p *pair) route(m *side, r *request, out *step.Out) {
	if int(out.Position) != len(r.ids) || m.s.Known(r.id) != len(r.ids) {
		p.t.Fatalf("request %d: sampled position %d, known %d, want %d", r.id, out.Position, m.s.Known(r.id), len(r.ids))
	}
	keep, leave := r.decide(m.model, len(r.ids))
	if keep {
		r.ids = append(r.ids, out.Token)
		p.must(m.s.Commit(p.now, r.id, out.Token))
		if len(r.ids) == len(r.prompt)+r.answer {
			p.finish(r)
			return
		}
	}
	peer := p.sides[1-m.model]
	if leave {
		r.turns++
		p.must(m.s.Park(r.id))
		p.send(r, peer.model)
		return
	}
	if fresh := r.ids[peer.s.Known(r.id):]; r.known[peer.model] && len(fresh) > 0 && p.progress(r) {
		p.must(peer.s.Commit(p.now, r.id, fresh...))
	}
}

// watch fails if the oldest request makes no progress for long: neither a token,
// nor a turn, nor a position cached.
func (p *pair) watch() {
	var oldest *request
	for _, r := range p.requests {
		if !r.done && r.arrive <= p.round && (oldest == nil || r.age < oldest.age || r.age == oldest.age && r.id < oldest.id) {
			oldest = r
		}
	}
	if oldest == nil {
		p.oldest = nil
		return
	}
	work := [4]int{len(oldest.ids), oldest.turns, p.sides[0].s.Cached(oldest.id), p.sides[1].s.Cached(oldest.id)}
	if oldest != p.oldest || work != p.work {
		p.oldest, p.work, p.since = oldest, work, p.round
	}
	if p.round-p.since > 20+p.delay {
		p.t.Fatalf("the oldest request %d (%s, %s) has made no progress since round %d: %v, %+v, %+v", oldest.id,
			p.sides[0].s.State(oldest.id), p.sides[1].s.State(oldest.id), p.since, work, p.sides[0].s.Counts(), p.sides[1].s.Counts())
	}
}

// serve runs all requests to their end, and checks what is left.
func (p *pair) serve(limit int, check bool) {
	for p.round = 1; p.left > 0; p.round++ {
		if p.round > limit {
			p.t.Fatalf("%d requests unfinished after %d rounds", p.left, limit)
		}
		p.now += time.Millisecond
		p.events()
		for _, m := range p.sides {
			depth := m.e.Info().Depth
			if len(m.flights) == depth {
				p.wait(m)
			}
			if !p.launch(m) && len(m.flights) > 0 {
				p.wait(m)
			}
			if check {
				p.must(m.s.Check())
			}
		}
		p.watch()
		if p.each != nil {
			p.each()
		}
	}
	for _, m := range p.sides {
		for len(m.flights) > 0 {
			p.wait(m)
		}
		p.must(m.s.Check())
		if c := m.pool.Counts(); c.Free+c.Cached != c.Total || c.Reserved != 0 {
			p.t.Fatalf("pages left over: %+v", c)
		}
		m.pool.DropCache()
		p.must(m.s.Check())
		if c := m.pool.Counts(); c.Free != c.Total {
			p.t.Fatalf("pages left over: %+v", c)
		}
		if n := m.e.Stats().OpenSlots; n != 0 {
			p.t.Fatalf("%d slots left open", n)
		}
	}
	for _, r := range p.requests {
		if want := reference(*r); r.cancel == 0 && !slices.Equal(r.ids, want) || !slices.Equal(r.ids, want[:len(r.ids)]) {
			p.t.Fatalf("request %d: got %v, want %v", r.id, r.ids, want)
		}
	}
}

// drawer chooses a number from a range; what names the choice.
type drawer func(from, to int, what string) int

func (d drawer) of(name string) drawer {
	return func(from, to int, what string) int { return d(from, to, what+" of "+name) }
}

// drawRequests makes requests of at most longest ids.
func drawRequests(all drawer, most, longest int) []*request {
	var out []*request
	for i := range all(1, most, "requests") {
		draw := all.of(fmt.Sprint("request ", i))
		n := draw(1, longest-1, "prompt")
		r := &request{
			id: scheduler.ID(i + 1), age: int64(draw(1, 6, "age")),
			entry: draw(0, 1, "entry"), first: draw(0, 1, "first"), prompt: make([]int32, n),
			answer: draw(1, longest-n, "answer"), salt: byte(draw(0, 3, "salt") / 3), cache: draw(0, 3, "cache") > 0,
			arrive: draw(1, 30, "arrive"), go0: uint64(draw(1, 9, "go 0")), go1: uint64(draw(1, 9, "go 1")),
		}
		if draw(0, 4, "cancelled") == 4 {
			r.cancel = r.arrive + draw(0, 40, "cancel")
		}
		for k := range r.prompt {
			r.prompt[k] = int32((i%2*13 + k) % vocab) // many share a prefix
		}
		out = append(out, r)
	}
	return out
}

// serveDrawn draws and serves a pair: pools down to the size of one request of
// maximal length, and down to one slot.
func serveDrawn(t tb, draw drawer, most, longest int) *pair {
	longest = draw(2, longest, "longest")
	requests := drawRequests(draw, most, longest)
	var cfg [2]scheduler.Config
	var info [2]executor.Info
	for i := range info {
		draw := draw.of(fmt.Sprint("model ", i))
		size := draw(1, 8, "page size")
		least := (longest + size - 1) / size
		info[i] = executor.Info{
			Vocab: vocab, PageSize: size, Pages: least + draw(0, 2*least, "more pages"), MaxRows: draw(1, 4, "rows"),
			MaxTokens: draw(4, 16, "tokens"), MaxSlots: draw(1, 6, "slots"), MaxContext: longest, Depth: draw(1, 2, "depth"),
			Features: step.FContinue,
		}
		cfg[i] = scheduler.Config{
			MaxRows: info[i].MaxRows, MaxTokens: info[i].MaxTokens, MaxSlots: info[i].MaxSlots, MaxQueue: len(requests),
			ChunkTokens: draw(4, info[i].MaxTokens, "chunk"), Threshold: draw(1, 3, "threshold"), LongestWait: 3 * time.Millisecond,
			Reserve: scheduler.Reserve(draw(0, 3, "reserve") / 3), AheadPages: draw(0, 2, "ahead"),
		}
	}
	p := newPair(t, cfg, info, requests, draw(0, 3, "delay"))
	p.ahead = draw(0, 1, "look ahead") == 1
	share := uint64(draw(1, 4, "progress"))
	p.progress = func(r *request) bool { return uint64(len(r.ids))%share == 0 }
	p.serve(200_000, true)
	return p
}

// Two models, random hand-offs, arrivals, cancellations and visits: every request
// finishes with the same ids as alone, and the oldest always progresses.
func TestNoDeadlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		serveDrawn(t, func(from, to int, what string) int { return rapid.IntRange(from, to).Draw(t, what) }, 8, 40)
	})
}

// The same with more requests and evenly drawn numbers, so that pages are short
// most of the time.
func TestNoDeadlockUnderPressure(t *testing.T) {
	var preemptions, hits uint64
	used, wasted := 0, 0
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			p := serveDrawn(t, func(from, to int, _ string) int { return from + rng.IntN(to-from+1) }, 24, 200)
			for _, m := range p.sides {
				preemptions += m.s.Counts().Preemptions
				hits += m.pool.Counts().Hits
			}
			used += p.used
			wasted += p.wasted
		})
	}
	if preemptions < 200 || hits < 1000 || used < 1000 || wasted < 200 {
		t.Errorf("%d preemptions, %d pages found in the cache, %d rows ahead used and %d wasted: too little to show anything", preemptions, hits, used, wasted)
	}
	t.Logf("%d preemptions, %d pages found in the cache", preemptions, hits)
}

// Issue: 200 requests of 300 tokens on a pool of 64 pages all finish, on a pair
// with 64 pages each.
func TestManyRequestsOnSmallPool(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 50
	}
	for _, reserve := range []scheduler.Reserve{scheduler.ReserveLazy, scheduler.ReserveFull} {
		for _, slots := range []int{16, 64} {
			t.Run(fmt.Sprint("reserve ", reserve, " slots ", slots), func(t *testing.T) {
				var requests []*request
				for i := range n {
					r := &request{
						id: scheduler.ID(i + 1), age: int64(i + 1), prompt: make([]int32, 40), answer: 260,
						cache: true, arrive: 1 + i/4, go0: 6, go1: 4,
					}
					for k := range r.prompt {
						r.prompt[k] = int32(k)
						if k >= 30 {
							r.prompt[k] = int32(i % 40)
						}
					}
					requests = append(requests, r)
				}
				info := executor.Info{
					Vocab: vocab, PageSize: 16, Pages: 64, MaxRows: 32, MaxTokens: 256, MaxSlots: slots, MaxContext: 300, Depth: 1,
				}
				cfg := scheduler.Config{
					MaxRows: 32, MaxTokens: 256, ChunkTokens: 128, MaxSlots: slots, MaxQueue: 200, Reserve: reserve,
				}
				p := newPair(t, [2]scheduler.Config{cfg, cfg}, [2]executor.Info{info, info}, requests, 0)
				p.progress = func(*request) bool { return true }
				p.serve(1_000_000, false)
				for _, m := range p.sides {
					c, x := m.s.Counts(), m.e.Stats()
					t.Logf("model %d: %d rounds, %d steps, %d tokens fed for %d, %d preemptions, %+v",
						m.model, p.round, x.Steps, x.Tokens, n*300, c.Preemptions, m.pool.Counts())
				}
			})
		}
	}
}

// A second turn of a conversation prefills, on both models, only what that model
// has not seen: its new tokens, and on the one that did not write the last token
// those since its last turn. The first turn went back and forth.
func TestSecondTurnPrefillsNewTokensOnly(t *testing.T) {
	const size, fresh = 8, 5
	first := &request{id: 1, age: 1, prompt: make([]int32, 40), answer: 60, cache: true, arrive: 1, go0: 6, go1: 3}
	for k := range first.prompt {
		first.prompt[k] = int32(k)
	}
	second := &request{id: 2, age: 2, answer: 1, cache: true, arrive: 500, go0: 1, go1: 1}
	second.prompt = append(reference(*first), make([]int32, fresh)...)
	other := &request{id: 3, age: 3, prompt: second.prompt, answer: 1, cache: true, salt: 1, arrive: 1000, go0: 1, go1: 1}
	info := executor.Info{
		Vocab: vocab, PageSize: size, Pages: 64, MaxRows: 4, MaxTokens: 256, MaxSlots: 4, MaxContext: 256, Depth: 1,
	}
	cfg := scheduler.Config{MaxRows: 4, MaxTokens: 256, ChunkTokens: 256, MaxSlots: 4, MaxQueue: 4}
	p := newPair(t, [2]scheduler.Config{cfg, cfg}, [2]executor.Info{info, info}, []*request{first, second, other}, 0)
	p.progress = func(*request) bool { return true }
	var seen [2]int // positions that each model has cached of the first turn
	fed := map[int][2]uint64{}
	p.each = func() {
		for i, m := range p.sides {
			seen[i] = max(seen[i], m.s.Cached(first.id))
		}
		fed[p.round] = [2]uint64{p.sides[0].e.Stats().Tokens, p.sides[1].e.Stats().Tokens}
	}
	p.serve(2000, true)
	for i := range p.sides {
		before, after, end := fed[499][i], fed[999][i], fed[p.round-1][i]
		want := len(second.prompt) - seen[i]
		if n := int(after - before); seen[i] < 60 || n > want+size || n < want-size {
			t.Errorf("model %d fed %d tokens for a second turn of %d new ones, %d not seen before", i, n, fresh, want)
		}
		if n := int(end - after); n != len(other.prompt) {
			t.Errorf("model %d fed %d tokens for another tenant's %d", i, n, len(other.prompt))
		}
	}
}
