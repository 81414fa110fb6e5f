package cudaexec

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/slots"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// After a real fault of a kernel the device is opened anew in the same process and computes the same bits; or opening says
// that only a new process can use the GPU. Lines that begin with "recovery:" tell which. The fault spoils the context for all
// who use it, so this test has a process of its own, and its subtests one each: TRCTL_TEST_FAULT says that they do.
func TestDeviceIsRebuilt(t *testing.T) {
	if os.Getenv("TRCTL_TEST_FAULT") == "" {
		t.Skip("skip: the fault would spoil other tests; set TRCTL_TEST_FAULT and run each subtest alone on a GPU")
	}
	t.Run("library", func(t *testing.T) { testRebuilt(t, false) })
	t.Run("own", func(t *testing.T) { testRebuilt(t, true) })
}

func testRebuilt(t *testing.T, noLibrary bool) {
	limits := Config{Vocab: 99, MaxSlots: 1, MaxContext: 128, MaxTokens: 64, Pages: 2, Partials: 4, Reproducible: true}
	ids := []int32{5, 7, 11, 13, 17}
	cubins := t.TempDir()
	var warnings bytes.Buffer
	open := func() (*Device, *Executor, error) {
		d, err := OpenDevice(DeviceConfig{
			NVRTCPath: os.Getenv("TRCTL_NVRTC"), CubinDir: cubins, NoCuBLASLt: noLibrary, Logger: slog.New(slog.NewTextHandler(&warnings, nil)),
		})
		if err != nil {
			return nil, nil, err
		}
		e, err := New(t.Context(), limits, d, Dummy("odd", oddConfig(), 3))
		return d, e, err
	}
	d, e, err := open()
	if err != nil {
		t.Fatal(err)
	}
	library := d.HasCuBLASLt()
	want, _ := allLogits(t, e, ids, len(ids))
	for _, tc := range []struct {
		block int
		op    string
	}{{1, "attn"}, {0, ""}} {
		if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
			t.Fatal(err)
		}
		limits.BlockSteps = tc.block
		if d, e, err = open(); err != nil {
			t.Fatal(err)
		}
		breakDevice(t, e, tc.op)
		if err := e.Shutdown(); err != nil {
			t.Logf("shut down on a lost device: %v", err)
		}
		limits.BlockSteps = 0
		began := time.Now()
		err := d.Close()
		t.Logf("recovery: released and reset in %v, error %v", time.Since(began), err)
		began = time.Now()
		d, e, err = open()
		if errors.Is(err, ErrContext) || driver.IsSticky(err) {
			t.Logf("recovery: NONE, a new process is needed: %v", err)
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("recovery: open and loaded in %v, cuBLASLt %v before and %v after %s", time.Since(began), library, d.HasCuBLASLt(), &warnings)
		got, _ := allLogits(t, e, ids, len(ids))
		if distance(got, want) != 0 {
			t.Errorf("after the fault logits differ by %.2g", distance(got, want))
		}
	}
	if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
		t.Error(err)
	}
}

// breakDevice runs a step whose keys and values lie far behind the pool, where nothing is mapped. op is the operation that the
// error must name.
func breakDevice(t *testing.T, e *Executor, op string) {
	t.Helper()
	wild := e.info
	wild.Pages = maxPages // lets the page through
	e.seqs = slots.New(wild, slots.Limits{Patches: e.desc.layout.maxPatches, Top: kernels.MaxTop})
	b := oneRow(t, e)
	for i := range b.Patches {
		b.Patches[i].Page = maxPages - 1
	}
	ticket, err := e.Launch(b)
	if err == nil {
		var r step.Result
		err = e.Wait(t.Context(), ticket, &r)
	}
	var fault *StepError
	if !errors.Is(err, executor.ErrFailed) || !driver.IsSticky(err) || !errors.As(err, &fault) || fault.Op != op {
		t.Fatalf("error %v, want a sticky one at %q", err, op)
	}
	t.Logf("fault: %v", err)
}
