package drivertest

import (
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// Options shapes the simulated driver. The zero value is one H200-like device with 1 GiB and CUDA 13.0, which cannot
// say the size of kernel parameters.
type Options struct {
	// Version is the CUDA version, 13000 by default; Devices the number of GPUs, 1 by default, and 0 when negative.
	Version, Devices int
	// Memory is the size of each device in bytes, 1 GiB by default. It only bounds; nothing is taken in advance.
	Memory uint64
	// GraphBytes is the device memory that each executable graph takes.
	GraphBytes uint64
	// ParamBytes is the parameter size that every kernel declares. 0 means that the driver cannot say, and a negative
	// number that kernels take no parameter.
	ParamBytes int
	// Without names symbols that the library lacks.
	Without []string
}

// Launch is one recorded launch of a kernel.
type Launch struct {
	Kernel               string
	Grid, Block, Cluster driver.Dim
	SharedBytes          uint32
	PDL, Cooperative     bool
	// Captured is set when the launch went into a graph, Replay when a graph's launch ran it.
	Captured, Replay bool
	// Stream is the handle of the stream.
	Stream uintptr
	// Params is the parameter block: of the declared size, or padded with zeros to driver.MaxParamBytes when the
	// driver cannot say it.
	Params []byte
}

// Open counts what is open, as the simulated driver itself sees it.
type Open struct {
	Contexts, DeviceAllocs, HostAllocs, Reservations, Mappings, Streams, Events, Modules, Graphs, GraphExecs int
}

// Fake controls the simulated driver.
type Fake struct {
	table fakeTable
}

// New starts a simulated driver for the test and checks at its end that nothing is left open, unless the test failed
// or called Leaky.
func New(tb testing.TB, o Options) *Fake {
	tb.Helper()
	if o.Version == 0 {
		o.Version = 13000
	}
	if o.Devices == 0 {
		o.Devices = 1
	}
	if o.Memory == 0 {
		o.Memory = 1 << 30
	}
	f := &Fake{}
	f.table.start(tb, o)
	tb.Cleanup(func() {
		if open := f.Open(); open != (Open{}) && !f.table.leaky && !tb.Failed() {
			tb.Errorf("left open on the device: %+v", open)
		}
		f.table.stop()
	})
	return f
}

// Load makes a Driver over the simulated functions; it fails as driver.Load does.
func (f *Fake) Load() (*driver.Driver, error) { return driver.NewFromTable(f.table.pointer()) }

// MustContext loads the driver and retains the context of a device; the test's end closes it.
func (f *Fake) MustContext(tb testing.TB, ordinal int) *driver.Context {
	tb.Helper()
	d, err := f.Load()
	if err != nil {
		tb.Fatal(err)
	}
	device, err := d.Device(ordinal)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, err := device.Retain()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := ctx.Close(); err != nil && !f.table.leaky && !tb.Failed() {
			tb.Errorf("close context: %v", err)
		}
	})
	return ctx
}

// Leaky switches off the check at the test's end, for tests that leave a failed device behind.
func (f *Fake) Leaky() { f.table.leaky = true }

// Fail makes the nth next call of a driver function, counted from 1, return a code.
func (f *Fake) Fail(function string, nth int, code driver.Code) {
	f.table.fail(function, nth, int(code))
}

// Poison makes every later call return a code, with or without a context; 0 ends it.
func (f *Fake) Poison(code driver.Code) { f.table.poison(int(code)) }

// Fault makes every later call in a device's primary context return a code, as after a kernel's fault, until the context
// is reset; retaining and releasing work, as on the device.
func (f *Fake) Fault(ordinal int, code driver.Code) { f.table.fault(ordinal, int(code)) }

// MissingKernel makes the look-up of one kernel fail.
func (f *Fake) MissingKernel(name string) { f.table.missingKernel(name) }

// Busy makes the next polls of a stream or event report unfinished work.
func (f *Fake) Busy(polls int) { f.table.busy(polls) }

// Calls lists the driver functions called, oldest first, without cuCtxSetCurrent. At most 8192 are kept.
func (f *Fake) Calls() []string { return f.table.calls() }

// Count is the number of calls of one function.
func (f *Fake) Count(function string) int {
	n := 0
	for _, name := range f.Calls() {
		if name == function {
			n++
		}
	}
	return n
}

// Called reports whether the functions were called in this order, with others between.
func (f *Fake) Called(functions ...string) bool {
	calls := f.Calls()
	for _, name := range functions {
		i := slices.Index(calls, name)
		if i < 0 {
			return false
		}
		calls = calls[i+1:]
	}
	return true
}

// Launches lists the kernels launched, captured and replayed, oldest first. At most 1024 are kept.
func (f *Fake) Launches() []Launch { return f.table.launches() }

// Open counts what is open now.
func (f *Fake) Open() Open { return f.table.open() }
