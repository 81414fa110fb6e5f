package cudaexec

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// blanks builds kernels that the simulated driver accepts and does not run.
type blanks struct{}

func (blanks) Build(_ context.Context, programs []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	out := make([]nvrtc.Binary, len(programs))
	for i := range out {
		out[i].Cubin = []byte("blank")
	}
	return out, nvrtc.BuildStats{}, nil
}

// fakeDevice is a device whose calls succeed and whose kernels do nothing.
func fakeDevice(t *testing.T) (*drivertest.Fake, *Device) {
	t.Helper()
	f := drivertest.New(t, drivertest.Options{Memory: 8 << 30})
	d, err := NewDevice(f.MustContext(t, 0), blanks{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return f, d
}

func fakeConfig() Config {
	return Config{Vocab: 99, MaxSlots: 2, MaxTokens: 32, MaxContext: 128, Pages: 4, Partials: 8, Eager: true, Nets: fold(oddNets()[2:])}
}

// Every call that can fail while a model loads, failing.
func TestNewReleasesEverything(t *testing.T) {
	for _, c := range []struct {
		function string
		calls    int
	}{
		{"cuModuleLoadData", 15}, {"cuModuleGetFunction", 15}, {"cuStreamCreateWithPriority", 1}, {"cuEventCreate", 1}, {"cuMemAlloc_v2", 2},
		{"cuMemHostAlloc", 2}, {"cuMemsetD8Async", 4}, {"cuMemcpyHtoD_v2", 2}, {"cuLaunchKernelEx", 20}, {"cuMemGetInfo_v2", 3},
		{"cuStreamBeginCapture_v2", 16}, {"cuStreamEndCapture", 16}, {"cuGraphInstantiateWithFlags", 16}, {"cuGraphUpload", 16},
		{"cuGraphGetNodes", 16},
	} {
		for nth := 1; nth <= c.calls; nth += 3 {
			t.Run(fmt.Sprintf("%s %d", c.function, nth), func(t *testing.T) {
				f, d := fakeDevice(t)
				f.Fail(c.function, nth, driver.CodeInvalidValue)
				cfg := fakeConfig()
				cfg.Eager = false
				if e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1)); err == nil {
					t.Errorf("New did not fail: %v", e.Shutdown())
				}
				if open := f.Open(); open.DeviceAllocs+open.HostAllocs+open.Modules+open.Streams+open.Events+open.Graphs+open.GraphExecs != 0 {
					t.Errorf("left open: %+v", open)
				}
			})
		}
	}
}

