package cudaexec

import (
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// DeviceConfig says which GPU to open and with what.
type DeviceConfig struct {
	Ordinal int
	// CubinDir keeps compiled kernels; empty compiles at every start.
	CubinDir string
	// NVRTCPath and CuBLASLtPath name libraries instead of searching.
	NVRTCPath, CuBLASLtPath string
	// NoCuBLASLt leaves all products to our own kernels.
	NoCuBLASLt bool
}

// Device is an open GPU that executors share: the primary context, the compiler and cuBLASLt. It is safe for concurrent
// use.
type Device struct {
	ctx     *driver.Context
	builder kernels.Builder
	blas    *cublaslt.Handle // nil without the library
	name    string
	owned   bool
}

// OpenDevice opens a GPU. Errors are those of packages driver and nvrtc: driver.ErrNoDriver, driver.ErrNoDevice,
// nvrtc.ErrNoLibrary and so on. A missing cuBLASLt is no error.
func OpenDevice(c DeviceConfig) (_ *Device, err error) {
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
	gpu, err := drv.Device(c.Ordinal)
	if err != nil {
		return nil, err
	}
	ctx, err := gpu.Retain()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ctx.Close())
		}
	}()
	var library *cublaslt.Library
	if !c.NoCuBLASLt {
		library, err = cublaslt.Load(cublaslt.Options{LibraryPath: c.CuBLASLtPath, MaxMajor: major})
		if err != nil && !errors.Is(err, cublaslt.ErrNoLibrary) {
			return nil, err
		}
	}
	d, err := NewDevice(ctx, builder, library)
	if err != nil {
		return nil, err
	}
	d.owned = true
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

// Name is the product's name.
func (d *Device) Name() string { return d.name }

// HasCuBLASLt reports whether large products go to the library.
func (d *Device) HasCuBLASLt() bool { return d.blas != nil }

// Memory is the device memory that is free and in all, in bytes.
func (d *Device) Memory() (free, total int64, err error) {
	f, t, err := d.ctx.MemInfo()
	return int64(f), int64(t), err
}

// Close releases the device. Executors must have been shut down.
func (d *Device) Close() error {
	var errs []error
	if d.blas != nil {
		errs = append(errs, d.blas.Close())
		d.blas = nil
	}
	if d.owned {
		errs = append(errs, d.ctx.Close())
		d.owned = false
	}
	return errors.Join(errs...)
}
