package inventory

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

// fakeLibrary answers from fields. It has no versions.
type fakeLibrary struct {
	library
	initErr error
	n       int
	gpus    map[int]GPU
	w       *fakeWatcher
	watchEr error
}

func (l *fakeLibrary) init() error                { return l.initErr }
func (l *fakeLibrary) shutdown() error            { return nil }
func (l *fakeLibrary) count() (int, error)        { return l.n, nil }
func (l *fakeLibrary) watch(int) (watcher, error) { return l.w, l.watchEr }

func (l *fakeLibrary) gpu(i int) (GPU, error) {
	g, ok := l.gpus[i]
	if !ok {
		return GPU{}, fmt.Errorf("%w: index %d", ErrGPULost, i)
	}
	return g, nil
}

// fakeWatcher gives one event a call, then an error, or waits in vain.
type fakeWatcher struct {
	events []Event
	err    error
	closed bool
}

func (w *fakeWatcher) close() error { w.closed = true; return nil }

func (w *fakeWatcher) next(wait time.Duration) (Event, bool, error) {
	if len(w.events) > 0 {
		e := w.events[0]
		w.events = w.events[1:]
		return e, true, nil
	}
	if w.err != nil {
		return Event{}, false, w.err
	}
	<-time.After(wait) // in a synctest bubble: no real time
	return Event{}, false, nil
}

func TestGPUs(t *testing.T) {
	v, err := open(&fakeLibrary{n: 3, gpus: map[int]GPU{0: {UUID: "a"}, 2: {UUID: "c"}}})
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := v.GPUs()
	if len(gpus) != 2 || gpus[0].UUID != "a" || gpus[1].UUID != "c" {
		t.Errorf("got %+v", gpus)
	}
	if !errors.Is(err, ErrGPULost) || !strings.Contains(err.Error(), "GPU 1") {
		t.Errorf("error %v", err)
	}
	for _, n := range []int{-1, maxGPUs + 1} {
		v.lib.(*fakeLibrary).n = n
		if _, err := v.GPUs(); err == nil {
			t.Errorf("%d devices were believed", n)
		}
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func TestOpenFails(t *testing.T) {
	if _, err := open(&fakeLibrary{initErr: fmt.Errorf("%w: x", ErrNoNVML)}); !errors.Is(err, ErrNoNVML) {
		t.Errorf("got %v", err)
	}
}

// Whatever the machine has, Open answers without a crash.
func TestOpenHere(t *testing.T) {
	v, err := Open()
	if errors.Is(err, ErrNotBuilt) {
		if !strings.Contains(err.Error(), "-tags nvml") {
			t.Errorf("%q does not say how to build", err)
		}
		if _, err := (&Inventory{lib: newLibrary()}).GPUs(); !errors.Is(err, ErrNotBuilt) {
			t.Errorf("GPUs: %v", err)
		}
	}
	if err != nil {
		if !errors.Is(err, ErrNoNVML) {
			t.Errorf("got %v, want ErrNoNVML", err)
		}
		return
	}
	if _, err := v.GPUs(); err != nil {
		t.Log(err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func TestWatch(t *testing.T) {
	defer goleak.VerifyNone(t)
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWatcher{events: []Event{{Kind: XID, Code: 79, UUID: "a"}, {Kind: DoubleBit, UUID: "b"}}}
		v, err := open(&fakeLibrary{n: 1, w: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		events := make(chan Event)
		done := make(chan error, 1)
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { done <- v.Watch(ctx, events) })
		if e := <-events; e.Code != 79 || !e.Fatal() {
			t.Errorf("first event %v", e)
		}
		if e := <-events; e.Kind != DoubleBit || e.UUID != "b" {
			t.Errorf("second event %v", e)
		}
		<-time.After(3 * watchWait)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("got %v", err)
		}
		if !w.closed {
			t.Error("watcher was not closed")
		}
	})
}

func TestWatchEndsWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &fakeWatcher{events: []Event{{Kind: XID, Code: 13}}}
		v, err := open(&fakeLibrary{n: 1, w: w})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		var group sync.WaitGroup
		defer group.Wait()
		group.Go(func() { done <- v.Watch(ctx, make(chan Event)) })
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || !w.closed {
			t.Errorf("got %v, closed %v", err, w.closed)
		}
	})
}

func TestWatchErrors(t *testing.T) {
	events := make(chan Event, 1)
	w := &fakeWatcher{err: fmt.Errorf("%w: bus", ErrGPULost)}
	v, err := open(&fakeLibrary{n: 1, w: w})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Watch(t.Context(), events); !errors.Is(err, ErrGPULost) {
		t.Errorf("got %v", err)
	}
	if e := <-events; e.Kind != Lost || !e.Fatal() {
		t.Errorf("event %v", e)
	}
	broken := errors.New("broken")
	w.err = broken
	if err := v.Watch(t.Context(), events); !errors.Is(err, broken) || len(events) != 0 {
		t.Errorf("got %v", err)
	}
	v, err = open(&fakeLibrary{watchEr: broken})
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Watch(t.Context(), events); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestEvent(t *testing.T) {
	tests := []struct {
		e     Event
		fatal bool
		text  string
	}{
		{Event{Kind: XID, Code: 13, UUID: "a"}, false, "Xid 13 (exception of a kernel) on a"},
		{Event{Kind: XID, Code: 79, UUID: "a"}, true, "Xid 79 (GPU has fallen off the bus) on a"},
		{Event{Kind: XID, Code: 9999, UUID: "a"}, true, "Xid 9999 (unknown) on a"},
		{Event{Kind: DoubleBit, UUID: "a"}, true, "uncorrectable memory error on a"},
		{Event{Kind: Lost, Index: 3}, true, "GPU 3 does not answer"},
	}
	for _, tt := range tests {
		if tt.e.Fatal() != tt.fatal || tt.e.String() != tt.text {
			t.Errorf("got %v %q, want %v %q", tt.e.Fatal(), tt.e.String(), tt.fatal, tt.text)
		}
	}
}
