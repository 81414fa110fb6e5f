package cpuexec

import (
	"context"
	"fmt"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// BenchmarkDecode measures greedy decoding at a context of about 200 positions.
func BenchmarkDecode(b *testing.B) {
	for _, name := range models.Names() {
		for _, rows := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/rows=%d", name, rows), func(b *testing.B) { benchDecode(b, name, rows, 0) })
		}
	}
	b.Run("tiny-s/rows=1/sampled", func(b *testing.B) { benchDecode(b, "tiny-s", 1, 1) })
}

func benchDecode(b *testing.B, name string, rows int, temperature float32) {
	const context0 = 200
	e := newTrio(b, name, Config{MaxSlots: rows, MaxContext: 512, MaxTokens: 1024})
	batch := &step.Batch{}
	prompt := make([]int32, context0/2)
	for i := range prompt {
		prompt[i] = int32(i * 7 % trioVocab)
	}
	for i := range rows {
		s := open(b, e, sampling.Params{Temperature: temperature, Seed: uint64(i)})
		batch.Patches = append(batch.Patches, patches(s, i*8, 8)...)
		batch.Rows = append(batch.Rows, step.Row{Slot: s, Tokens: prompt, Sample: 1, Logprobs: -1})
	}
	var r step.Result
	for range 2 {
		run(b, e, batch, &r)
		batch.Patches = nil
		for i := range batch.Rows {
			batch.Rows[i].Start += int32(len(prompt))
		}
	}
	for i := range batch.Rows {
		batch.Rows[i].Tokens = []int32{1}
	}
	b.ReportAllocs()
	for b.Loop() {
		t, err := e.Launch(batch)
		if err != nil {
			b.Fatal(err)
		}
		if err := e.Wait(context.Background(), t, &r); err != nil {
			b.Fatal(err)
		}
		for i := range batch.Rows {
			if err := e.Truncate(batch.Rows[i].Slot, context0); err != nil {
				b.Fatal(err)
			}
			batch.Rows[i].Tokens[0] = r.Out[i].Token
		}
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
}

// BenchmarkPrefill measures a prompt of 256 tokens in one step.
func BenchmarkPrefill(b *testing.B) {
	for _, name := range models.Names() {
		b.Run(name, func(b *testing.B) {
			const n = 256
			e := newTrio(b, name, Config{MaxSlots: 1, MaxContext: 512})
			s := open(b, e, sampling.Params{})
			tokens := make([]int32, n)
			for i := range tokens {
				tokens[i] = int32(i * 7 % trioVocab)
			}
			batch := &step.Batch{Patches: patches(s, 0, 8), Rows: []step.Row{{Slot: s, Tokens: tokens, Sample: 1, Logprobs: -1}}}
			var r step.Result
			for b.Loop() {
				run(b, e, batch, &r)
				if err := e.Truncate(s, 0); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(n*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
		})
	}
}
