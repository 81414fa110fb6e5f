package inventory

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// fakeLibrary answers from fields. It has no versions.
type fakeLibrary struct {
	library
	initErr error
	ended   int
	n       int
	gpus    map[int]GPU
	set     *fakeSet
	setErr  error
}

func (l *fakeLibrary) init() error               { return l.initErr }
func (l *fakeLibrary) shutdown() error           { l.ended++; return nil }
func (l *fakeLibrary) count() (int, error)       { return l.n, nil }
func (l *fakeLibrary) events() (eventSet, error) { return l.set, l.setErr }

func (l *fakeLibrary) gpu(i int) (GPU, error) {
	g, ok := l.gpus[i]
	if !ok {
		return GPU{}, fmt.Errorf("%w: index %d", ErrGPULost, i)
	}
	return g, nil
}

// fakeSet has one event and one error.
type fakeSet struct {
	e      Event
	err    error
	closed bool
}

func (s *fakeSet) add(string) error                        { return s.err }
func (s *fakeSet) close() error                            { s.closed = true; return nil }
func (s *fakeSet) next(time.Duration) (Event, bool, error) { return s.e, s.err == nil, s.err }

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

// Events say what went wrong with what, and end NVML with them.
func TestEvents(t *testing.T) {
	broken := errors.New("broken")
	l := &fakeLibrary{set: &fakeSet{e: Event{Kind: XID, Code: 79, UUID: "a"}}}
	events, err := openEvents(l)
	if err != nil {
		t.Fatal(err)
	}
	if err := events.Add("a"); err != nil {
		t.Error(err)
	}
	if e, ok, err := events.Next(time.Second); e.Code != 79 || !ok || err != nil {
		t.Errorf("got %v, %v, %v", e, ok, err)
	}
	l.set.err = broken
	if err := events.Add("a"); !errors.Is(err, broken) || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("Add: %v", err)
	}
	if _, ok, err := events.Next(time.Second); ok || !errors.Is(err, broken) {
		t.Errorf("Next: %v, %v", ok, err)
	}
	if err := events.Close(); err != nil || !l.set.closed || l.ended != 1 {
		t.Errorf("Close: %v, %v, ended %d times", err, l.set.closed, l.ended)
	}
	l.setErr = broken
	if _, err := openEvents(l); !errors.Is(err, broken) || l.ended != 2 {
		t.Errorf("events that cannot be made: %v, ended %d times", err, l.ended)
	}
	l.initErr = ErrNoNVML
	if _, err := openEvents(l); !errors.Is(err, ErrNoNVML) || l.ended != 2 {
		t.Errorf("no library: %v, ended %d times", err, l.ended)
	}
	if events, err := OpenEvents(); err != nil {
		if !errors.Is(err, ErrNoNVML) {
			t.Errorf("here: %v", err)
		}
	} else if err := events.Close(); err != nil {
		t.Error(err)
	}
}
