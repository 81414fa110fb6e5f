package cudaexec

import (
	"sync/atomic"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// BenchmarkHostStep is the host's own work for a decode step, on a simulated driver whose calls do nothing: the batch
// checked, attention planned, the descriptor written, the launch, and the results copied. One layer of Qwen3-0.6B, rows at a
// context of about 4,000.
func BenchmarkHostStep(b *testing.B) {
	f := drivertest.New(b, drivertest.Options{Memory: 16 << 30})
	d, err := NewDevice(f.MustContext(b, 0), blanks{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	m, vocab := catalogued(b, "qwen3-0.6b")
	m.Layers = 1
	const context, most = 4000, 64
	e, err := New(b.Context(), Config{Vocab: vocab, MaxSlots: most, MaxTokens: 2048, Pages: most * 64}, d, Dummy("host", m, 1))
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := e.Shutdown(); err != nil {
			b.Error(err)
		}
	}()
	for _, tc := range []struct {
		name string
		rows int
		p    sampling.Params
	}{
		{"rows=1", 1, sampling.Params{}}, {"rows=8", 8, sampling.Params{}}, {"rows=64", 64, sampling.Params{}},
		{"rows=8,top-p", 8, sampling.Params{Temperature: 0.6, TopP: 0.95, TopK: 20}},
		{"rows=8,penalties", 8, sampling.Params{Temperature: 1, PresencePenalty: 0.5}},
	} {
		b.Run(tc.name, func(b *testing.B) { benchHost(b, e, tc.rows, context, tc.p) })
	}
}

// benchHost repeats one decode step of some rows by cutting it off again.
func benchHost(b *testing.B, e *Executor, rows, context int, p sampling.Params) {
	var batch step.Batch
	var r step.Result
	var at uint64
	run := func() {
		at++
		batch.Step = at
		ticket, err := e.Launch(&batch)
		if err != nil {
			b.Fatal(err)
		}
		atomic.StoreUint64(e.res.flag, uint64(ticket)) // what the device would publish
		if err := e.Wait(b.Context(), ticket, &r); err != nil {
			b.Fatal(err)
		}
	}
	ids := make([]int32, context)
	var open []step.Slot
	for i := range rows {
		slot, err := e.Open(executor.SeqConfig{Sampling: p, PromptLen: context - 500})
		if err != nil {
			b.Fatal(err)
		}
		open = append(open, slot)
		for n := range context {
			ids[n] = int32((n*31 + i) % 5000)
		}
		for n := 0; n < context; n += 2000 {
			batch = step.Batch{Rows: []step.Row{{Slot: slot, Start: int32(n), Tokens: ids[n : n+2000], Logprobs: -1}}}
			for page := n / 64; page*64 < n+2000; page++ {
				batch.Patches = append(batch.Patches, step.PagePatch{Slot: slot, Index: int32(page), Page: int32(64*i + page)})
			}
			run()
		}
	}
	batch = step.Batch{}
	for _, slot := range open {
		batch.Rows = append(batch.Rows, step.Row{Slot: slot, Start: int32(context), Tokens: ids[:1], Sample: 1, Want: step.FEntropy, Logprobs: -1})
		batch.Patches = append(batch.Patches, step.PagePatch{Slot: slot, Index: int32(context / 64), Page: int32(64*int(slot) + context/64)})
	}
	run()
	batch.Patches = nil
	b.ReportAllocs()
	for b.Loop() {
		for _, slot := range open {
			if err := e.Truncate(slot, context); err != nil {
				b.Fatal(err)
			}
		}
		run()
	}
	for _, slot := range open {
		e.Close(slot)
	}
}
