package fakeexec_test

import (
	"fmt"
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

// request is a prompt and the length of its answer.
type request struct {
	prompt []int32
	answer int
}

// reference computes the answers without scheduler, pages or batches. At every
// position where visit says so, a peer writes the token instead.
func reference(vocab int, requests []request, visit func(id, position int) bool) [][]int32 {
	script := fakeexec.Hashed(vocab)
	out := make([][]int32, len(requests))
	for i, r := range requests {
		ids := slices.Clone(r.prompt)
		for range r.answer {
			if visit(i, len(ids)) {
				ids = append(ids, peerToken(i, len(ids), vocab))
				continue
			}
			ids = append(ids, script(config(i), ids).Token)
		}
		out[i] = ids
	}
	return out
}

func config(i int) executor.SeqConfig {
	return executor.SeqConfig{Sampling: sampling.Params{Seed: uint64(i)}}
}

func peerToken(i, position, vocab int) int32 { return int32((i*31 + position*7) % vocab) }

// serve computes the same answers through scheduler, page pool and executor.
// The executor checks every batch. Where visit says so, the sampled token is
// dropped, the sequence is parked, and the peer's token comes back some steps later.
func serve(t *rapid.T, cfg scheduler.Config, info executor.Info, requests []request, visit func(id, position int) bool, away int) [][]int32 {
	e, err := fakeexec.New(fakeexec.Config{Info: info})
	must(t, err)
	pool, err := kv.NewPool(info.Pages, info.PageSize)
	must(t, err)
	s, err := scheduler.New(cfg, pool)
	must(t, err)
	for i, r := range requests {
		must(t, s.Submit(0, scheduler.ID(i), scheduler.Spec{Tokens: r.prompt, MaxLen: len(r.prompt) + r.answer, Logprobs: -1}))
	}
	type visitor struct {
		id   scheduler.ID
		back int // round
	}
	out := make([][]int32, len(requests))
	var parked []visitor
	var now time.Duration
	// finishIfDone ends a request whose answer is complete.
	finishIfDone := func(id scheduler.ID) bool {
		r := requests[id]
		if s.Known(id) < len(r.prompt)+r.answer {
			return false
		}
		out[id] = slices.Clone(s.Tokens(id))
		slot, bound, err := s.Finish(id)
		must(t, err)
		if bound {
			e.Close(slot)
		}
		return true
	}
	left := len(requests)
	for round := 0; left > 0; round++ {
		if round > 10000 {
			t.Fatalf("hangs: %+v", s.Counts())
		}
		now += time.Millisecond
		for _, id := range s.Admit(now) {
			slot, err := e.Open(config(int(id)))
			must(t, err)
			must(t, s.Bind(id, slot))
		}
		parked = slices.DeleteFunc(parked, func(v visitor) bool {
			if v.back > round {
				return false
			}
			must(t, s.Append(now, v.id, []int32{peerToken(int(v.id), s.Known(v.id), info.Vocab)}))
			if finishIfDone(v.id) {
				left--
			}
			return true
		})
		p, wake, ok := s.Next(now)
		if p == nil {
			if ok {
				now = wake
			}
			continue
		}
		for _, c := range p.Truncations {
			must(t, e.Truncate(c.Slot, c.Length))
		}
		ticket, err := e.Launch(&p.Batch)
		must(t, err)
		var r step.Result
		must(t, e.Wait(t.Context(), ticket, &r))
		s.Complete(now, p, time.Millisecond)
		for _, o := range r.Out {
			id := p.IDs[o.Row]
			if int(o.Position) != s.Known(id) {
				t.Fatalf("sequence %d: sampled position %d, known %d", id, o.Position, s.Known(id))
			}
			if visit(int(id), s.Known(id)) {
				must(t, s.Park(id))
				parked = append(parked, visitor{id, round + away})
				continue
			}
			must(t, s.Commit(now, id, o.Token))
			if finishIfDone(id) {
				left--
			}
		}
		must(t, s.Check())
	}
	if c := pool.Counts(); c.Free != c.Total {
		t.Fatalf("pages left over: %+v", c)
	}
	if got := e.Stats().OpenSlots; got != 0 {
		t.Fatalf("%d slots left open", got)
	}
	return out
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The same seeds give the same tokens whatever the batch limits, chunk, page
// size, threshold, number of slots, and time spent elsewhere.
func TestSameTokensUnderAnySchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var requests []request
		for i := range rapid.IntRange(1, 5).Draw(t, "requests") {
			n := rapid.IntRange(1, 20).Draw(t, fmt.Sprint("prompt ", i))
			prompt := make([]int32, n)
			for k := range prompt {
				prompt[k] = int32((i*13 + k) % 50)
			}
			requests = append(requests, request{prompt, rapid.IntRange(1, 12).Draw(t, fmt.Sprint("answer ", i))})
		}
		share := uint64(rapid.IntRange(1, 6).Draw(t, "one visit in"))
		visit := func(id, position int) bool { return (uint64(id)*7+uint64(position)*11)%share == 1 }
		info := executor.Info{
			Vocab: 50, PageSize: rapid.IntRange(1, 7).Draw(t, "page size"),
			MaxRows: rapid.IntRange(1, 4).Draw(t, "rows"), MaxTokens: rapid.IntRange(1, 16).Draw(t, "tokens"),
			MaxSlots: rapid.IntRange(1, 5).Draw(t, "slots"), MaxContext: 32, Depth: 1,
		}
		info.Pages = rapid.IntRange(32, 100).Draw(t, "pages")
		cfg := scheduler.Config{
			MaxRows: info.MaxRows, MaxTokens: info.MaxTokens, MaxSlots: info.MaxSlots, MaxQueue: len(requests),
			ChunkTokens: rapid.IntRange(1, info.MaxTokens).Draw(t, "chunk"),
			Threshold:   rapid.IntRange(1, 5).Draw(t, "threshold"),
		}
		got := serve(t, cfg, info, requests, visit, rapid.IntRange(1, 5).Draw(t, "away"))
		for i, want := range reference(info.Vocab, requests, visit) {
			if !slices.Equal(got[i], want) {
				t.Fatalf("request %d: got %v, want %v", i, got[i], want)
			}
		}
	})
}
