package selftest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

//go:embed kernels.cu
var kernelSource string

// limit bounds a whole run.
const limit = 55 * time.Second

// environment is what a run works with; tests replace parts of it.
type environment struct {
	loadDriver  func() (*driver.Driver, error)
	compile     func(arch string, driverMajor int) (cubin []byte, note string, err error)
	loadLibrary func(driverMajor int) (*cublaslt.Library, error)
	// wait bounds each wait for the device.
	wait time.Duration
	// rounds is the number of samples of a latency; bytes the size of the buffers for bandwidths.
	rounds int
	bytes  uint64
	shapes []gemmShape
}

// Run tests the first GPU and the links from it to its peers, and writes a table to w. The error joins those of the
// parts that failed; without a driver or a GPU it wraps driver.ErrNoDriver or driver.ErrNoDevice.
func Run(ctx context.Context, w io.Writer) error {
	return run(ctx, w, environment{
		loadDriver: driver.Load,
		compile:    compile,
		loadLibrary: func(major int) (*cublaslt.Library, error) {
			return cublaslt.Load(cublaslt.Options{MaxMajor: major})
		},
		wait:   5 * time.Second,
		rounds: 2000,
		bytes:  1 << 30,
		shapes: gemmShapes(),
	})
}

// program is the self-test's source for an architecture.
func program(arch string) nvrtc.Program {
	return nvrtc.Program{Name: "selftest.cu", Source: kernelSource, Arch: arch}
}

func compile(arch string, driverMajor int) ([]byte, string, error) {
	c, err := nvrtc.Load(nvrtc.Options{MaxMajor: driverMajor})
	if err != nil {
		return nil, "", err
	}
	start := time.Now()
	b, err := c.Compile(program(arch))
	if err != nil {
		return nil, "", err
	}
	note := fmt.Sprintf("NVRTC %s, %d bytes, %v", c.Version(), len(b.Cubin), time.Since(start).Round(time.Millisecond))
	return b.Cubin, note, nil
}

// rig holds what the parts share. Close releases it.
type rig struct {
	env    environment
	out    io.Writer
	driver *driver.Driver
	device driver.Device
	ctx    *driver.Context
	stream *driver.Stream
	module *driver.Module
	kernel map[string]*driver.Function
	closes []func() error
}

// line prints one row of the table.
func (r *rig) line(name, value string) { fmt.Fprintf(r.out, "%-44s %s\n", name, value) }

// later adds a release; they run last in, first out.
func (r *rig) later(closeIt func() error) { r.closes = append(r.closes, closeIt) }

// errStuck means that work is still on the device after the limit. Freeing would wait for it, so nothing is freed and
// the run ends.
var errStuck = errors.New("device is stuck")

// scope runs a part and releases what it made.
func (r *rig) scope(part func() error) error {
	base := len(r.closes)
	err := part()
	if err != nil && !driver.IsSticky(err) && !errors.Is(err, errStuck) {
		// Work may still be queued on what is about to be freed.
		if waitErr := r.wait(context.Background()); waitErr != nil {
			err = errors.Join(err, fmt.Errorf("%w: %w", errStuck, waitErr))
		}
	}
	if errors.Is(err, errStuck) {
		r.closes = nil
		return err
	}
	return errors.Join(err, r.release(base))
}

func (r *rig) release(base int) error {
	var errs []error
	for len(r.closes) > base {
		last := len(r.closes) - 1
		closeIt := r.closes[last]
		r.closes = r.closes[:last]
		errs = append(errs, closeIt())
	}
	return errors.Join(errs...)
}

// errSkipped is a part that this machine cannot run; it is printed and is no failure.
var errSkipped = errors.New("skipped")

