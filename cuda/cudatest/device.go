package cudatest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest/simt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// Device is a device for one test.
type Device struct {
	Context *driver.Context
	Stream  *driver.Stream
	Builder kernels.Builder
	// Blas is cuBLASLt, or nil.
	Blas *cublaslt.Library
	// Simulated is set on the emulator, which is about ten thousand times slower: use small sizes.
	Simulated bool
	guards    []guarded
}

type guarded struct {
	base  driver.Ptr
	bytes uint64 // between the guards
}

const (
	guardBytes = 256
	guardByte  = 0xA7
)

// Open gives the device. Environment: TRCTL_NVRTC names the NVRTC library to use; TRCTL_TEST_DEVICE is "gpu" to fail
// rather than fall back, or "simt" to take the emulator, also on a machine with a GPU, and to fail without it.
func Open(tb testing.TB) *Device {
	tb.Helper()
	want := os.Getenv("TRCTL_TEST_DEVICE")
	d, err := openGPU(want)
	if err != nil {
		if want == "gpu" {
			tb.Fatalf("no GPU to test on: %v", err)
		}
		var simErr error
		d, simErr = openSimulated()
		if simErr != nil && want == "simt" {
			tb.Fatalf("no emulator to test on: %v", simErr)
		}
		if simErr != nil {
			tb.Skipf("skip: %v; %v", err, simErr)
		}
	}
	if d.Stream, err = d.Context.NewStream(0); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.close(tb) })
	return d
}

func openGPU(want string) (*Device, error) {
	if want == "simt" {
		return nil, errors.New("the emulator was asked for")
	}
	drv, err := driver.Load()
	if err != nil {
		return nil, err
	}
	compiler, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC"), MaxMajor: drv.Version() / 1000})
	if err != nil {
		return nil, err
	}
	cache, err := nvrtc.OpenCache(nvrtc.CacheConfig{Dir: filepath.Join(os.TempDir(), "trctl-test-cubins")})
	if err != nil {
		return nil, err
	}
	builder, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: compiler, Cache: cache})
	if err != nil {
		return nil, err
	}
	ctx, err := retain(drv)
	if err != nil {
		return nil, err
	}
	blas, err := cublaslt.Load(cublaslt.Options{MaxMajor: drv.Version() / 1000})
	if err != nil && !errors.Is(err, cublaslt.ErrNoLibrary) {
		return nil, errors.Join(err, ctx.Close())
	}
	return &Device{Context: ctx, Builder: builder, Blas: blas}, nil
}

func openSimulated() (*Device, error) {
	compiler, err := simt.NewCompiler(filepath.Join(os.TempDir(), "trctl-simt"))
	if err != nil {
		return nil, err
	}
	drv, err := simt.Open()
	if err != nil {
		return nil, err
	}
	ctx, err := retain(drv)
	if err != nil {
		return nil, err
	}
	return &Device{Context: ctx, Builder: compiler, Simulated: true}, nil
}

// retain opens the first GPU.
func retain(drv *driver.Driver) (*driver.Context, error) {
	gpu, err := drv.Device(0)
	if err != nil {
		return nil, err
	}
	return gpu.Retain()
}

// close checks the guards and that nothing else is open.
func (d *Device) close(tb testing.TB) {
	if err := d.Stream.Synchronize(); err != nil {
		tb.Errorf("at the end of the test: %v", err)
	}
	for _, g := range d.guards {
		for _, at := range []driver.Ptr{g.base, g.base + guardBytes + driver.Ptr(g.bytes)} {
			b := make([]byte, guardBytes)
			if err := d.Context.Read(b, at); err != nil {
				tb.Error(err)
				break
			}
			for i, v := range b {
				if v != guardByte {
					tb.Errorf("buffer of %d bytes: guard byte %d of the one at %+d was overwritten", g.bytes, i, int64(at)-int64(g.base))
					break
				}
			}
		}
		if err := d.Context.Free(g.base); err != nil {
			tb.Error(err)
		}
	}
	if err := errors.Join(d.Stream.Close(), d.Context.Close()); err != nil {
		tb.Errorf("device was not left clean: %v", err)
	}
}

// Load builds and loads the kernels, and closes them with the test.
func (d *Device) Load(tb testing.TB, dims kernels.Dims) *kernels.Set {
	tb.Helper()
	set, err := kernels.Load(tb.Context(), d.Context, d.Builder, dims)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := errors.Join(d.Stream.Synchronize(), set.Close()); err != nil {
			tb.Error(err)
		}
	})
	return set
}

// raw gives memory of at least one byte between guards, filled with 0xff: NaN for floats, -1 for integers.
func (d *Device) raw(tb testing.TB, bytes uint64) driver.Ptr {
	tb.Helper()
	rounded := (max(bytes, 1) + 255) / 256 * 256
	base, err := d.Context.Alloc(rounded + 2*guardBytes)
	if err != nil {
		tb.Fatal(err)
	}
	// The buffer's end is at the guard, so an overrun by one element shows; its start stays aligned to 16 bytes.
	at := base + guardBytes
	fill := make([]byte, rounded+2*guardBytes)
	for i := range fill {
		fill[i] = 0xff
		if i < guardBytes || i >= guardBytes+int(bytes) {
			fill[i] = guardByte
		}
	}
	if err := d.Context.Write(base, fill); err != nil {
		tb.Fatal(err)
	}
	d.guards = append(d.guards, guarded{base, bytes})
	return at
}

// Make gives memory for n values, filled with NaN or -1.
func Make[T any](tb testing.TB, d *Device, n int) driver.Ptr {
	tb.Helper()
	var zero T
	return d.raw(tb, uint64(n)*uint64(unsafe.Sizeof(zero)))
}

// Put copies values to the device.
func Put[T any](tb testing.TB, d *Device, values []T) driver.Ptr {
	tb.Helper()
	p := Make[T](tb, d, len(values))
	if err := d.Context.Write(p, driver.Bytes(values)); err != nil {
		tb.Fatal(err)
	}
	return p
}

// Get waits for the stream and copies n values back.
func Get[T any](tb testing.TB, d *Device, p driver.Ptr, n int) []T {
	tb.Helper()
	d.Wait(tb)
	out := make([]T, n)
	if err := d.Context.Read(driver.Bytes(out), p); err != nil {
		tb.Fatal(err)
	}
	return out
}

// Wait waits for the stream and fails the test on an error of earlier work.
func (d *Device) Wait(tb testing.TB) {
	tb.Helper()
	if err := d.Stream.Synchronize(); err != nil {
		tb.Fatal(err)
	}
}