// Whoever asks for the numbers may do so while the executor is shut down, and afterwards.
func TestStatsWhileShutDown(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Memory: 8 << 30, GraphBytes: 1 << 10})
	d, err := NewDevice(f.MustContext(t, 0), blanks{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	cfg := fakeConfig()
	cfg.Eager = false
	e, err := New(t.Context(), cfg, d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	before, meanwhile := e.Stats(), executor.Stats{}
	var asking conc.WaitGroup
	asking.Go(func() { meanwhile = e.Stats() })
	if err := e.Shutdown(); err != nil {
		t.Error(err)
	}
	asking.Wait()
	if after := e.Stats(); before.MemoryBytes["graphs"] == 0 || !reflect.DeepEqual(meanwhile, before) || !reflect.DeepEqual(after, before) {
		t.Errorf("%+v, then %+v, then %+v", before, meanwhile, after)
	}
}

// oneRow is a step of one row for a fresh slot.
func oneRow(t *testing.T, e *Executor) *step.Batch {
	t.Helper()
	var b step.Batch
	newSequence(t, e, sampling.Params{}, 0).grow(&b, step.Row{Tokens: []int32{1, 2, 3}, Sample: 1, Logprobs: -1})
	return &b
}

// dead checks that every call says ErrFailed, and that Shutdown releases everything.
func dead(t *testing.T, f *drivertest.Fake, e *Executor, b *step.Batch) {
	t.Helper()
	if _, err := e.Launch(b); !errors.Is(err, executor.ErrFailed) {
		t.Errorf("launch: error %v, want ErrFailed", err)
	}
	if _, err := e.Open(executor.SeqConfig{}); !errors.Is(err, executor.ErrFailed) {
		t.Errorf("open: error %v, want ErrFailed", err)
	}
	if err := e.Truncate(b.Rows[0].Slot, 0); !errors.Is(err, executor.ErrFailed) {
		t.Errorf("truncate: error %v, want ErrFailed", err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), 1, &r); !errors.Is(err, executor.ErrFailed) {
		t.Errorf("wait: error %v, want ErrFailed", err)
	}
	f.Poison(0)
	if err := e.Shutdown(); err != nil {
		t.Errorf("shutdown: %v", err)
	}
	if e.device.ctx.Lost() { // it keeps what cannot be given back, and counts it no more
		f.Leaky()
		if live := e.device.ctx.Live(); live != (driver.Live{Contexts: 1}) {
			t.Errorf("left open: %v", live)
		}
		return
	}
	if open := f.Open(); open.DeviceAllocs+open.HostAllocs+open.Modules+open.Streams+open.Events != 0 {
		t.Errorf("left open: %+v", open)
	}
}

func TestLaunchFailureNamesTheOperation(t *testing.T) {
	// Launches of a step of two layers, in order.
	names := []string{"prep", "embed", "input norm of layer 0", "qkv product of layer 0", "attn of layer 0",
		"o product of layer 0", "post-attention norm of layer 0", "gate and up product of layer 0",
		"down product of layer 0", "input norm of layer 1"}
	for i, name := range names {
		t.Run(name, func(t *testing.T) {
			f, d := fakeDevice(t)
			e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
			if err != nil {
				t.Fatal(err)
			}
			b := oneRow(t, e)
			f.Fail("cuLaunchKernelEx", i+1, driver.CodeLaunchFailed)
			_, err = e.Launch(b)
			if !errors.Is(err, executor.ErrFailed) || !strings.Contains(err.Error(), name+":") || !driver.IsSticky(err) {
				t.Errorf("error %v, want ErrFailed at %q", err, name)
			}
			dead(t, f, e, b)
		})
	}
}

func TestDeviceFaultDuringAStep(t *testing.T) {
	f, d := fakeDevice(t)
	e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	b := oneRow(t, e)
	ticket, err := e.Launch(b)
	if err != nil {
		t.Fatal(err)
	}
	f.Poison(driver.CodeIllegalAddress)
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); !errors.Is(err, executor.ErrFailed) || !driver.IsSticky(err) {
		t.Errorf("error %v, want ErrFailed and a sticky code", err)
	}
	dead(t, f, e, b)
}

// A step that ends without its number is a failure, not a hang.
func TestStepThatReportsNothing(t *testing.T) {
	f, d := fakeDevice(t)
	e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	b := oneRow(t, e)
	ticket, err := e.Launch(b)
	if err != nil {
		t.Fatal(err)
	}
	var r step.Result
	if err := e.Wait(t.Context(), ticket, &r); !errors.Is(err, executor.ErrFailed) || !strings.Contains(err.Error(), "publish") {
		t.Errorf("error %v, want ErrFailed that names publish", err)
	}
	dead(t, f, e, b)
}

func TestPoolShrinks(t *testing.T) {
	f, d := fakeDevice(t)
	c := fakeConfig()
	c.Pages = 0
	f.Fail("cuMemAlloc_v2", 2, driver.CodeOutOfMemory)
	e, err := New(t.Context(), c, d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	if p := e.Plan(); e.Info().Pages != 3 || p.Pages != 3 {
		t.Errorf("%d pages after one refusal, want 3 of 4", p.Pages)
	}
	if err := e.Shutdown(); err != nil {
		t.Error(err)
	}
	f.Fail("cuMemAlloc_v2", 2, driver.CodeOutOfMemory)
	if _, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1)); !errors.Is(err, ErrMemory) {
		t.Errorf("pages asked for by number: error %v, want ErrMemory", err)
	}
}

// A step asks the driver for nothing but launches and one record.
func TestStepOnlyLaunches(t *testing.T) {
	f, d := fakeDevice(t)
	e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
	if err != nil {
		t.Fatal(err)
	}
	before := len(f.Calls())
	if _, err := e.Launch(oneRow(t, e)); err != nil {
		t.Fatal(err)
	}
	for _, call := range f.Calls()[before:] {
		if call != "cuLaunchKernelEx" && call != "cuEventRecord" {
			t.Errorf("the step calls %s", call)
		}
	}
	if err := e.Shutdown(); err != nil {
		t.Error(err)
	}
}

