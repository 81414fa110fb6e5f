package driver_test

import (
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
)

func TestGraph(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{ParamBytes: 8})
	c := f.MustContext(t, 0)
	s, fn := loaded(t, c, "k")
	l := &driver.Launch{Grid: driver.X(1), Block: driver.X(32)}
	value := uint64(5)
	x, err := s.Capture(driver.CaptureRelaxed, func() error {
		return errors.Join(driver.LaunchWith(s, fn, l, &value), driver.LaunchWith(s, fn, l, &value))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(x.Upload(s), x.Launch(s), x.Launch(s), s.Synchronize()); err != nil {
		t.Fatal(err)
	}
	captured, replayed := 0, 0
	for _, got := range f.Launches() {
		if got.Captured {
			captured++
		}
		if got.Replay {
			replayed++
		}
	}
	if captured != 2 || replayed != 4 {
		t.Errorf("captured %d, replayed %d", captured, replayed)
	}
	if !f.Called("cuStreamBeginCapture_v2", "cuLaunchKernelEx", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
		"cuGraphDestroy", "cuGraphUpload", "cuGraphLaunch", "cuStreamSynchronize") {
		t.Errorf("order of calls: %v", f.Calls())
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if x.Launch(s) == nil || x.Close() == nil {
		t.Error("closed executable still works")
	}
}

func TestGraphErrors(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	s, _ := loaded(t, f.MustContext(t, 0), "k")
	mistake := errors.New("mistake")
	if _, err := s.Capture(driver.CaptureThread, func() error { return mistake }); !errors.Is(err, mistake) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Capture(driver.CaptureThread, s.Synchronize); err == nil {
		t.Error("waiting during a capture was accepted")
	}
	f.Fail("cuGraphInstantiateWithFlags", 1, driver.CodeOutOfMemory)
	if _, err := s.Capture(driver.CaptureThread, func() error { return nil }); !driver.IsOutOfMemory(err) {
		t.Errorf("got %v", err)
	}
	if open := f.Open(); open.Graphs != 0 || open.GraphExecs != 0 {
		t.Errorf("graphs left: %+v", open)
	}
	if err := s.Synchronize(); err != nil {
		t.Errorf("stream is not usable after a failed capture: %v", err)
	}
}

func TestEvents(t *testing.T) {
	f := drivertest.New(t, drivertest.Options{})
	c := f.MustContext(t, 0)
	s, _ := loaded(t, c, "k")
	a, errA := c.NewEvent(driver.EventOptions{Timing: true})
	b, errB := c.NewEvent(driver.EventOptions{Timing: true, Blocking: true})
	plain, errP := c.NewEvent(driver.EventOptions{})
	if err := errors.Join(errA, errB, errP); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Record(s), b.Record(s), plain.Record(s), s.WaitFor(plain), b.Wait()); err != nil {
		t.Fatal(err)
	}
	if took, err := b.Since(a); err != nil || took <= 0 {
		t.Errorf("took %v, %v", took, err)
	}
	if _, err := plain.Since(a); err == nil {
		t.Error("an event without timing gave a time")
	}
	f.Busy(2)
	if done, err := b.Done(); done || err != nil {
		t.Errorf("busy event: %v %v", done, err)
	}
	if done, err := s.Done(); done || err != nil {
		t.Errorf("busy stream: %v %v", done, err)
	}
	if done, err := s.Done(); !done || err != nil {
		t.Errorf("idle stream: %v %v", done, err)
	}
	if err := errors.Join(a.Close(), b.Close(), plain.Close()); err != nil {
		t.Error(err)
	}
}
