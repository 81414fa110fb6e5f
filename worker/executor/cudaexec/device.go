package cudaexec

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// ErrContext means that a GPU was opened and its context cannot be used: a fault in this process has spoiled it for good, or
// the GPU needs an operator's hand. A new process may work.
var ErrContext = errors.New("cudaexec: the GPU's context cannot be used")

// DeviceConfig says which GPU to open and with what.
type DeviceConfig struct {
	Ordinal int
	// CubinDir keeps compiled kernels; empty compiles at every start.
	CubinDir string
	// NVRTCPath and CuBLASLtPath name libraries instead of searching.
	NVRTCPath, CuBLASLtPath string
	// NoCuBLASLt leaves all products to our own kernels.
	NoCuBLASLt bool
	// Logger hears of a cuBLASLt that is there and cannot be used. May be nil.
	Logger *slog.Logger
}

// Device is an open GPU that executors share: the primary context, the compiler and cuBLASLt. It is safe for concurrent
// use.
type Device struct {
	ctx     *driver.Context
	builder kernels.Builder
	blas    *cublaslt.Handle // nil without the library
	name    string
	owned   bool
	// watches says that there are processors enough to watch for the ends of its steps all the time.
	watches bool
	// taking is held while memory is taken or given back, and by a model that measures how much that is.
	taking sync.Mutex
}

// OpenDevice opens a GPU. Errors are those of packages driver and nvrtc: driver.ErrNoDriver, driver.ErrNoDevice,
// nvrtc.ErrNoLibrary and so on, and ErrContext. A cuBLASLt that is missing or cannot be initialised is no error.
func OpenDevice(c DeviceConfig) (*Device, error) {
	drv, err := driver.Load()
	if err != nil {
		return nil, err
	}
	major := drv.Version() / 1000
	compiler, err := nvrtc.Load(nvrtc.Options{LibraryPath: c.NVRTCPath, MaxMajor: major})
	if err != nil {
		return nil, err
	}
	build := nvrtc.BuilderConfig{Compiler: compiler}
	if c.CubinDir != "" {
		if build.Cache, err = nvrtc.OpenCache(nvrtc.CacheConfig{Dir: c.CubinDir}); err != nil {
			return nil, err
		}
	}
	builder, err := nvrtc.NewBuilder(build)
	if err != nil {
		return nil, err
	}
	var library *cublaslt.Library
	if !c.NoCuBLASLt {
		library, err = cublaslt.Load(cublaslt.Options{LibraryPath: c.CuBLASLtPath, MaxMajor: major})
		if err != nil && !errors.Is(err, cublaslt.ErrNoLibrary) {
			return nil, err
		}
	}
	return OpenDeviceWith(drv, c.Ordinal, builder, library, c.Logger)
}

// OpenDeviceWith is OpenDevice for parts that are loaded; blas and log may be nil.
func OpenDeviceWith(drv *driver.Driver, ordinal int, b kernels.Builder, blas *cublaslt.Library, log *slog.Logger) (_ *Device, err error) {
	gpu, err := drv.Device(ordinal)
	if err != nil {
		return nil, err
	}
	ctx, err := gpu.Retain()
	if err != nil {
		if driver.IsSticky(err) {
			err = fmt.Errorf("%w: %w", ErrContext, err)
		}
		return nil, err
	}
	d := &Device{ctx: ctx, builder: b, owned: true, watches: runtime.GOMAXPROCS(0) >= watchingCores*drv.DeviceCount()}
	defer func() {
		if err != nil {
			err = joinClose(err, d.Close)
		}
	}()
	if d.name, err = gpu.Name(); err != nil {
		return nil, err
	}
	if err = d.check(); err != nil {
		return nil, err
	}
	if blas == nil {
		return d, nil
	}
	handle, blasErr := blas.NewHandle(ctx, workspaceBytes)
	if blasErr == nil {
		d.blas = handle
		return d, nil
	}
	if err = d.check(); err != nil { // it was not the library's fault
		return nil, err
	}
	if log != nil {
		log.Warn("cuBLASLt is there and cannot be used: our own kernels compute all products", "path", blas.Path(), "err", blasErr)
	}
	return d, nil
}

// NewDevice makes a Device of parts; blas may be nil. The caller keeps the context and closes it after the Device.
func NewDevice(ctx *driver.Context, b kernels.Builder, blas *cublaslt.Library) (*Device, error) {
	name, err := ctx.Device().Name()
	if err != nil {
		return nil, err
	}
	d := &Device{ctx: ctx, builder: b, name: name}
	if blas != nil {
		if d.blas, err = blas.NewHandle(ctx, workspaceBytes); err != nil {
			return nil, fmt.Errorf("open device: %w", err)
		}
	}
	return d, nil
}

// check writes to the device and reads back, so that a context that lives in name only is found here and not by the first
// model.
func (d *Device) check() error {
	want := []byte("trctl")
	got := make([]byte, len(want))
	p, err := d.ctx.Alloc(uint64(len(want)))
	if err == nil {
		err = errors.Join(d.ctx.Write(p, want), d.ctx.Read(got, p), d.ctx.Free(p))
	}
	if err == nil && !bytes.Equal(got, want) {
		err = fmt.Errorf("wrote %q and read %q", want, got)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrContext, err)
	}
	return nil
}

// Name is the product's name.
func (d *Device) Name() string { return d.name }

// UUID is the device's identity, as NVML has it.
func (d *Device) UUID() (string, error) { return d.ctx.Device().UUID() }

// HasCuBLASLt reports whether large products go to the library.
func (d *Device) HasCuBLASLt() bool { return d.blas != nil }

// Memory is the device memory that is free and in all, in bytes.
func (d *Device) Memory() (free, total int64, err error) {
	f, t, err := d.ctx.Memory()
	return int64(f), int64(t), err
}

// alloc takes memory for a model, and free gives it back, unless another model measures what it takes.
func (d *Device) alloc(bytes uint64) (driver.Ptr, error) {
	d.taking.Lock()
	defer d.taking.Unlock()
	return d.ctx.Alloc(bytes)
}

func (d *Device) free(p driver.Ptr) error {
	d.taking.Lock()
	defer d.taking.Unlock()
	return d.ctx.Free(p)
}

// Close releases the device. Executors must have been shut down. A device of OpenDevice whose context is lost is reset, so
// that it can be opened anew: all use of it in this process must have ended, by other values too.
func (d *Device) Close() error {
	var errs []error
	if d.blas != nil {
		errs = append(errs, d.blas.Close())
		d.blas = nil
	}
	if d.owned {
		errs = append(errs, d.ctx.Close())
		if d.ctx.Lost() {
			errs = append(errs, d.ctx.Device().Reset())
		}
		d.owned = false
	}
	return errors.Join(errs...)
}
