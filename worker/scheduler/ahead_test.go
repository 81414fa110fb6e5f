package scheduler

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// aheadRig is a scheduler with sequences 1 to n of three ids, in a step in flight.
func aheadRig(t *testing.T, n, pages int) (*Scheduler, *Plan) {
	t.Helper()
	pool, err := kv.NewPool(pages, 4)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{MaxRows: 8, MaxTokens: 64, ChunkTokens: 16, MaxSlots: 8, MaxQueue: 8}, pool)
	if err != nil {
		t.Fatal(err)
	}
	for id := range ID(n) {
		if err := s.Submit(0, id+1, Spec{Tokens: []int32{7, 8, 9}, MaxLen: 12, Logprobs: -1}); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range s.Admit(0) {
		if err := s.Bind(id, step.Slot(i)); err != nil {
			t.Fatal(err)
		}
	}
	p := s.Start()
	if p == nil || len(p.IDs) != n {
		t.Fatalf("plan %+v", p)
	}
	return s, p
}

func all(ID) bool { return true }

// Whatever is decided about a sequence whose next step was launched already, the
// row counts exactly if its one token was committed and it stays.
func TestAheadOutcomes(t *testing.T) {
	for _, tc := range []struct {
		name      string
		decide    func(s *Scheduler) error
		live      bool
		known     int
		cached    int
		truncated bool
	}{
		{"stays", func(s *Scheduler) error { return s.Commit(1, 1, 5) }, true, 4, 4, false},
		{"kept, then leaves", func(s *Scheduler) error { return errors.Join(s.Commit(1, 1, 5), s.Park(1)) }, false, 4, 3, true},
		{"dropped", func(s *Scheduler) error { return s.Park(1) }, false, 3, 3, true},
		{"more is injected", func(s *Scheduler) error { return s.Commit(1, 1, 5, 6) }, false, 5, 3, true},
		{"ends", func(s *Scheduler) error { _, _, err := s.Finish(1); return err }, false, 0, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, cur := aheadRig(t, 1, 8)
			next := s.Ahead(cur, all)
			if next == nil || len(next.IDs) != 1 {
				t.Fatalf("plan %+v", next)
			}
			row := next.Batch.Rows[0]
			if !row.Continue || row.Start != 3 || row.Sample != 1 || len(row.Tokens) != 1 || next.Batch.Step != cur.Batch.Step+1 {
				t.Errorf("row %+v", row)
			}
			must(t, s.Check())
			if err := s.Park(1); !errors.Is(err, ErrInFlight) {
				t.Errorf("park before the results: %v", err)
			}
			s.Complete(1, cur, time.Millisecond)
			must(t, s.Check())
			must(t, tc.decide(s))
			must(t, s.Check())
			s.Complete(2, next, time.Millisecond)
			must(t, s.Check())
			if next.Live(0) != tc.live || s.Known(1) != tc.known || s.Cached(1) != tc.cached {
				t.Errorf("live %t, known %d, cached %d", next.Live(0), s.Known(1), s.Cached(1))
			}
			if _, void := next.AheadRows(); (void == 0) != tc.live {
				t.Errorf("%d void rows", void)
			}
			if s.State(1) == Parked {
				must(t, s.Append(3, 1, []int32{6}))
			} else if tc.live {
				must(t, s.Commit(3, 1, 6))
			}
			if s.State(1) == Gone {
				return
			}
			p := s.Start()
			want := []Truncation(nil)
			if tc.truncated {
				want = []Truncation{{Slot: 0, Length: tc.cached}}
			}
			if p == nil || !slices.Equal(p.Truncations, want) || int(p.Batch.Rows[0].Start) != tc.cached {
				t.Fatalf("plan %+v, want truncations %v", p, want)
			}
			must(t, s.Check())
		})
	}
}

// A sequence taken out of a step ahead may be in the one after it at once.
func TestAheadOutAndBack(t *testing.T) {
	s, cur := aheadRig(t, 1, 8)
	next := s.Ahead(cur, all)
	s.Complete(1, cur, time.Millisecond)
	must(t, s.Park(1))
	must(t, s.Append(1, 1, []int32{4, 5}))
	again := s.Ahead(next, all) // no row of next counts, so what is ready goes behind it
	if again == nil || len(again.IDs) != 1 || again.Batch.Rows[0].Continue || len(again.Truncations) != 1 {
		t.Fatalf("plan %+v", again)
	}
	must(t, s.Check())
	s.Complete(2, next, time.Millisecond)
	if next.Live(0) {
		t.Error("the void row counts")
	}
	must(t, s.Check())
	s.Complete(3, again, time.Millisecond)
	if !again.Live(0) || s.Cached(1) != 5 {
		t.Errorf("live %t, cached %d", again.Live(0), s.Cached(1))
	}
	must(t, s.Check())
}

// There is no step ahead where it is of no use or has no room.
func TestAheadRefused(t *testing.T) {
	t.Run("in the middle of a prefill", func(t *testing.T) {
		s, cur := aheadRig(t, 1, 16)
		must(t, s.Submit(0, 2, Spec{Tokens: make([]int32, 20), MaxLen: 24, Logprobs: -1}))
		for _, id := range s.Admit(0) {
			must(t, s.Bind(id, 5))
		}
		s.Complete(1, cur, time.Millisecond)
		must(t, s.Commit(1, 1, 5))
		cur = s.Start()
		if len(cur.IDs) != 2 {
			t.Fatalf("void: %v", cur.IDs)
		}
		if p := s.Ahead(cur, all); p != nil {
			t.Errorf("plan %v", p.IDs)
		}
	})
	t.Run("nobody goes on", func(t *testing.T) {
		s, cur := aheadRig(t, 2, 8)
		if p := s.Ahead(cur, func(ID) bool { return false }); p != nil {
			t.Errorf("plan %v", p.IDs)
		}
		must(t, s.Check())
	})
	t.Run("threshold", func(t *testing.T) {
		s, cur := aheadRig(t, 3, 8)
		s.ObserveGroup(3, 3)
		if p := s.Ahead(cur, func(id ID) bool { return id < 3 }); p != nil {
			t.Errorf("plan %v", p.IDs)
		}
		if p := s.Ahead(cur, all); p == nil || len(p.IDs) != 3 {
			t.Errorf("plan %+v", p)
		}
	})
	t.Run("length", func(t *testing.T) {
		s, cur := aheadRig(t, 1, 8)
		for range 9 { // up to MaxLen
			s.Complete(1, cur, time.Millisecond)
			must(t, s.Commit(1, 1, 5))
			cur = s.Start()
		}
		if p := s.Ahead(cur, all); p != nil {
			t.Errorf("plan %+v", p.Batch.Rows)
		}
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
