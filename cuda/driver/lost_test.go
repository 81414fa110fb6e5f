package driver_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
)

func TestSticky(t *testing.T) {
	sticky := []driver.Code{4, 214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 999}
	for code := driver.Code(0); code < 1000; code++ {
		if got, want := code.Sticky(), slices.Contains(sticky, code); got != want {
			t.Errorf("code %d: sticky %v, want %v", code, got, want)
		}
	}
	f := drivertest.New(t, drivertest.Options{})
	f.Leaky()
	c := f.MustContext(t, 0)
	s, fn := loaded(t, c, "k")
	f.Poison(driver.CodeIllegalAddress)
	err := driver.LaunchWith(s, fn, &driver.Launch{Grid: driver.X(1), Block: driver.X(1)}, &addParams{})
	var e *driver.Error
	if !errors.As(err, &e) || e.Name != "CUDA_ERROR_ILLEGAL_ADDRESS" || !driver.IsSticky(err) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil || !c.Lost() {
		t.Errorf("closing on a lost context reached the driver: lost %v, %v", c.Lost(), err)
	}
	if c.Live().Streams != 0 {
		t.Error("a stream of a lost context still counts as open")
	}
}

// A lost context takes everything with it, and after a reset the device works.
func TestReset(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{Devices: 2})
	d, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	gpu, err := d.Device(1)
	if err != nil {
		t.Fatal(err)
	}
	f.Fault(1, driver.CodeIllegalAddress)
	other := f.MustContext(t, 0)
	c, closers := everything(t, gpu, nil)
	if err := gpu.Reset(); !errors.Is(err, driver.ErrInUse) {
		t.Errorf("reset under an open context: %v", err)
	}
	if len(closers) != 0 {
		t.Fatal("a lost context gave objects")
	}
	if err := errors.Join(c.Close(), gpu.Reset()); err != nil {
		t.Fatal(err)
	}
	fault := func() { f.Fault(1, driver.CodeIllegalAddress) }
	c, closers = everything(t, gpu, fault)
	before := len(f.Calls())
	for _, closing := range closers {
		if err := closing(); err != nil {
			t.Error(err)
		}
	}
	if calls := f.Calls()[before:]; len(calls) != 0 {
		t.Errorf("closing on a lost context called %v", calls)
	}
	if live := c.Live(); live != (driver.Live{Contexts: 1}) {
		t.Errorf("left: %v", live)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if open := f.Open(); open.Streams != 1 || open.DeviceAllocs != 1 || open.HostAllocs != 1 {
		t.Errorf("what the lost context holds: %+v", open)
	}
	if err := gpu.Reset(); err != nil {
		t.Fatal(err)
	}
	if !f.Called("cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxReset_v2") {
		t.Error("reset before release")
	}
	c, closers = everything(t, gpu, nil)
	for _, closing := range closers {
		if err := closing(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Close(); err != nil || c.Lost() || other.Lost() || len(closers) != 7 {
		t.Errorf("after the reset: %d objects, %v", len(closers), err)
	}
}

// everything opens one object of each kind on a device and returns what closes them, in order; then it calls fault, if
// there is one, and a call notices it. On a context that is lost already it returns no closers.
func everything(t *testing.T, gpu driver.Device, fault func()) (*driver.Context, []func() error) {
	t.Helper()
	c, err := gpu.Retain()
	if err != nil {
		t.Fatal(err)
	}
	p, err := c.Alloc(64)
	if driver.IsSticky(err) {
		return c, nil
	}
	m, err1 := c.HostAlloc(64, false)
	s, err2 := c.NewStream(0)
	e, err3 := c.NewEvent(driver.EventOptions{})
	mod, err4 := c.LoadModule([]byte("image"))
	r, err5 := c.Reserve(2 << 20)
	if err := errors.Join(err, err1, err2, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	x, err := s.Capture(driver.CaptureRelaxed, func() error { return nil })
	if err := errors.Join(err, r.Map(0, 2<<20)); err != nil {
		t.Fatal(err)
	}
	if fault != nil {
		fault()
		if err := s.Synchronize(); !driver.IsSticky(err) || !c.Lost() {
			t.Errorf("after the fault: %v, lost %v", err, c.Lost())
		}
	}
	return c, []func() error{x.Close, r.Close, mod.Close, e.Close, s.Close, m.Close, func() error { return c.Free(p) }}
}
