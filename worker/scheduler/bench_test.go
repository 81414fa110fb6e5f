package scheduler

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// BenchmarkDecode256 is the scheduler's cost of one step of 256 decodes: plan,
// complete, and commit one token each.
func BenchmarkDecode256(b *testing.B) {
	const n, maxLen = 256, 4096
	pool, err := kv.NewPool(n*maxLen/64, 64)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{MaxRows: n, MaxTokens: 8192, ChunkTokens: 2048, MaxSlots: n, MaxQueue: n}, pool)
	if err != nil {
		b.Fatal(err)
	}
	for i := range n {
		if err := s.Submit(0, ID(i), Spec{Tokens: []int32{1}, MaxLen: maxLen}); err != nil {
			b.Fatal(err)
		}
	}
	for i, id := range s.Admit(0) {
		if err := s.Bind(id, step.Slot(i)); err != nil {
			b.Fatal(err)
		}
	}
	now := time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		p, _, _ := s.Next(now)
		s.Complete(now, p, ms)
		for _, id := range p.IDs {
			if s.Known(id) == maxLen {
				if err := s.Truncate(id, 1); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Commit(now, id, 2); err != nil {
				b.Fatal(err)
			}
		}
	}
}
