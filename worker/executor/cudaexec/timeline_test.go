package cudaexec

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec/timeline"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// thrifty compiles for the emulator only the variants that small steps take, and gives those for the others: they run for no tokens,
// when graphs are captured.
type thrifty struct{ kernels.Builder }

func (b thrifty) Build(ctx context.Context, programs []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	of := map[[3]string]int{} // kernel and form to a place in few
	var few []nvrtc.Program
	place := make([]int, len(programs))
	for i, p := range programs {
		form := [3]string{p.Name, p.Defines["BAND_ACT"] + p.Defines["GEMV_ACT"] + p.Defines["SLIM_ACT"], p.Defines["ROUTER_FORM"]}
		if _, ok := of[form]; !ok {
			of[form] = len(few)
			few = append(few, p)
		}
		place[i] = of[form]
	}
	images, stats, err := b.Builder.Build(ctx, few)
	if err != nil {
		return nil, stats, err
	}
	out := make([]nvrtc.Binary, len(programs))
	for i := range out {
		out[i] = images[place[i]]
	}
	return out, stats, nil
}

// timedConfig is small, for the emulator.
func timedConfig() Config {
	return Config{Vocab: 99, MaxSlots: 3, MaxTokens: 8, MaxContext: 64, Pages: 12, PageSize: 16, Partials: 4, Timeline: true}
}

// operations are those of a step of two layers, in their order.
func operations() []string {
	out := []string{"prep", "embed"}
	for range 2 {
		out = append(out, "input norm", "qkv product", "attn", "o product", "post-attention norm", "gate and up product", "down product")
	}
	return append(out, "final norm", "head product", "logitpart", "logitstats", "sample", "publish")
}

// timedSteps runs a step of three rows twice and returns the timeline of the second, and its outputs.
func timedSteps(t *testing.T, e *Executor) (*timeline.Step, []step.Out) {
	t.Helper()
	var seqs []*sequence
	for i := range 3 {
		seqs = append(seqs, newSequence(t, e, sampling.Params{}, 4*i))
	}
	var r step.Result
	for i := range 2 {
		if i == 1 && e.tracer != nil {
			if err := e.StartTimeline(); err != nil {
				t.Fatal(err)
			}
		}
		var b step.Batch
		for j, s := range seqs {
			s.grow(&b, step.Row{Tokens: []int32{int32(3*i + j)}, Sample: 1, Want: step.FEntropy | step.FLogits, Logprobs: -1})
		}
		runBatch(t, e, &b, &r)
	}
	for _, s := range seqs {
		e.Close(s.slot)
	}
	if e.tracer == nil {
		return nil, r.Out
	}
	s, err := e.Timeline()
	if err != nil {
		t.Fatal(err)
	}
	return s, r.Out
}

// A replayed step and one that is launched kernel by kernel have the same operations on their timelines, with all their blocks; and
// the results of kernels without stamps.
func TestTimeline(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated {
		if testing.Short() {
			t.Skip("skip: no CUDA driver")
		}
		var err error
		if d, err = NewDevice(dev.Context, thrifty{dev.Builder}, nil); err != nil {
			t.Fatal(err)
		}
	}
	var want []step.Out
	for _, tc := range []struct {
		name   string
		change func(*Config)
	}{
		{"untimed", func(c *Config) { c.Timeline = false }},
		{"replayed", func(c *Config) { c.HeadStart = 1 }},
		{"eager", func(c *Config) { c.Eager = true }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := timedConfig()
			tc.change(&cfg)
			e := build(t, d, cfg, Dummy("odd", oddConfig(), 3))
			s, out := timedSteps(t, e)
			if want == nil {
				want = slices.Clone(out)
			}
			if !reflect.DeepEqual(out, want) {
				t.Error("outputs differ from those of kernels without stamps")
			}
			if s == nil {
				if err := e.StartTimeline(); !errors.Is(err, ErrNoTimeline) {
					t.Errorf("error %v, want ErrNoTimeline", err)
				}
				return
			}
			var got []string
			for _, sp := range s.Spans {
				got = append(got, sp.Op)
				if sp.Seen != sp.Blocks || sp.SMs < 1 || sp.Work < 0 || sp.Kernel == "" {
					t.Errorf("%s of layer %d: %d of %d blocks on %d multiprocessors, %v", sp.Op, sp.Layer, sp.Seen, sp.Blocks, sp.SMs, sp.Work)
				}
				if dev.Simulated && sp.Began < sp.Ready-sp.Waited() || sp.Ended > s.Length {
					t.Errorf("%s: %v to %v of %v", sp.Op, sp.Began, sp.Ended, s.Length)
				}
			}
			if names := operations(); !slices.Equal(got, names) {
				t.Errorf("operations %q, want %q", got, names)
			}
			if layer := s.Spans[9].Layer; s.Lost != 0 || s.Length <= 0 || layer != 1 {
				t.Errorf("%d lost, %v, layer %d", s.Lost, s.Length, layer)
			}
			if _, err := e.Timeline(); !errors.Is(err, ErrNoTimeline) {
				t.Errorf("a second time: error %v, want ErrNoTimeline", err)
			}
			if again, _ := timedSteps(t, e); len(again.Spans) != len(s.Spans) {
				t.Errorf("%d launches the second time", len(again.Spans))
			}
		})
	}
}

