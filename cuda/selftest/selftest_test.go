package selftest

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// On a machine with a GPU this is the test; elsewhere it says what is missing.
func TestRun(t *testing.T) {
	var out strings.Builder
	err := Run(t.Context(), &out)
	t.Logf("\n%s", out.String())
	for _, missing := range []error{driver.ErrNoDriver, driver.ErrNoDevice, driver.ErrOldDriver, nvrtc.ErrNoLibrary} {
		if errors.Is(err, missing) {
			t.Skip(err)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// fakeEnvironment is a simulated device, on which kernels do not run.
func fakeEnvironment(t *testing.T, o drivertest.Options) (environment, *drivertest.Fake) {
	f := drivertest.New(t, o)
	lt := cublaslttest.New(t, cublaslttest.Options{})
	return environment{
		loadDriver:  f.Load,
		compile:     func(string, int) ([]byte, string, error) { return []byte("cubin"), "simulated", nil },
		loadLibrary: func(int) (*cublaslt.Library, error) { return lt.Load() },
		wait:        2 * time.Millisecond,
		rounds:      10,
		bytes:       1 << 20,
		shapes:      []gemmShape{{3, 40, 24}},
	}, f
}

// Kernels that never run are noticed by each part that needs one; the others pass, the run ends in time, and nothing
// is left open.
func TestKernelsThatDoNotRun(t *testing.T) {
	env, _ := fakeEnvironment(t, drivertest.Options{Memory: 1 << 30})
	var out strings.Builder
	err := run(t.Context(), &out, env)
	if err == nil {
		t.Fatal("the self-test passed without kernels")
	}
	for _, part := range []string{"vector add: ", "reduction: ", "graph replay: ", "flag latency: ", "ping-pong: "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not among the failures:\n%v", part, err)
		}
	}
	for _, part := range []string{"mapped memory: ", "launch latency: ", "graph nodes: ", "bandwidth: ", "cuBLASLt: ", "left open", "stuck"} {
		if strings.Contains(err.Error(), part) {
			t.Errorf("%q is among the failures:\n%v", part, err)
		}
	}
	for _, line := range []string{"graph launch + stream synchronise", "device copy", "correct; granule 2048 KiB", "skipped: there is one device", "FAILED in"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is missing from the table:\n%s", line, out.String())
		}
	}
}

func TestPeers(t *testing.T) {
	env, _ := fakeEnvironment(t, drivertest.Options{Devices: 2, Memory: 1 << 30})
	var out strings.Builder
	if err := run(t.Context(), &out, env); err == nil || strings.Contains(err.Error(), "peers: ") {
		t.Errorf("got %v", err)
	}
	if !strings.Contains(out.String(), "peer copy 0 → 1") {
		t.Errorf("no peer copy in\n%s", out.String())
	}
}

func TestLostContextEndsTheRun(t *testing.T) {
	env, f := fakeEnvironment(t, drivertest.Options{})
	f.Leaky()
	f.Fail("cuLaunchKernelEx", 1, driver.CodeIllegalAddress)
	var out strings.Builder
	err := run(t.Context(), &out, env)
	if !driver.IsSticky(err) || strings.Contains(err.Error(), "reduction") {
		t.Errorf("got %v", err)
	}
}

func TestStuckDevice(t *testing.T) {
	env, f := fakeEnvironment(t, drivertest.Options{})
	f.Leaky()
	f.Busy(1 << 30)
	var out strings.Builder
	err := run(t.Context(), &out, env)
	if !errors.Is(err, errStuck) || f.Count("cuMemFree_v2") != 0 {
		t.Errorf("got %v, %d frees", err, f.Count("cuMemFree_v2"))
	}
}

func TestSetUpFails(t *testing.T) {
	env, _ := fakeEnvironment(t, drivertest.Options{})
	env.compile = func(string, int) ([]byte, string, error) { return nil, "", fmt.Errorf("%w: x", nvrtc.ErrNoLibrary) }
	var out strings.Builder
	if err := run(t.Context(), &out, env); !errors.Is(err, nvrtc.ErrNoLibrary) || !strings.Contains(out.String(), "FAILED") {
		t.Errorf("got %v and\n%s", err, out.String())
	}
	env.loadDriver = func() (*driver.Driver, error) { return nil, driver.ErrNoDriver }
	if err := run(t.Context(), &out, env); !errors.Is(err, driver.ErrNoDriver) {
		t.Errorf("got %v", err)
	}
}

// Every kernel compiles for every architecture, spills nothing, and Go's parameter structs have the sizes that the
// source asserts.
func TestKernelsCompile(t *testing.T) {
	c, err := nvrtc.Load(nvrtc.Options{})
	if err != nil {
		t.Skipf("NVRTC is not installed: %v", err)
	}
	for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
		b, err := c.Compile(program(arch))
		if err != nil {
			t.Fatal(err)
		}
		usage := b.Usage()
		if len(usage) != 6 {
			t.Errorf("%s: %d kernels in the log\n%s", arch, len(usage), b.Log)
		}
		for _, u := range usage {
			if u.SpillStoreBytes != 0 || u.SpillLoadBytes != 0 || u.StackBytes != 0 || u.Registers > 64 {
				t.Errorf("%s: %+v", arch, u)
			}
		}
	}
}

