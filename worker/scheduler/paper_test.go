package scheduler

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Section 1.3: a routed request leaves the local batch and the rest keep their
// pace; a returned one is part of the next batch.
func TestPaperSection1_3RoutedRequestLeavesTheBatch(t *testing.T) {
	b := newBench(t, testConfig(), 32, 4)
	b.start(1, 3, 20)
	b.start(2, 3, 20)
	b.must(b.s.Park(2))
	for range 3 {
		b.must(b.s.Commit(0, 1, 7))
		if p := b.step(0); !slices.Equal(p.IDs, []ID{1}) {
			t.Fatalf("batch %v", p.IDs)
		}
	}
	b.must(b.s.Commit(0, 1, 7))
	b.must(b.s.Append(0, 2, []int32{8}))
	if p := b.step(0); !slices.Equal(p.IDs, []ID{1, 2}) {
		t.Fatalf("batch %v", p.IDs)
	}
}

// Section 1.4: the return of a sequence costs an append. No page is allocated
// for its old context, none is freed, and none is patched.
func TestPaperSection1_4ReturnAllocatesNothing(t *testing.T) {
	b := newBench(t, testConfig(), 64, 4)
	const prompt = 29 // 8 pages of 4, three token slots left in the last
	b.start(1, prompt, 60)
	before := b.pool.Counts()
	b.must(b.s.Park(1))
	b.must(b.s.Append(0, 1, ids(1, prompt, 3)))
	p := b.step(0)
	after := b.pool.Counts()
	if after.Allocs != before.Allocs || after.Frees != before.Frees || len(p.Batch.Patches) != 0 {
		t.Errorf("pages before %+v, after %+v, patches %v", before, after, p.Batch.Patches)
	}
	if r := p.Batch.Rows[0]; r.Start != prompt || len(r.Tokens) != 3 || p.Kinds[0] != Extend {
		t.Errorf("%s row %+v", p.Kinds[0], r)
	}
	// A suffix that needs a new page gets that one page.
	b.must(b.s.Park(1))
	b.must(b.s.Append(0, 1, ids(1, prompt+3, 1)))
	p = b.step(0)
	if got := b.pool.Counts().Allocs - after.Allocs; got != 1 || len(p.Batch.Patches) != 1 {
		t.Errorf("%d pages allocated for one new page, patches %v", got, p.Batch.Patches)
	}
}

// The same with lazy reservation and a prefix cache: a return looks nothing up,
// whatever the cache has.
func TestPaperSection1_4ReturnLooksNothingUp(t *testing.T) {
	cfg := testConfig()
	cfg.Reserve = ReserveLazy
	b := newBench(t, cfg, 64, 4)
	const prompt = 29
	for id := ID(1); id <= 2; id++ {
		b.must(b.s.Submit(0, id, Spec{Tokens: ids(1, 0, prompt), MaxLen: 60, Cache: true}))
		b.admit(0)
		b.step(0)
	}
	if hit := b.s.PrefixHit(2); hit != 28 {
		t.Fatalf("%d positions from the cache, want 28", hit)
	}
	before := b.pool.Counts()
	b.must(b.s.Park(2))
	b.must(b.s.Append(0, 2, ids(2, prompt, 3)))
	p := b.step(0)
	if after := b.pool.Counts(); after != before || len(p.Batch.Patches) != 0 || p.Batch.Rows[0].Start != prompt {
		t.Errorf("pages before %+v, after %+v, batch %+v", before, after, p.Batch)
	}
}

// Section 1.4: the first token after a return is an extend over the uncached
// ids: the own last token and what the peer wrote. Its length is never zero.
func TestPaperSection1_4ReturnIsAnExtend(t *testing.T) {
	for _, c := range []struct {
		name      string
		kept      bool // the own last token is committed before leaving
		suffix    int
		start     int32
		tokens    int
		kind      Kind
		truncated bool
	}{
		{"dropped, one back", false, 1, 5, 1, Decode, false},
		{"kept, one back", true, 1, 5, 2, Extend, false},
		{"dropped, many back", false, 4, 5, 4, Extend, false},
		{"kept, none back", true, 0, 5, 1, Decode, false},
		{"dropped, none back", false, 0, 4, 1, Decode, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, testConfig(), 32, 4)
			b.start(1, 5, 20)
			if c.kept {
				b.must(b.s.Commit(0, 1, 77))
			}
			b.must(b.s.Park(1))
			b.must(b.s.Append(0, 1, make([]int32, c.suffix)))
			p := b.step(0)
			r := p.Batch.Rows[0]
			if r.Start != c.start || len(r.Tokens) != c.tokens || p.Kinds[0] != c.kind || len(p.Truncations) > 0 != c.truncated {
				t.Errorf("%s row %+v, truncations %v", p.Kinds[0], r, p.Truncations)
			}
			if b.s.Cached(1) != b.s.Known(1) {
				t.Errorf("cached %d, known %d", b.s.Cached(1), b.s.Known(1))
			}
		})
	}
}

