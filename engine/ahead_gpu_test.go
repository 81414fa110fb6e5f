package engine

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// onGPU skips a test without a GPU, and lets an engine use it.
func onGPU(t testing.TB) func(*Config) {
	t.Helper()
	drv, err := driver.Load()
	if err == nil {
		_, err = drv.Device(0)
	}
	if err != nil {
		t.Skipf("skip: no GPU: %v", err)
	}
	dir := t.TempDir()
	return func(c *Config) {
		c.Device, c.CUDA = "cuda", CUDA{NVRTC: os.Getenv("TRCTL_NVRTC"), CubinDir: dir}
	}
}

// On a GPU whose arithmetic is reproducible, steps launched ahead change no bit of
// an answer, whatever is asked at the same time.
func TestLookaheadOnGPU(t *testing.T) {
	gpu := onGPU(t)
	list := append(questions(12, 80), seeded(questions(6, 80))...)
	for i := range list {
		if i%4 == 3 {
			list[i].FrequencyPenalty = 0.3
		}
		list[i].Logprobs, list[i].TopLogprobs = i%3 == 1, i%2
	}
	for _, policy := range []Policy{
		{Name: "r-stitch", Threshold: TrioThreshold("r-stitch")}, {Name: "single"}, {Name: "co-llm", Mode: "compose", Router: "tiny-s-co-llm"},
	} {
		var want [][]said
		for _, l := range []subservice.Lookahead{subservice.LookaheadOff, subservice.LookaheadOn, subservice.LookaheadAuto} {
			t.Run(fmt.Sprintf("%s, lookahead %s", policy.Name, l), func(t *testing.T) {
				e := start(t, func(c *Config) {
					gpu(c)
					c.Reproducible, c.Lookahead = true, l
					c.Deployments[0].Policy = policy
					if policy.Name == "single" {
						c.Deployments[0].Models = c.Deployments[0].Models[:1]
					}
				})
				began := time.Now()
				got := answers(t, e, list, 6, nil)
				took := time.Since(began)
				if want == nil {
					want = got
				}
				for i := range want {
					if d := differs(got[i], want[i]); d != "" {
						t.Errorf("question %d: %s", i, d)
					}
				}
				awaitIdle(t, e)
				for name, s := range e.stats() {
					t.Logf("%s: %d steps, %d ahead, %d rows used, %d wasted; all took %v", name, s.Steps, s.AheadSteps, s.AheadUsed, s.AheadWasted, took)
					if l == subservice.LookaheadOn && name == "tiny-s-0" && (s.AheadUsed == 0 || s.AheadWasted == 0) {
						t.Error("void: no row ahead was used, or none wasted")
					}
				}
			})
		}
	}
}

// BenchmarkLookahead decodes with a catalogue shape alone on a GPU: what the host's
// time between steps costs, with it and without.
func BenchmarkLookahead(b *testing.B) {
	gpu := onGPU(b)
	seed := uint64(7)
	for _, rows := range []int{1, 8, 32} {
		for _, l := range []subservice.Lookahead{subservice.LookaheadOff, subservice.LookaheadOn, subservice.LookaheadAuto} {
			b.Run(fmt.Sprintf("rows=%d/lookahead=%s", rows, l), func(b *testing.B) {
				cfg := Defaults()
				gpu(&cfg)
				cfg.Models, cfg.Deployments = []Model{{Name: "qwen3-0.6b", Dummy: &seed, Threshold: 1}}, nil
				cfg.KVTokens, cfg.Lookahead = 1<<16, l
				e, err := New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close()
				const tokens = 500
				list := make([]Request, rows)
				for i := range list {
					list[i] = Request{Model: "qwen3-0.6b", PromptIDs: []int32{int32(i), 5, 6, 7}, MaxTokens: tokens, IgnoreEOS: true}
				}
				run := func() {
					var waiting sync.WaitGroup
					done := make(chan error, rows)
					for _, r := range list {
						waiting.Go(func() { _, err := ask(e, r); done <- err })
					}
					for range list {
						if err := <-done; err != nil {
							b.Fatal(err)
						}
					}
				}
				run() // warm
				b.ResetTimer()
				for b.Loop() {
					run()
				}
				s := e.stats()["qwen3-0.6b-0"]
				b.ReportMetric(float64(b.N*rows*tokens)/b.Elapsed().Seconds(), "tokens/s")
				b.ReportMetric(float64(s.AheadSteps)/float64(s.Steps), "ahead/step")
			})
		}
	}
}