func TestParamSizes(t *testing.T) {
	for name, got := range map[string]uintptr{
		"AddParams": unsafe.Sizeof(addParams{}), "ReduceParams": unsafe.Sizeof(reduceParams{}), "FlagParams": unsafe.Sizeof(flagParams{}),
		"PingParams": unsafe.Sizeof(pingParams{}), "ReadParams": unsafe.Sizeof(readParams{}),
	} {
		if !strings.Contains(kernelSource, fmt.Sprintf("static_assert(sizeof(%s) == %d,", name, got)) {
			t.Errorf("%s has %d bytes in Go, which the source does not assert", name, got)
		}
	}
}

func TestReference(t *testing.T) {
	s := gemmShape{t: 2, n: 3, k: 4}
	x, w := noises(1, s.t*s.k), noises(2, s.n*s.k)
	got := reference(s, x, w)
	for i := range s.t {
		for j := range s.n {
			want := 0.0
			for l := range s.k {
				want += widen(x[i*s.k+l]) * widen(w[j*s.k+l])
			}
			if got[i*s.n+j] != want {
				t.Errorf("[%d, %d] is %g, want %g", i, j, got[i*s.n+j], want)
			}
		}
	}
	if d := distance([]float64{3, 4}, []float64{3, 4}); d != 0 {
		t.Errorf("distance %g", d)
	}
	if d := distance([]float64{0, 0}, []float64{3, 4}); d != 1 {
		t.Errorf("distance %g", d)
	}
}

func TestRoundBF16(t *testing.T) {
	for f, want := range map[float32]uint16{1: 0x3f80, -2: 0xc000, 0: 0, math.Float32frombits(0x3f808000): 0x3f80,
		math.Float32frombits(0x3f818000): 0x3f82, math.Float32frombits(0x3f808001): 0x3f81} {
		if got := roundBF16(f); got != want {
			t.Errorf("%g: %#x, want %#x", f, got, want)
		}
	}
	sum := 0.0
	for i := range uint32(10000) {
		v := widen(noise(3, i))
		if v < -1 || v > 1 {
			t.Fatalf("noise %g", v)
		}
		sum += v
	}
	if math.Abs(sum/10000) > 0.05 {
		t.Errorf("mean of the noise is %g", sum/10000)
	}
}

func TestQuantiles(t *testing.T) {
	if got := quantiles(nil); got != "no samples" {
		t.Error(got)
	}
	var d []time.Duration
	for i := range 100 {
		d = append(d, time.Duration(99-i)*time.Microsecond)
	}
	if got := quantiles(d); got != "50.00 µs median, 99.00 µs p99 (100)" {
		t.Error(got)
	}
}