func run(ctx context.Context, w io.Writer, env environment) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("self-test took longer than %v", limit))
	defer cancel()
	start := time.Now()
	r := &rig{env: env, out: w, kernel: make(map[string]*driver.Function)}
	err := r.setUp()
	if err != nil {
		r.line("set-up", "FAILED: "+err.Error())
		return errors.Join(fmt.Errorf("self-test: %w", err), r.release(0))
	}
	var errs []error
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"vector add", r.checkAdd}, {"reduction", r.checkReduce}, {"graph replay", r.checkGraph}, {"mapped memory", r.checkMapping},
		{"launch latency", r.launchLatency}, {"flag latency", r.flagLatency}, {"ping-pong", r.pingPong},
		{"graph nodes", r.nodeCost}, {"bandwidth", r.bandwidth}, {"cuBLASLt", r.checkGEMM}, {"peers", r.peers},
	} {
		if err := context.Cause(ctx); err != nil {
			errs = append(errs, err)
			break
		}
		err := r.scope(func() error { return part.run(ctx) })
		switch {
		case errors.Is(err, errSkipped):
			r.line(part.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		case err != nil:
			r.line(part.name, "FAILED: "+err.Error())
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
		}
		if driver.IsSticky(err) || errors.Is(err, errStuck) {
			break
		}
	}
	errs = append(errs, r.release(0))
	if live := r.driver.Live(); live != (driver.Live{}) {
		errs = append(errs, fmt.Errorf("left open: %v", live))
	}
	err = errors.Join(errs...)
	verdict := "passed"
	if err != nil {
		verdict = "FAILED"
	}
	r.line("self-test", fmt.Sprintf("%s in %v", verdict, time.Since(start).Round(time.Millisecond)))
	if err != nil {
		return fmt.Errorf("self-test: %w", err)
	}
	return nil
}

// setUp opens driver, device, context, stream and kernels.
func (r *rig) setUp() error {
	var err error
	if r.driver, err = r.env.loadDriver(); err != nil {
		return err
	}
	if r.device, err = r.driver.Device(0); err != nil {
		return err
	}
	name, errName := r.device.Name()
	arch, errArch := r.device.Arch()
	memory, errMemory := r.device.TotalMemory()
	sms, errSMs := r.device.Attribute(driver.MultiprocessorCount)
	if err := errors.Join(errName, errArch, errMemory, errSMs); err != nil {
		return err
	}
	r.line("driver", fmt.Sprintf("CUDA %s, %d device(s)", r.driver.VersionText(), r.driver.DeviceCount()))
	r.line("device 0", fmt.Sprintf("%s, %s, %d SMs, %.1f GB, %.2f TB/s nominal", name, arch, sms, float64(memory)/1e9, r.device.PeakBandwidth()/1e12))
	start := time.Now()
	if r.ctx, err = r.device.Retain(); err != nil {
		return err
	}
	r.later(r.ctx.Close)
	r.line("retain context", time.Since(start).Round(time.Millisecond).String())
	if r.stream, err = r.ctx.NewStream(0); err != nil {
		return err
	}
	r.later(r.stream.Close)
	cubin, note, err := r.env.compile(arch, r.driver.Version()/1000)
	if err != nil {
		return err
	}
	r.line("compile kernels", note)
	if r.module, err = r.ctx.LoadModule(cubin); err != nil {
		return err
	}
	r.later(r.module.Close)
	for _, name := range []string{"add", "reduce", "empty", "flag", "ping", "read"} {
		if r.kernel[name], err = r.module.Function(name); err != nil {
			return err
		}
		if bytes, known := r.kernel[name].ParamBytes(); known && name == "add" {
			r.line("parameter size of add, by the driver", fmt.Sprintf("%d bytes", bytes))
		}
	}
	return nil
}

// wait polls the stream until its work has ended, at most env.wait, so that a kernel that hangs cannot hang the test.
func (r *rig) wait(ctx context.Context) error { return r.waitFor(ctx, r.stream.Done) }

func (r *rig) waitFor(ctx context.Context, done func() (bool, error)) error {
	deadline := time.Now().Add(r.env.wait)
	for i := 0; ; i++ {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if i%256 == 255 {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("device did not answer within %v", r.env.wait)
			}
		}
	}
}

// alloc reserves device memory until the end of the part.
func (r *rig) alloc(bytes uint64) (driver.Ptr, error) {
	p, err := r.ctx.Alloc(bytes)
	if err == nil {
		r.later(func() error { return r.ctx.Free(p) })
	}
	return p, err
}

// host reserves pinned memory until the end of the part.
func (r *rig) host(bytes uint64) (*driver.HostMem, error) {
	m, err := r.ctx.HostAlloc(bytes, false)
	if err == nil {
		r.later(m.Close)
	}
	return m, err
}

// capture records a graph that lives until the end of the part.
func (r *rig) capture(record func() error) (*driver.GraphExec, error) {
	x, err := r.stream.Capture(driver.CaptureRelaxed, record)
	if err == nil {
		r.later(x.Close)
	}
	return x, err
}

// quantiles is the median and the 99th percentile of samples.
func quantiles(samples []time.Duration) string {
	if len(samples) == 0 {
		return "no samples"
	}
	sorted := slices.Sorted(slices.Values(samples))
	at := func(q float64) time.Duration { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return fmt.Sprintf("%.2f µs median, %.2f µs p99 (%d)", us(at(0.5)), us(at(0.99)), len(sorted))
}
