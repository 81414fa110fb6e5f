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
	cache  bool
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

// server computes the same answers through scheduler, page pool and executor.
// The executor checks every batch. Where visit says so, the sampled token is
// dropped, the sequence is parked, and the peer's token comes back some rounds later.
type server struct {
	t        *rapid.T
	e        *fakeexec.Executor
	s        *scheduler.Scheduler
	pool     *kv.Pool
	requests []request
	visit    func(id, position int) bool
	away     int // rounds
	now      time.Duration
	back     map[scheduler.ID]int // parked sequences and the round of their return
	out      [][]int32
	left     int
}

func newServer(t *rapid.T, cfg scheduler.Config, info executor.Info, requests []request) *server {
	e, err := fakeexec.New(fakeexec.Config{Info: info})
	must(t, err)
	pool, err := kv.NewPool(info.Pages, info.PageSize)
	must(t, err)
	s, err := scheduler.New(cfg, pool)
	must(t, err)
	for i, r := range requests {
		must(t, s.Submit(0, scheduler.ID(i), scheduler.Spec{
			Tokens: r.prompt, MaxLen: len(r.prompt) + r.answer, Logprobs: -1, Cache: r.cache,
		}))
	}
	return &server{
		t: t, e: e, s: s, pool: pool, requests: requests,
		back: map[scheduler.ID]int{}, out: make([][]int32, len(requests)), left: len(requests),
	}
}

// finishIfDone ends a request whose answer is complete.
func (v *server) finishIfDone(id scheduler.ID) {
	r := v.requests[id]
	if v.s.Known(id) < len(r.prompt)+r.answer {
		return
	}
	v.out[id] = slices.Clone(v.s.Tokens(id))
	slot, bound, err := v.s.Finish(id)
	must(v.t, err)
	if bound {
		v.e.Close(slot)
	}
	v.left--
}

// arrive admits sequences and takes back those whose visit is over.
func (v *server) arrive(round int) {
	ids := v.s.Admit(v.now)
	v.closeAll(v.s.TakePreempted())
	for _, id := range ids {
		slot, err := v.e.Open(config(int(id)))
		must(v.t, err)
		must(v.t, v.s.Bind(id, slot))
	}
	for id := range scheduler.ID(len(v.requests)) {
		if at, parked := v.back[id]; parked && at <= round {
			delete(v.back, id)
			must(v.t, v.s.Append(v.now, id, []int32{peerToken(int(id), v.s.Known(id), v.e.Info().Vocab)}))
			v.finishIfDone(id)
		}
	}
}

func (v *server) closeAll(preempted []scheduler.Preemption) {
	for _, p := range preempted {
		v.e.Close(p.Slot)
	}
}

// execute runs a plan and applies its results.
func (v *server) execute(p *scheduler.Plan, round int) {
	v.closeAll(p.Preempted)
	for _, c := range p.Truncations {
		must(v.t, v.e.Truncate(c.Slot, c.Length))
	}
	ticket, err := v.e.Launch(&p.Batch)
	must(v.t, err)
	var r step.Result
	must(v.t, v.e.Wait(v.t.Context(), ticket, &r))
	v.s.Complete(v.now, p, time.Millisecond)
	for _, o := range r.Out {
		id := p.IDs[o.Row]
		if int(o.Position) != v.s.Known(id) {
			v.t.Fatalf("sequence %d: sampled position %d, known %d", id, o.Position, v.s.Known(id))
		}
		if v.visit(int(id), v.s.Known(id)) {
			must(v.t, v.s.Park(id))
			v.back[id] = round + v.away
			continue
		}
		must(v.t, v.s.Commit(v.now, id, o.Token))
		v.finishIfDone(id)
	}
	must(v.t, v.s.Check())
}

func (v *server) serve() [][]int32 {
	for round := 0; v.left > 0; round++ {
		if round > 10000 {
			v.t.Fatalf("hangs: %+v", v.s.Counts())
		}
		v.now += time.Millisecond
		v.arrive(round)
		p, wake, waiting := v.s.Next(v.now)
		switch {
		case p != nil:
			v.execute(p, round)
		case waiting:
			v.now = wake
		}
	}
	v.pool.DropCache()
	must(v.t, v.s.Check())
	if c := v.pool.Counts(); c.Free != c.Total {
		v.t.Fatalf("pages left over: %+v", c)
	}
	if got := v.e.Stats().OpenSlots; got != 0 {
		v.t.Fatalf("%d slots left open", got)
	}
	return v.out
}

func must(t *rapid.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The same seeds give the same tokens whatever the batch limits, chunk, page
// size, threshold, number of slots and pages, reservation, prefix cache, and time
// spent elsewhere.
func TestSameTokensUnderAnySchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var requests []request
		for i := range rapid.IntRange(1, 5).Draw(t, "requests") {
			n := rapid.IntRange(1, 20).Draw(t, fmt.Sprint("prompt ", i))
			prompt := make([]int32, n)
			for k := range prompt {
				prompt[k] = int32((i%2*13 + k) % 50) // many share a prefix
			}
			requests = append(requests, request{
				prompt, rapid.IntRange(1, 12).Draw(t, fmt.Sprint("answer ", i)), rapid.Bool().Draw(t, fmt.Sprint("cache ", i)),
			})
		}
		share := uint64(rapid.IntRange(1, 6).Draw(t, "one visit in"))
		visit := func(id, position int) bool { return (uint64(id)*7+uint64(position)*11)%share == 1 }
		info := executor.Info{
			Vocab: 50, PageSize: rapid.IntRange(1, 7).Draw(t, "page size"),
			MaxRows: rapid.IntRange(1, 4).Draw(t, "rows"), MaxTokens: rapid.IntRange(1, 16).Draw(t, "tokens"),
			MaxSlots: rapid.IntRange(1, 5).Draw(t, "slots"), MaxContext: 32, Depth: 1,
		}
		least := (32 + info.PageSize - 1) / info.PageSize // for one request of any length
		info.Pages = least + rapid.IntRange(0, 2*least).Draw(t, "more pages")
		cfg := scheduler.Config{
			MaxRows: info.MaxRows, MaxTokens: info.MaxTokens, MaxSlots: info.MaxSlots, MaxQueue: len(requests),
			ChunkTokens: rapid.IntRange(1, info.MaxTokens).Draw(t, "chunk"),
			Threshold:   rapid.IntRange(1, 5).Draw(t, "threshold"),
			Reserve:     rapid.SampledFrom([]scheduler.Reserve{scheduler.ReserveLazy, scheduler.ReserveFull}).Draw(t, "reserve"),
			AheadPages:  rapid.IntRange(0, 3).Draw(t, "ahead"),
		}
		v := newServer(t, cfg, info, requests)
		v.visit, v.away = visit, rapid.IntRange(1, 5).Draw(t, "away")
		got := v.serve()
		for i, want := range reference(info.Vocab, requests, visit) {
			if !slices.Equal(got[i], want) {
				t.Fatalf("request %d: got %v, want %v", i, got[i], want)
			}
		}
	})
}
