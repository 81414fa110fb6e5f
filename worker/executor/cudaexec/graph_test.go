package cudaexec

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// graphLimits are those of the tests here; the emulator needs them small.
func graphLimits() Config {
	return Config{Vocab: 99, MaxSlots: 4, MaxTokens: 40, MaxContext: 320, Pages: 20, PageSize: 16, Partials: 6, Poison: true}
}

// mixed runs the same ragged steps on any executor: prefills, extends and decodes of a few sequences side by side, with
// several sampled positions, penalties and a step without samples. It returns all outputs.
func mixed(t *testing.T, e *Executor) [][]step.Out {
	t.Helper()
	seqs := []*sequence{
		newSequence(t, e, sampling.Params{}, 0),
		newSequence(t, e, sampling.Params{Temperature: 0.9, TopP: 0.95, Seed: 7}, 5),
		newSequence(t, e, sampling.Params{RepetitionPenalty: 1.3, FrequencyPenalty: 0.2}, 10),
		newSequence(t, e, sampling.Params{}, 15),
	}
	rng := rand.New(rand.NewPCG(1, 2))
	var all [][]step.Out
	for i, lengths := range [][]int{{12, 0, 0}, {1, 30, 9}, {0, 0, 17}, {1, 1, 1}, {2, 1, 5}, {1, 0, 1}, {5, 5, 5, 4}, {1, 1, 2}} {
		var b step.Batch
		for j, n := range lengths {
			if n == 0 {
				continue
			}
			row := step.Row{Sample: 1, Want: step.FLogits | step.FEntropy | step.FTopK, TopK: 3, Logprobs: 2}
			if i == 2 {
				row.Sample, row.Want = 0, 0
			} else if n > 1 {
				row.Sample = 3
			}
			for range n {
				row.Tokens = append(row.Tokens, rng.Int32N(99))
			}
			seqs[j].grow(&b, row)
		}
		var r step.Result
		runBatch(t, e, &b, &r)
		all = append(all, r.Out)
	}
	for _, s := range seqs {
		e.Close(s.slot)
	}
	return all
}

// Steps replayed from graphs, padded to their sizes, give the same bits as steps launched kernel by kernel.
func TestGraphsAreEager(t *testing.T) {
	for _, c := range []struct {
		name   string
		large  bool // matrices before which kernels begin in order
		change func(*Config)
	}{
		{"auto", false, func(*Config) {}},
		{"reproducible", false, func(c *Config) { c.Reproducible = true }},
		{"library", false, func(c *Config) { c.Products = ProductsLibrary }},
		{"depth 2, two graphs", false, func(c *Config) { c.Depth, c.HeadStart = 2, 1 }},
		{"in order", true, func(*Config) {}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d, dev := openTest(t)
			if dev.Simulated && (testing.Short() || c.large) {
				t.Skip("skip: no CUDA driver")
			}
			m := oddConfig()
			if c.large {
				m.Hidden, m.FFN = 1024, 4608
			}
			var want [][]step.Out
			for _, variant := range []struct{ eager, serial bool }{{true, true}, {false, true}, {false, false}, {true, false}} {
				if dev.Simulated && !variant.serial {
					continue // the emulator runs kernels one after the other
				}
				cfg := graphLimits()
				c.change(&cfg)
				cfg.Eager, cfg.NoOverlap = variant.eager, variant.serial
				e := build(t, d, cfg, Dummy("odd", m, 3))
				if e.inOrder() != c.large {
					t.Fatalf("in order: %v, want %v", e.inOrder(), c.large)
				}
				for round := range 2 { // the second reuses slots and ring entries
					got := mixed(t, e)
					if want == nil {
						want = got
					}
					for i := range want {
						if !reflect.DeepEqual(got[i], want[i]) {
							t.Fatalf("%+v round %d step %d: outputs differ from those of the first run", variant, round, i)
						}
					}
				}
				if s := e.Stats(); variant.eager != (s.Replays == 0) || !variant.eager && s.Replays != s.Steps {
					t.Errorf("%+v: %d of %d steps were replayed", variant, s.Replays, s.Steps)
				}
			}
		})
	}
}

// A step larger than the largest graph runs without one.
func TestLargeStepsAreEager(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated {
		t.Skip("skip: no CUDA driver")
	}
	e := build(t, d, Config{Vocab: 99, MaxSlots: 1, MaxTokens: 400, MaxContext: 512, Pages: 32, PageSize: 16}, Dummy("odd", oddConfig(), 3))
	var r step.Result
	s := newSequence(t, e, sampling.Params{}, 0)
	s.feed(step.Row{Tokens: make([]int32, 257), Sample: 1, Logprobs: -1}, &r)
	s.feed(step.Row{Tokens: make([]int32, 5), Sample: 1, Logprobs: -1}, &r)
	if got := e.Stats(); got.Steps != 2 || got.Replays != 1 {
		t.Errorf("%d of %d steps were replayed, want 1 of 2", got.Replays, got.Steps)
	}
}

