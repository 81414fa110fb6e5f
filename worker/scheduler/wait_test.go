package scheduler

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// The time in the queue and the time for which a batch is waited for are told apart.
func TestWaitsAreCounted(t *testing.T) {
	pool, err := kv.NewPool(16, 4)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Config{MaxRows: 4, MaxTokens: 16, ChunkTokens: 8, MaxSlots: 2, MaxQueue: 4, Threshold: 2, LongestWait: time.Second}, pool)
	if err != nil {
		t.Fatal(err)
	}
	submit := func(at time.Duration, id ID) {
		if err := s.Submit(at, id, Spec{Tokens: []int32{1, 2}, MaxLen: 8}); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(at time.Duration, want int) {
		ids := s.Admit(at)
		if len(ids) != want {
			t.Fatalf("at %s: %d admitted, want %d", at, len(ids), want)
		}
		for _, id := range ids {
			if err := s.Bind(id, step.Slot(id)); err != nil {
				t.Fatal(err)
			}
		}
	}
	submit(10, 1)
	admit(13, 1) // 3 in the queue
	submit(20, 2)
	admit(25, 1) // 5
	p, _, _ := s.Next(30)
	if p == nil || len(p.IDs) != 2 {
		t.Fatalf("%+v", p)
	}
	s.Complete(37, p, 7) // began at 30: 17 and 5 for the batch
	c := s.Counts()
	if c.Admissions != 2 || c.QueueWait != 8 || c.Waits != 2 || c.BatchWait != 22 {
		t.Errorf("%+v", c)
	}
	s.Complete(50, p, 1)
	if s.Counts() != c {
		t.Error("a second completion counted again")
	}
}
