package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

const ms = time.Millisecond

func testConfig() Config {
	return Config{MaxRows: 8, MaxTokens: 64, ChunkTokens: 32, MaxSlots: 8, MaxQueue: 8, Threshold: 1, Reserve: ReserveFull}
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.s.Check(); err != nil {
		b.t.Fatal(err)
	}
}

// start submits, admits and prefills one sequence.
func (b *bench) start(id ID, prompt, maxLen int) {
	b.t.Helper()
	b.must(b.s.Submit(0, id, Spec{Tokens: ids(id, 0, prompt), MaxLen: maxLen}))
	b.admit(0)
	for b.s.Cached(id) < prompt {
		b.step(0)
	}
}

// step plans a step, which must exist, and completes it.
func (b *bench) step(now time.Duration) *Plan {
	b.t.Helper()
	p, _, _ := b.next(now)
	if p == nil {
		b.t.Fatal("no step")
	}
	b.complete(now, ms)
	b.must(nil)
	return p
}

func TestNewRefusesConfig(t *testing.T) {
	pool, _ := kv.NewPool(1, 1)
	for name, change := range map[string]func(*Config){
		"rows":         func(c *Config) { c.MaxRows = 0 },
		"tokens":       func(c *Config) { c.MaxTokens = 0 },
		"no chunk":     func(c *Config) { c.ChunkTokens = 0 },
		"large chunk":  func(c *Config) { c.ChunkTokens = c.MaxTokens + 1 },
		"slots":        func(c *Config) { c.MaxSlots = 0 },
		"queue":        func(c *Config) { c.MaxQueue = 0 },
		"threshold":    func(c *Config) { c.Threshold = -1 },
		"reserve":      func(c *Config) { c.Reserve = ReserveFull + 1 },
		"ahead":        func(c *Config) { c.AheadPages = -1 },
		"longest wait": func(c *Config) { c.LongestWait = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig()
			change(&cfg)
			if _, err := New(cfg, pool); !errors.Is(err, ErrBadConfig) {
				t.Fatalf("error %v", err)
			}
		})
	}
	if _, err := New(testConfig(), nil); !errors.Is(err, ErrBadConfig) {
		t.Fatalf("no pool: error %v", err)
	}
}

