package engine

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// A real fault on the GPU under a serving pair: both models load again and give the same answer, or the engine ends with
// ErrDeviceLost. Lines that begin with "recovery:" tell which. Run it alone: TRCTL_TEST_FAULT says so.
func TestFaultOnGPU(t *testing.T) {
	if os.Getenv("TRCTL_TEST_FAULT") == "" {
		t.Skip("skip: the fault would spoil other tests; set TRCTL_TEST_FAULT and run this test alone on a GPU")
	}
	cfg := Defaults()
	cfg.Device, cfg.CUDA = "cuda", CUDA{NVRTC: os.Getenv("TRCTL_NVRTC"), CubinDir: t.TempDir()}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	request := Request{Model: "tiny", Prompt: "What is 3 plus 4?", MaxTokens: 32}
	want, err := ask(e, request)
	if err != nil {
		t.Fatal(err)
	}
	illegalAccess(t)
	began := time.Now()
	for again := time.NewTicker(50 * time.Millisecond); ; <-again.C {
		got, err := ask(e, request)
		if err == nil {
			if d := differs(got, want); d != "" {
				t.Errorf("after the fault: %s", d)
			}
			t.Logf("recovery: the pair answers again after %v", time.Since(began))
			break
		}
		if errors.Is(err, ErrClosed) || time.Since(began) > time.Minute {
			t.Logf("recovery: NONE, the last request ended after %v with: %v", time.Since(began), err)
			if err := e.Close(); !errors.Is(err, ErrDeviceLost) {
				t.Errorf("the engine ended with %v, want ErrDeviceLost", err)
			}
			return
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// illegalAccess lets a kernel write where nothing is mapped, in the context that all of this process share.
func illegalAccess(t *testing.T) {
	t.Helper()
	drv, err := driver.Load()
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := drv.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	arch, err := gpu.Arch()
	if err != nil {
		t.Fatal(err)
	}
	compiler, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC"), MaxMajor: drv.Version() / 1000})
	if err != nil {
		t.Fatal(err)
	}
	builder, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: compiler})
	if err != nil {
		t.Fatal(err)
	}
	source := `extern "C" __global__ void wild() { *(volatile int *)(1ull << 44) = 1; }`
	binaries, _, err := builder.Build(context.Background(), []nvrtc.Program{{Name: "wild.cu", Source: source, Arch: arch}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := gpu.Retain()
	if err != nil {
		t.Fatal(err)
	}
	m, err := c.LoadModule(binaries[0].Cubin)
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function("wild")
	if err != nil {
		t.Fatal(err)
	}
	s, err := c.NewStream(0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(s.LaunchRaw(f, &driver.Launch{Grid: driver.X(1), Block: driver.X(1)}, nil, 0), s.Synchronize())
	if !driver.IsSticky(err) {
		t.Fatalf("the kernel gave %v, want a sticky error", err)
	}
	t.Logf("fault: %v", err)
	if err := errors.Join(s.Close(), m.Close(), c.Close()); err != nil {
		t.Log(err)
	}
}
