package cudaexec

import (
	"errors"
	"os"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// After a real fault of a kernel the device is opened anew in the same process, and computes the same bits. The fault
// spoils the context for all who use it, so this test has a process of its own: TRCTL_TEST_FAULT says that it does.
func TestDeviceIsRebuilt(t *testing.T) {
	if os.Getenv("TRCTL_TEST_FAULT") == "" {
		t.Skip("skip: the fault would spoil other tests; set TRCTL_TEST_FAULT and run this test alone on a GPU")
	}
	limits := Config{Vocab: 99, MaxSlots: 1, MaxContext: 128, MaxTokens: 64, Pages: 2, Partials: 4, Reproducible: true}
	ids := []int32{5, 7, 11, 13, 17}
	open := func() (*Device, *Executor) {
		d, err := OpenDevice(DeviceConfig{NVRTCPath: os.Getenv("TRCTL_NVRTC"), CubinDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(t.Context(), limits, d, Dummy("odd", oddConfig(), 3))
		if err != nil {
			t.Fatal(err)
		}
		return d, e
	}
	d, e := open()
	want, _ := allLogits(t, e, ids, len(ids))
	for _, tc := range []struct {
		block int
		op    string
	}{{1, "qkvpost"}, {0, ""}} {
		if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
			t.Fatal(err)
		}
		limits.BlockSteps = tc.block
		d, e = open()
		kv := e.kv
		e.kv = 1 << 44 // not mapped
		var fault *StepError
		b := oneRow(t, e)
		ticket, err := e.Launch(b)
		if err == nil {
			var r step.Result
			err = e.Wait(t.Context(), ticket, &r)
		}
		if !errors.Is(err, executor.ErrFailed) || !driver.IsSticky(err) || !errors.As(err, &fault) || fault.Op != tc.op {
			t.Fatalf("error %v, want a sticky one at %q", err, tc.op)
		}
		t.Logf("fault: %v", err)
		e.kv = kv
		if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
			t.Logf("given back on a lost device: %v", err)
		}
		limits.BlockSteps = 0
		d, e = open()
		got, _ := allLogits(t, e, ids, len(ids))
		if distance(got, want) != 0 {
			t.Errorf("after the fault logits differ by %.2g", distance(got, want))
		}
	}
	if err := errors.Join(e.Shutdown(), d.Close()); err != nil {
		t.Error(err)
	}
}
