package cudaexec

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// catalogued returns a model's config and real vocabulary.
func catalogued(tb testing.TB, name string) (model.Config, int) {
	tb.Helper()
	c, err := catalogue.Default()
	if err != nil {
		tb.Fatal(err)
	}
	entry, err := c.Find(name)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := model.ParseConfig(entry.Config)
	if err != nil {
		tb.Fatal(err)
	}
	return m, entry.RealVocab
}

// BenchmarkStep times whole steps of dummy models, from Launch to the result: decode of B rows, extend of k tokens a row, and
// prefill chunks, all at a context of about 1000 positions. Metrics: time a step, the weights' share of the peak of
// 4.3 TB/s, and new tokens a second.
func BenchmarkStep(b *testing.B) {
	for _, name := range []string{"qwen3-0.6b", "qwen3-1.7b", "qwen3-8b", "qwen3-32b"} {
		b.Run(name, func(b *testing.B) {
			d, dev := openTest(b)
			if dev.Simulated {
				b.Skip("skip: no CUDA driver")
			}
			m, vocab := catalogued(b, name)
			const context, slots = 1000, 64
			e := build(b, d, Config{Vocab: vocab, MaxSlots: slots, MaxTokens: 2048, MaxContext: 4096, Pages: slots * 20}, Dummy(name, m, 1))
			b.Logf("%s", func() string { p := e.Plan(); return p.String() }())
			var seqs []*sequence
			var r step.Result
			ids := make([]int32, context)
			for i := range ids {
				ids[i] = int32(i * 7919 % vocab)
			}
			for i := range slots {
				s := newSequence(b, e, sampling.Params{}, i*20)
				s.feed(step.Row{Tokens: ids, Logprobs: -1}, &r)
				seqs = append(seqs, s)
			}
			for _, shape := range [][2]int{{1, 1}, {4, 1}, {8, 1}, {16, 1}, {32, 1}, {64, 1}, {1, 8}, {8, 8}, {16, 10}} {
				b.Run(fmt.Sprintf("rows=%d,tokens=%d", shape[0], shape[1]), func(b *testing.B) {
					benchRows(b, e, seqs[:shape[0]], ids[:shape[1]])
				})
			}
			b.Run("prefill=1000", func(b *testing.B) {
				s := seqs[0]
				for b.Loop() {
					if err := e.Truncate(s.slot, 0); err != nil {
						b.Fatal(err)
					}
					s.length = 0
					s.feed(step.Row{Tokens: ids, Sample: 1, Logprobs: -1}, &r)
				}
				b.ReportMetric(float64(b.N*len(ids))/b.Elapsed().Seconds(), "tok/s")
			})
		})
	}
}

// benchRows repeats one step by cutting its tokens off again.
func benchRows(b *testing.B, e *Executor, seqs []*sequence, ids []int32) {
	var r step.Result
	var batch step.Batch
	for _, s := range seqs { // the pages, outside the clock
		s.feed(step.Row{Tokens: ids, Logprobs: -1}, &r)
	}
	cut := func() {
		for _, s := range seqs {
			s.length -= len(ids)
			if err := e.Truncate(s.slot, s.length); err != nil {
				b.Fatal(err)
			}
		}
	}
	cut()
	for b.Loop() {
		batch = step.Batch{Rows: batch.Rows[:0], Patches: batch.Patches[:0]}
		for _, s := range seqs {
			s.grow(&batch, step.Row{Tokens: ids, Sample: 1, Want: step.FEntropy, Logprobs: -1})
		}
		runBatch(b, e, &batch, &r)
		cut()
	}
	each := b.Elapsed().Seconds() / float64(b.N)
	b.ReportMetric(each*1e3, "ms/step")
	b.ReportMetric(float64(len(seqs)*len(ids))/each, "tok/s")
	read := e.plan.Weights
	if !e.model.TieEmbeddings {
		read -= int64(e.model.VocabSize) * int64(e.model.Hidden) * 2 // the embedding is not read
	}
	b.ReportMetric(float64(read)/each/4.3e12*100, "%peak")
}

// BenchmarkUpload streams a synthetic checkpoint of about 16 GB from the disk's cache (or the disk) to the device.
func BenchmarkUpload(b *testing.B) {
	d, dev := openTest(b)
	if dev.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	m, vocab := catalogued(b, "qwen3-8b")
	dir := b.TempDir()
	start := time.Now()
	writeShards(b, dir, &m)
	b.Logf("written in %v", time.Since(start))
	for b.Loop() {
		k, err := model.OpenDir(dir)
		if err != nil {
			b.Fatal(err)
		}
		var bytes int64
		started := time.Now()
		e, err := New(b.Context(), Config{Vocab: vocab, MaxSlots: 1, MaxTokens: 64, MaxContext: 512, Progress: func(_, total int64) {
			if bytes == 0 {
				bytes = total
			}
		}}, d, Checkpoint(k))
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(bytes)/time.Since(started).Seconds()/1e9, "GB/s")
		if err := e.Shutdown(); err != nil {
			b.Fatal(err)
		}
		if err := k.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// writeShards writes a dummy model to a directory, one shard a tensor group, several at a time.
func writeShards(b *testing.B, dir string, m *model.Config) {
	params := m.Params()
	const group = 11
	where := map[string]string{}
	p := pool.New().WithErrors().WithMaxGoroutines(8)
	for at := 0; at < len(params); at += group {
		part := params[at:min(at+group, len(params))]
		file := fmt.Sprintf("model-%04d.safetensors", at/group)
		for _, x := range part {
			where[x.Name] = file
		}
		p.Go(func() error {
			data, err := model.EncodeShard(dummyTensors(m, part, 3), nil)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, file), data, 0o644)
		})
	}
	if err := p.Wait(); err != nil {
		b.Fatal(err)
	}
	index, err := json.Marshal(map[string]any{"weight_map": where})
	if err != nil {
		b.Fatal(err)
	}
	for name, data := range map[string][]byte{"model.safetensors.index.json": index, "config.json": configJSON(b, *m)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