// decodeTokens generates n tokens for several sequences, with the next step launched before a step's results are known
// (ahead) or after.
func decodeTokens(t *testing.T, e *Executor, n int, ahead bool) [][]int32 {
	t.Helper()
	var seqs []*sequence
	out := make([][]int32, 3)
	for i := range out {
		seqs = append(seqs, newSequence(t, e, sampling.Params{Temperature: float32(i) * 0.6, TopK: 20, Seed: uint64(i)}, i*5))
	}
	launch := func(tokens func(i int) ([]int32, bool)) executor.Ticket {
		b := new(step.Batch)
		for i, s := range seqs {
			ids, goesOn := tokens(i)
			s.grow(b, step.Row{Tokens: ids, Continue: goesOn, Sample: 1, Logprobs: -1})
		}
		ticket, err := e.Launch(b)
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	var r step.Result
	wait := func(ticket executor.Ticket) {
		if err := e.Wait(t.Context(), ticket, &r); err != nil {
			t.Fatal(err)
		}
		for i, o := range r.Out {
			out[i] = append(out[i], o.Token)
		}
	}
	ticket := launch(func(i int) ([]int32, bool) { return []int32{int32(i), 5, int32(7 * i)}, false })
	for len(out[0]) < n {
		if ahead {
			next := launch(func(int) ([]int32, bool) { return []int32{-1}, true })
			wait(ticket)
			ticket = next
			continue
		}
		wait(ticket)
		ticket = launch(func(i int) ([]int32, bool) { return out[i][len(out[i])-1:], false })
	}
	wait(ticket)
	for _, s := range seqs {
		e.Close(s.slot)
	}
	return out
}

// Launching ahead changes nothing: the next step takes the tokens that the host has not seen.
func TestLookahead(t *testing.T) {
	d, dev := openTest(t)
	n := 40
	if dev.Simulated {
		if n = 5; testing.Short() {
			t.Skip("skip: no CUDA driver")
		}
	}
	cfg := graphLimits()
	cfg.Depth = 2
	e := build(t, d, cfg, Dummy("odd", oddConfig(), 3))
	if i := e.Info(); i.Depth != 2 || i.Features&step.FContinue == 0 {
		t.Fatalf("depth %d, features %b", i.Depth, i.Features)
	}
	want := decodeTokens(t, e, n, false)
	for range 2 {
		for i, got := range decodeTokens(t, e, n, true) {
			if !slices.Equal(got, want[i]) {
				t.Errorf("sequence %d: %v when launched ahead, want %v", i, got, want[i])
			}
		}
	}
}

// What a row that continues must not do.
func TestContinueRefused(t *testing.T) {
	_, d := fakeDevice(t)
	cfg := fakeConfig()
	cfg.Depth = 2
	e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Shutdown(); err != nil {
			t.Error(err)
		}
	}()
	plain, penal := newSequence(t, e, sampling.Params{}, 0), newSequence(t, e, sampling.Params{PresencePenalty: 1}, 2)
	try := func(s *sequence, r step.Row) error {
		var b step.Batch
		length, pages := s.length, s.pages
		s.grow(&b, r)
		_, err := e.Launch(&b)
		if err != nil {
			s.length, s.pages = length, pages
		}
		return err
	}
	next := step.Row{Tokens: []int32{-1}, Continue: true, Sample: 1, Logprobs: -1}
	if try(plain, next) == nil {
		t.Error("a slot without positions continued")
	}
	for _, s := range []*sequence{plain, penal} {
		if err := try(s, step.Row{Tokens: []int32{1, 2}, Sample: 1, Logprobs: -1}); err != nil {
			t.Fatal(err)
		}
	}
	if try(plain, next) == nil {
		t.Error("a third step was launched")
	}
	e.inFlight = 0 // the simulated device never reports
	if try(penal, next) == nil {
		t.Error("a sequence that penalizes continued")
	}
	two := next
	two.Tokens = []int32{0, 0}
	if try(plain, two) == nil {
		t.Error("a row of two tokens continued")
	}
	if err := e.Truncate(plain.slot, 1); err != nil {
		t.Fatal(err)
	}
	plain.length = 1
	if try(plain, next) == nil {
		t.Error("a truncated slot continued")
	}
}

func TestGraphSizes(t *testing.T) {
	for n := 1; n <= 3000; n++ {
		if p := paddedTokens(n); p < n || n <= 256 && p >= 2*n && n > 1 || n > 256 && p-n >= 128 {
			t.Errorf("%d tokens are padded to %d", n, p)
		}
	}
	if !slices.IsSorted(bodySizes[:]) || !slices.IsSorted(headSizes[:]) || headSizes[len(headSizes)-1] != headRows {
		t.Error(fmt.Sprint("sizes ", bodySizes, headSizes))
	}
}
