package cudaexec

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// fakeGraphs is how many graphs a model of fakeConfig has: bodies of 1 to 32 tokens, two of them twice, heads of 1 to 32 samples, with and
// without adjustments.
const fakeGraphs = 9 + 2*6

// Graphs are held against their reserve: more comes from the headroom, then from the pool, and is refused when the pool
// may not shrink.
func TestGraphsOverReserve(t *testing.T) {
	m := oddConfig()
	c := fakeConfig()
	c.Eager, c.Nets = false, nil // the numbers below are for graphs without nets
	c.Pages, c.MaxSlots, c.MaxContext = 0, 4, 512
	roomy, err := MakePlan(c, &m, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	reserve := roomy.graphs
	if reserve < graphFixedBytes || roomy.Free <= 0 {
		t.Fatalf("a reserve of %d bytes, %d free", reserve, roomy.Free)
	}
	tight := roomy.Weights + roomy.Activations + roomy.KV() // no headroom
	for _, tc := range []struct {
		name   string
		graphs int64 // what all take
		memory int64 // the model's
		pages  int   // asked for
		want   int   // pages, 0 for ErrMemory
	}{
		{"nothing", 0, tight, 0, roomy.Pages},
		{"less than reserved", reserve / 2, tight, 0, roomy.Pages},
		{"from the headroom", reserve + 100<<20, 1 << 30, 0, roomy.Pages},
		{"from the pool", reserve + 3*roomy.PageBytes/2, tight, 0, roomy.Pages - 2},
		{"from a pool asked for by number", reserve + 3*roomy.PageBytes/2, tight, roomy.Pages, 0},
		{"more than the pool", reserve + 100*roomy.PageBytes, tight, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			each := (tc.graphs + fakeGraphs - 1) / fakeGraphs
			f := drivertest.New(t, drivertest.Options{Memory: 8 << 30, GraphBytes: uint64(each)})
			d, err := NewDevice(f.MustContext(t, 0), blanks{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			c := c
			c.Pages, c.MemoryBytes, c.Poison, c.Logger = tc.pages, tc.memory, true, slog.New(slog.NewTextHandler(&log, nil))
			e, err := New(t.Context(), c, d, Dummy("odd", m, 1))
			if tc.want == 0 {
				if !errors.Is(err, ErrMemory) || !strings.Contains(err.Error(), "graphs of odd took") {
					t.Errorf("error %v, want ErrMemory with the numbers", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := e.Shutdown(); err != nil {
					t.Error(err)
				}
			}()
			p := e.Plan()
			if p.Pages != tc.want || e.Info().Pages != tc.want || p.Free < 0 || p.Weights+p.Activations+p.KV()+p.Free != p.Budget {
				t.Errorf("%d pages, want %d; plan %+v", p.Pages, tc.want, p)
			}
			if got := e.Stats().MemoryBytes["graphs"]; got != each*fakeGraphs || p.graphs != got || f.Open().GraphExecs != fakeGraphs {
				t.Errorf("%d bytes of graphs, want %d; plan %+v", got, each*fakeGraphs, p)
			}
			if !strings.Contains(log.String(), "difference_bytes=") || strings.Contains(log.String(), "smaller than planned") != (tc.want != roomy.Pages) {
				t.Errorf("logged %q", log.String())
			}
		})
	}
}

// What graphs of real models take on the device stays within the reserve, before and after they have run.
func TestGraphMemory(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated {
		t.Skip("skip: no CUDA driver")
	}
	for _, name := range []string{"qwen3-0.6b", "qwen3-8b"} {
		for _, reproducible := range []bool{false, true} {
			m, vocab := catalogued(t, name)
			e := build(t, d, Config{Vocab: vocab, MaxSlots: 64, MaxContext: 512, Pages: 8, Reproducible: reproducible}, Dummy(name, m, 1))
			reserve := graphReserve(&e.cfg, m.Layers)
			t.Logf("%s, reproducible %v: %d nodes of at most %d take %d bytes, %.0f a node; %d are reserved", name, reproducible, e.graphs.nodes,
				graphNodes(m.Layers), e.graphs.bytes, float64(e.graphs.bytes)/float64(e.graphs.nodes), reserve)
			if n := int64(e.graphs.nodes); n == 0 || n > graphNodes(m.Layers) {
				t.Errorf("%s: %d nodes, the plan expects at most %d", name, n, graphNodes(m.Layers))
			}
			if e.graphs.bytes > reserve {
				t.Errorf("%s: graphs take %d bytes, %d are reserved", name, e.graphs.bytes, reserve)
			}
			launchesTakeNothing(t, e)
			if err := e.Shutdown(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// launchesTakeNothing replays graphs of many sizes and checks that this takes no more memory worth a plan.
func launchesTakeNothing(t *testing.T, e *Executor) {
	t.Helper()
	before, _, err := e.device.Memory()
	if err != nil {
		t.Fatal(err)
	}
	s := newSequence(t, e, sampling.Params{}, 0)
	var r step.Result
	for _, n := range bodySizes {
		if s.length+n > e.cfg.MaxContext {
			s.length = 0
			if err := e.Truncate(s.slot, 0); err != nil {
				t.Fatal(err)
			}
		}
		s.feed(step.Row{Tokens: make([]int32, n), Sample: 1, Logprobs: -1}, &r)
	}
	after, _, err := e.device.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if replays := e.Stats().Replays; replays != uint64(len(bodySizes)) || before-after > graphFixedBytes/2 {
		t.Errorf("%d steps were replayed, want %d; they took %d bytes", replays, len(bodySizes), before-after)
	}
}