func TestBindRefuses(t *testing.T) {
	b := newBench(t, testConfig(), 32, 4)
	b.must(b.s.Submit(0, 1, Spec{Tokens: ids(1, 0, 2), MaxLen: 4}))
	if err := b.s.Bind(1, 0); !errors.Is(err, ErrState) {
		t.Errorf("queued: %v", err)
	}
	b.admit(0)
	b.must(b.s.SubmitParked(0, 2, Spec{MaxLen: 4}))
	slot, _ := b.s.Slot(1)
	for name, err := range map[string]error{
		"taken":    b.s.Bind(2, slot),
		"negative": b.s.Bind(2, -1),
		"again":    b.s.Bind(1, 5),
	} {
		if !errors.Is(err, ErrBadSlot) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.s.Bind(3, 6); !errors.Is(err, ErrUnknown) {
		t.Errorf("unknown: %v", err)
	}
	if err := b.s.Append(0, 2, nil); !errors.Is(err, ErrNoTokens) {
		t.Errorf("append of nothing to nothing: %v", err)
	}
	// The turn may come back before the slot is bound; then Bind makes it ready.
	b.must(b.s.Append(0, 2, ids(2, 0, 1)))
	if c := b.s.Counts(); c.Ready != 1 {
		t.Errorf("ready while unbound: %+v", c)
	}
	b.bind(2)
	if c := b.s.Counts(); c.Ready != 2 || c.Running != 2 {
		t.Errorf("after bind: %+v", c)
	}
}

func TestRowsCarryWishes(t *testing.T) {
	cfg := testConfig()
	cfg.ChunkTokens = 4
	b := newBench(t, cfg, 32, 4)
	spec := Spec{Tokens: ids(1, 0, 6), MaxLen: 8, Want: step.FTopK | step.FEntropy, TopK: 5, Logprobs: 2}
	b.must(b.s.Submit(0, 1, spec))
	spec.Tokens[0] = -1 // the scheduler has its own copy
	b.admit(0)
	first := b.step(0).Batch.Rows[0]
	if first.Tokens[0] != 1000 || first.Sample != 0 || first.Want != 0 || first.Logprobs != -1 {
		t.Errorf("first chunk %+v", first)
	}
	last := b.step(0).Batch.Rows[0]
	if last.Sample != 1 || last.Want != spec.Want || last.TopK != 5 || last.Logprobs != 2 {
		t.Errorf("last chunk %+v", last)
	}
}

// A second Complete, or one of a plan whose sequence's id was used again, must
// not move anything.
func TestCompleteIsIdempotent(t *testing.T) {
	b := newBench(t, testConfig(), 32, 4)
	b.must(b.s.Submit(0, 1, Spec{Tokens: ids(1, 0, 3), MaxLen: 8}))
	b.admit(0)
	p, _, _ := b.next(0)
	b.must(b.finish(1))
	b.must(b.s.Submit(0, 1, Spec{Tokens: ids(1, 0, 5), MaxLen: 8}))
	b.admit(0)
	b.complete(0, ms)
	b.s.Complete(0, p, ms)
	b.s.Complete(0, nil, ms)
	b.must(nil)
	if got := b.s.Cached(1); got != 0 {
		t.Fatalf("cached %d of a new sequence", got)
	}
	if got := b.step(0).Batch.Rows[0]; got.Start != 0 || len(got.Tokens) != 5 {
		t.Fatalf("row %+v", got)
	}
}

// Decodes come first, but a prompt behind a full house of decodes still runs.
func TestNothingStarves(t *testing.T) {
	cfg := testConfig()
	cfg.MaxRows, cfg.MaxTokens, cfg.ChunkTokens = 2, 8, 8
	b := newBench(t, cfg, 64, 4)
	for id := ID(1); id <= 3; id++ {
		b.start(id, 2, 60)
	}
	for id := ID(1); id <= 3; id++ {
		b.must(b.s.Commit(0, id, 7))
	}
	b.must(b.s.Submit(0, 9, Spec{Tokens: ids(9, 0, 12), MaxLen: 60}))
	b.admit(0)
	rows := map[ID]int{}
	for range 40 {
		p := b.step(0)
		for i, id := range p.IDs {
			rows[id]++
			if p.Batch.Rows[i].Sample != 0 {
				b.must(b.s.Commit(0, id, 7))
			}
		}
	}
	if rows[9] < 3 || b.s.Cached(9) < 12 {
		t.Errorf("prompt ran %d times, cached %d", rows[9], b.s.Cached(9))
	}
	for id := ID(1); id <= 3; id++ {
		if rows[id] < 10 {
			t.Errorf("sequence %d ran %d times in 40 steps of 2 rows for 4", id, rows[id])
		}
	}
}

// An extend too long for what the decodes leave waits, and then goes first.
func TestLongExtendIsNotStarved(t *testing.T) {
	cfg := testConfig()
	cfg.MaxTokens, cfg.ChunkTokens = 4, 4
	b := newBench(t, cfg, 64, 4)
	for id := ID(1); id <= 3; id++ {
		b.start(id, 2, 40)
	}
	b.must(b.s.Park(3))
	b.must(b.s.Append(0, 3, ids(3, 2, 4)))
	for n := 1; ; n++ {
		for _, id := range []ID{1, 2} {
			if b.s.Counts().Ready < 3 && b.s.Cached(id) == b.s.Known(id) {
				b.must(b.s.Commit(0, id, 7))
			}
		}
		p := b.step(0)
		if slices.Contains(p.IDs, 3) {
			if p.Kinds[0] != Extend || p.IDs[0] != 3 {
				t.Errorf("plan %v %v", p.IDs, p.Kinds)
			}
			break
		}
		if n > maxPassed+1 {
			t.Fatal("starved")
		}
	}
}

func TestQueriesOfUnknown(t *testing.T) {
	b := newBench(t, testConfig(), 4, 4)
	if _, bound := b.s.Slot(1); bound || b.s.Known(1) != 0 || b.s.Cached(1) != 0 || b.s.State(1) != Gone || b.s.Tokens(1) != nil {
		t.Error("an unknown id has state")
	}
	for name, err := range map[string]error{
		"park":     b.s.Park(1),
		"truncate": b.s.Truncate(1, 0),
		"commit":   b.s.Commit(0, 1, 2),
		"append":   b.s.Append(0, 1, nil),
	} {
		if !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A sequence truncated to nothing starts over with a first pass.
func TestTruncateToNothing(t *testing.T) {
	b := newBench(t, testConfig(), 32, 4)
	b.start(1, 6, 20)
	b.must(b.s.Truncate(1, 0))
	if c := b.pool.Counts(); c.Held != 0 || b.s.Counts().Ready != 0 {
		t.Fatalf("pages %+v, sequences %+v", c, b.s.Counts())
	}
	b.must(b.s.Commit(0, 1, 5, 6))
	p := b.step(0)
	if p.Kinds[0] != Prefill || p.Batch.Rows[0].Start != 0 || len(p.Truncations) != 1 || p.Truncations[0].Length != 0 {
		t.Fatalf("plan %+v", p)
	}
}
