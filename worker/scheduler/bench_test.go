package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// BenchmarkDecode256 is the scheduler's cost of one step of 256 decodes: plan,
// complete, and commit one token each.
func BenchmarkDecode256(b *testing.B) {
	for _, reserve := range []Reserve{ReserveLazy, ReserveFull} {
		b.Run(fmt.Sprint("reserve=", reserve), func(b *testing.B) { benchmarkDecode(b, reserve) })
	}
}

func benchmarkDecode(b *testing.B, reserve Reserve) {
	const n, maxLen = 256, 4096
	pool, err := kv.NewPool(n*maxLen/64, 64)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{MaxRows: n, MaxTokens: 8192, ChunkTokens: 2048, MaxSlots: n, MaxQueue: n, Reserve: reserve}, pool)
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

// BenchmarkPrefix4k is the admission, and the end, of a prompt of 4,096 ids in
// pages of 64, of which all but the last page is in the cache.
func BenchmarkPrefix4k(b *testing.B) {
	const n, size = 4096, 64
	pool, err := kv.NewPool(1024, size)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{MaxRows: 8, MaxTokens: 8192, ChunkTokens: 8192, MaxSlots: 8, MaxQueue: 8}, pool)
	if err != nil {
		b.Fatal(err)
	}
	spec := Spec{Tokens: ids(1, 0, n), MaxLen: n + 256, Cache: true}
	serve := func(id ID) {
		if err := s.Submit(0, id, spec); err != nil {
			b.Fatal(err)
		}
		s.Admit(0)
		if err := s.Bind(id, step.Slot(id)); err != nil {
			b.Fatal(err)
		}
	}
	serve(1)
	p, _, _ := s.Next(0)
	s.Complete(0, p, ms)
	b.ReportAllocs()
	for b.Loop() {
		serve(2)
		if s.PrefixHit(2) != n-size {
			b.Fatalf("%d positions from the cache", s.PrefixHit(2))
		}
		if _, _, err := s.Finish(2); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPressure256 is a step of decodes on a pool that holds half of what 256
// sequences need, so that they preempt each other.
func BenchmarkPressure256(b *testing.B) {
	const n, maxLen, size = 256, 1024, 64
	pool, err := kv.NewPool(n*maxLen/size/4, size)
	if err != nil {
		b.Fatal(err)
	}
	s, err := New(Config{MaxRows: n, MaxTokens: 8192, ChunkTokens: 2048, MaxSlots: n, MaxQueue: n}, pool)
	if err != nil {
		b.Fatal(err)
	}
	var free []step.Slot
	for i := range n {
		free = append(free, step.Slot(i))
	}
	restart := func(id ID) {
		if err := s.Submit(0, id, Spec{Tokens: ids(id, 0, 64), MaxLen: maxLen}); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		restart(ID(i))
	}
	giveBack := func(all []Preemption) {
		for _, p := range all {
			free = append(free, p.Slot)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		ids := s.Admit(0)
		giveBack(s.TakePreempted())
		for _, id := range ids {
			if err := s.Bind(id, free[len(free)-1]); err != nil {
				b.Fatal(err)
			}
			free = free[:len(free)-1]
		}
		p, _, _ := s.Next(0)
		giveBack(p.Preempted)
		s.Complete(0, p, ms)
		for i, id := range p.IDs {
			if p.Batch.Rows[i].Sample == 0 {
				continue
			}
			if s.Known(id) == maxLen {
				slot, _, err := s.Finish(id)
				if err != nil {
					b.Fatal(err)
				}
				free = append(free, slot)
				restart(id)
				continue
			}
			if err := s.Commit(0, id, 2); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(s.Counts().Preemptions)/float64(b.N), "preemptions/op")
}