// fakeTimed is an executor with a timeline on a device whose kernels do nothing, with and without the library.
func fakeTimed(t *testing.T, blas *cublaslt.Library, change func(*Config)) *Executor {
	t.Helper()
	f, _ := fakeDevice(t)
	d, err := NewDevice(f.MustContext(t, 0), blanks{}, blas)
	if err != nil {
		t.Fatal(err)
	}
	cfg := fakeConfig()
	cfg.Timeline = true
	change(&cfg)
	e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.inFlight = 0
		if err := joinClose(nil, e.Shutdown, d.Close); err != nil {
			t.Error(err)
		}
	})
	return e
}

// What is launched is noted by its operation, the library's products and those of graphs too.
func TestTimelineNotesLaunches(t *testing.T) {
	blas, err := cublaslttest.New(t, cublaslttest.Options{}).Load()
	if err != nil {
		t.Skipf("skip: %v", err)
	}
	for _, tc := range []struct {
		name   string
		change func(*Config)
	}{
		{"replayed", func(c *Config) { c.Eager, c.HeadStart = false, 1 }},
		{"eager", func(c *Config) {}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := fakeTimed(t, blas, func(c *Config) { c.Products = ProductsLibrary; tc.change(c) })
			if err := e.StartTimeline(); err != nil {
				t.Fatal(err)
			}
			if _, err := e.Launch(oneRow(t, e)); err != nil {
				t.Fatal(err)
			}
			var got, want []string
			for _, l := range e.tracer.list {
				got = append(got, l.Op)
				if library := slices.Contains([]string{"qkv product", "o product", "gate and up product", "down product", "head product"}, l.Op); library != (l.Module == timeline.Library) {
					t.Errorf("%s is by %s, module %d", l.Op, l.Kernel, l.Module)
				}
			}
			for _, op := range operations() {
				if want = append(want, op); op == "gate and up product" {
					want = append(want, "silumul")
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("launches %q, want %q", got, want)
			}
		})
	}
}

// No timeline of a step that is in flight, of none, of kernels that did not run, and of a device that fails.
func TestTimelineErrors(t *testing.T) {
	e := fakeTimed(t, nil, func(*Config) {})
	if _, err := e.Timeline(); !errors.Is(err, ErrNoTimeline) {
		t.Errorf("before the start: error %v", err)
	}
	if err := e.StartTimeline(); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Timeline(); !errors.Is(err, ErrNoTimeline) {
		t.Errorf("of no step: error %v", err)
	}
	if _, err := e.Launch(oneRow(t, e)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Timeline(); !errors.Is(err, ErrNoTimeline) {
		t.Errorf("of a step in flight: error %v", err)
	}
	if err := e.StartTimeline(); !errors.Is(err, ErrNoTimeline) {
		t.Errorf("start with a step in flight: error %v", err)
	}
	e.inFlight = 0
	if _, err := e.Timeline(); !errors.Is(err, timeline.ErrStamps) {
		t.Errorf("kernels that did not run: error %v, want ErrStamps", err)
	}
}

func TestTimelineFailures(t *testing.T) {
	for _, function := range []string{"cuMemcpyDtoH_v2", "cuStreamSynchronize", "cuMemsetD32Async"} {
		t.Run(function, func(t *testing.T) {
			f, d := fakeDevice(t)
			cfg := fakeConfig()
			cfg.Timeline = true
			e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1))
			if err != nil {
				t.Fatal(err)
			}
			start := func() error {
				if err := e.StartTimeline(); err != nil {
					return err
				}
				if _, err := e.Launch(oneRow(t, e)); err != nil {
					t.Fatal(err)
				}
				e.inFlight = 0
				return nil
			}
			if function != "cuMemsetD32Async" {
				if err := start(); err != nil {
					t.Fatal(err)
				}
			}
			f.Fail(function, 1, driver.CodeInvalidValue)
			if function == "cuMemsetD32Async" {
				err = start()
			} else {
				_, err = e.Timeline()
			}
			if !errors.Is(err, executor.ErrFailed) {
				t.Errorf("error %v, want ErrFailed", err)
			}
			if err := e.Shutdown(); err != nil {
				t.Error(err)
			}
		})
	}
	f, d := fakeDevice(t)
	f.Fail("cuModuleGetGlobal_v2", 3, driver.CodeInvalidValue)
	cfg := fakeConfig()
	cfg.Timeline = true
	if e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1)); err == nil {
		t.Errorf("New did not fail: %v", e.Shutdown())
	}
	if open := f.Open(); open.DeviceAllocs+open.HostAllocs+open.Modules+open.Streams != 0 {
		t.Errorf("left open: %+v", open)
	}
}