// TestManySamples passes the head in several blocks.
func TestManySamples(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated && testing.Short() {
		t.Skip("skip: no CUDA driver")
	}
	e := build(t, d, Config{Vocab: 99, MaxSlots: 3, MaxContext: 64, MaxTokens: 192, Pages: 3, Partials: 4, Reproducible: true, Poison: true}, Dummy("odd", oddConfig(), 2))
	var b step.Batch
	var r step.Result
	ids := make([]int32, 50)
	for i := range ids {
		ids[i] = int32(i * 5 % 99)
	}
	for i := range 3 {
		newSequence(t, e, sampling.Params{Temperature: 1, Seed: 9}, i).grow(&b, step.Row{Tokens: ids, Sample: 1<<50 - 1, Want: step.FEntropy, Logprobs: 2})
	}
	runBatch(t, e, &b, &r)
	if len(r.Out) != 150 {
		t.Fatalf("%d outputs, want 150", len(r.Out))
	}
	for i, o := range r.Out {
		first := r.Out[i%50]
		if o.Token != first.Token || o.Entropy != first.Entropy || o.Logprob != first.Logprob || o.Top[1] != first.Top[1] || o.Row != int32(i/50) {
			t.Fatalf("output %d is %+v, the same position of row 0 gave %+v", i, o, first)
		}
	}
}

// A lost device is closed, reset and opened anew. What stands in the way of that is told apart.
func TestOpenDeviceAnew(t *testing.T) {
	for _, tc := range []struct {
		name string
		// spoil acts on the simulated driver and library between close and opening.
		spoil  func(*drivertest.Fake, cublaslttest.Fake)
		fault  error
		noBLAS bool
	}{
		{"it works", func(*drivertest.Fake, cublaslttest.Fake) {}, nil, false},
		{"without the library", func(_ *drivertest.Fake, l cublaslttest.Fake) { l.Fail("cublasLtCreate", 1) }, nil, true},
		{"the context stays lost", func(f *drivertest.Fake, _ cublaslttest.Fake) { f.Fault(0, driver.CodeIllegalAddress) }, ErrContext, false},
		{"the context cannot be retained", func(f *drivertest.Fake, _ cublaslttest.Fake) {
			f.Fail("cuDevicePrimaryCtxRetain", 1, driver.CodeIllegalAddress)
		}, ErrContext, false},
		{"the library spoils the context", func(f *drivertest.Fake, l cublaslttest.Fake) {
			l.Fail("cublasLtCreate", 1)
			f.Fail("cuMemAlloc_v2", 2, driver.CodeIllegalAddress)
		}, ErrContext, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, l := drivertest.New(t, drivertest.Options{Memory: 8 << 30}), cublaslttest.New(t, cublaslttest.Options{})
			var warnings bytes.Buffer
			open := func() (*Device, error) {
				drv, err := f.Load()
				if err != nil {
					t.Fatal(err)
				}
				library, err := l.Load()
				if err != nil {
					t.Fatal(err)
				}
				return OpenDeviceWith(drv, 0, blanks{}, library, slog.New(slog.NewTextHandler(&warnings, nil)))
			}
			d, err := open()
			if err != nil {
				t.Fatal(err)
			}
			e, err := New(t.Context(), fakeConfig(), d, Dummy("odd", oddConfig(), 1))
			if err != nil {
				t.Fatal(err)
			}
			b := oneRow(t, e)
			f.Fault(0, driver.CodeIllegalAddress)
			if _, err := e.Launch(b); !driver.IsSticky(err) {
				t.Fatalf("launch after the fault: %v", err)
			}
			if err := e.Shutdown(); err != nil && !driver.IsSticky(err) {
				t.Errorf("shutdown: %v", err)
			}
			if err := d.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
			if !f.Called("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2") {
				t.Error("the context was not reset after its release")
			}
			tc.spoil(f, l)
			d, err = open()
			if !errors.Is(err, tc.fault) {
				t.Fatalf("error %v, want %v", err, tc.fault)
			}
			if (warnings.Len() > 0) != tc.noBLAS {
				t.Errorf("warned: %q", &warnings)
			}
			if tc.fault != nil {
				return
			}
			if d.HasCuBLASLt() == tc.noBLAS {
				t.Errorf("cuBLASLt: %v", d.HasCuBLASLt())
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