// Section 3.1: a batch starts when B requests wait, not before, and takes
// everything that waits.
func TestPaperSection3_1StartsAtThreshold(t *testing.T) {
	for threshold := 1; threshold <= 4; threshold++ {
		t.Run(fmt.Sprint(threshold), func(t *testing.T) {
			cfg := testConfig()
			cfg.Threshold, cfg.LongestWait = threshold, time.Hour
			b := newBench(t, cfg, 32, 4)
			b.s.ObserveGroup(8, 0)
			for n := 1; n <= threshold; n++ {
				id := ID(n)
				b.must(b.s.Submit(0, id, Spec{Tokens: ids(id, 0, 2), MaxLen: 8}))
				b.admit(0)
				if n == threshold {
					break
				}
				if p, wake, ok := b.next(ms); p != nil || !ok || wake != time.Hour {
					t.Fatalf("%d ready: plan %v, wake %v, %t", n, p, wake, ok)
				}
			}
			// One more than needed: it is taken as well.
			b.must(b.s.Submit(0, 7, Spec{Tokens: ids(7, 0, 2), MaxLen: 8}))
			b.admit(0)
			if p, _, _ := b.next(ms); p == nil || len(p.IDs) != threshold+1 {
				t.Fatalf("plan %+v", p)
			}
		})
	}
}

// Section 3.1: liveness. A threshold above the number of live requests would
// hang the tail of a run, so it is clamped, and the longest wait ends every wait.
func TestPaperSection3_1NeverHangs(t *testing.T) {
	cfg := testConfig()
	cfg.LongestWait = 30 * ms
	b := newBench(t, cfg, 32, 4)
	// Nobody told the group's size: the sequences here count, parked ones too.
	b.start(1, 2, 20)
	b.start(2, 2, 20)
	b.s.ObserveGroup(0, 4)
	b.must(b.s.Park(2))
	b.must(b.s.Commit(100*ms, 1, 7))
	if p, wake, ok := b.next(100 * ms); p != nil || !ok || wake != 130*ms {
		t.Fatalf("plan %v, wake %v, %t", p, wake, ok)
	}
	b.must(b.finish(2))
	if p, _, _ := b.next(100 * ms); p == nil {
		t.Fatal("threshold not clamped to the only live request")
	}
	b.complete(101*ms, ms)
	// A wrong group size delays, but never beyond the longest wait.
	b.s.ObserveGroup(100, 0)
	b.must(b.s.Commit(200*ms, 1, 7))
	if p, _, _ := b.next(229 * ms); p != nil {
		t.Fatal("started early")
	}
	if p, _, _ := b.next(230 * ms); p == nil {
		t.Fatal("longest wait did not end the wait")
	}
}

// Section 1.6: three requests of five tokens with fixed routing, a step of the
// small model takes 1 and one of the large model 3.5. Finish times of the eager
// and the delayed schedule.
func TestPaperSection1_6ScheduleFinishTimes(t *testing.T) {
	routes := map[ID]string{1: "SSSSS", 2: "SLSSS", 3: "SSLSS"}
	for _, c := range []struct {
		name      string
		threshold int
		want      map[ID]time.Duration // in halves
	}{
		{"eager", 1, map[ID]time.Duration{1: 10, 2: 16, 3: 20}},
		{"delayed", 2, map[ID]time.Duration{1: 10, 2: 17, 3: 15}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := simulate(t, routes, c.threshold)
			for id, want := range c.want {
				if got[id] != want*halfUnit {
					t.Errorf("request %d finished at %v, want %v", id, got[id], want*halfUnit)
				}
			}
		})
	}
}

const halfUnit = 500 * ms

// model is a sub-service of the simulation.
type model struct {
	*bench
	took, until time.Duration
	plan        *Plan
}

// simulate runs the requests over a small and a large model and returns their
// finish times. The letter at i of a route computes token i.
func simulate(t *testing.T, routes map[ID]string, largeThreshold int) map[ID]time.Duration {
	cfg := testConfig()
	cfg.LongestWait = time.Hour
	small := &model{bench: newBench(t, cfg, 32, 4), took: 2 * halfUnit}
	cfg.Threshold = largeThreshold
	large := &model{bench: newBench(t, cfg, 32, 4), took: 7 * halfUnit}
	live := len(routes)
	finished := map[ID]time.Duration{}
	for id := ID(1); int(id) <= live; id++ {
		small.must(small.s.Submit(0, id, Spec{Tokens: ids(id, 0, 1), MaxLen: 8}))
	}
	for now := time.Duration(0); live > 0; now += halfUnit {
		if now > 100*halfUnit {
			t.Fatal("the simulation hangs")
		}
		for _, m := range []*model{small, large} {
			if m.plan == nil || m.until > now {
				continue
			}
			m.complete(now, m.took)
			for _, id := range m.plan.IDs {
				known := m.s.Known(id)
				m.must(m.s.Commit(now, id, ids(id, known, 1)...))
				switch done := known; { // the prompt has one id
				case done == len(routes[id]):
					finished[id] = now
					live--
					m.must(m.finish(id))
				case m == small && routes[id][done] == 'L':
					m.must(m.s.Park(id))
					m.must(large.s.Submit(now, id, Spec{Tokens: m.s.Tokens(id), MaxLen: 8}))
				case m == large && routes[id][done] == 'S':
					m.must(m.s.Park(id))
					m.must(small.s.Append(now, id, m.s.Tokens(id)[small.s.Known(id):]))
				}
			}
			m.plan = nil
		}
		for _, m := range []*model{small, large} {
			m.s.ObserveGroup(live, 0)
			m.admit(now)
			if m.plan == nil {
				m.plan, _, _ = m.next(now)
				m.until = now + m.took
			}
		}
	}
	return finished
}
