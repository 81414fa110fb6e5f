package engine

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
)

// ward is an engine with a placement on one simulated GPU, whose owner keeps GPUs in
// quarantine.
type ward struct {
	t         *testing.T
	e         *Engine
	source    *reported
	opened    chan struct{}
	condemned chan inventory.Event
	changed   chan struct{}
	placement Placement
	lift      bool // the owner lifts each quarantine at once

	mu    sync.Mutex // held while an assignment is made
	known []faults.Device
}

func newWard(t *testing.T, watched ...faults.Device) *ward {
	w := &ward{t: t, source: newReported(), opened: make(chan struct{}, 16), condemned: make(chan inventory.Event, 16), changed: make(chan struct{}, 1)}
	cfg := Defaults()
	simulated(t, &cfg, 8<<30, w.opened)
	cfg.Models, cfg.Deployments, cfg.GPUs = nil, nil, nil
	cfg.KVTokens, cfg.Network, cfg.DrainTimeout = 4096, newNetwork(), 10*time.Second
	cfg.Faults = func() (faults.Events, error) { return w.source, nil }
	cfg.Watched = watched
	cfg.Quarantine = func(d faults.Device, e inventory.Event, bar func()) {
		w.mu.Lock()
		w.known = append(w.known, d)
		bar()
		w.mu.Unlock()
		if w.lift {
			w.assign(nil)
		}
		w.condemned <- e
	}
	cfg.Notify = func() {
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.e = e
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	seed := uint64(1)
	w.placement = Placement{Name: "s", Generation: 1, Model: Model{Name: "tiny-s", Dummy: &seed}, GPUs: []int{0}}
	return w
}

func (w *ward) assign(barred map[int]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.e.Assign(Assignment{Placements: []Placement{w.placement}, Barred: barred})
}

// await waits until the replica has a phase, and a part of a reason.
func (w *ward) await(phase cluster.Phase, why string) {
	w.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	for {
		for _, r := range w.e.Reports() {
			if r.Phase == phase && strings.Contains(r.Reason, why) {
				return
			}
		}
		select {
		case <-w.changed:
		case <-w.e.closing:
			w.t.Fatal("the engine has ended")
		case <-deadline.C:
			w.t.Fatalf("waited in vain for %s %q: %+v", phase, why, w.e.Reports())
		}
	}
}

// arrived waits for what comes by a channel.
func arrived[T any](w *ward, what string, c <-chan T) (v T) {
	w.t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	select {
	case v = <-c:
	case <-w.e.closing:
		w.t.Fatal("the engine has ended")
	case <-deadline.C:
		w.t.Fatalf("waited in vain for %s: %+v", what, w.e.Reports())
	}
	return v
}

// opens waits until the GPU is opened.
func (w *ward) opens() {
	w.t.Helper()
	arrived(w, "the GPU to be opened", w.opened)
}

// open says whether the process has the GPU open.
func (w *ward) open() bool {
	w.e.gpus.mu.Lock()
	defer w.e.gpus.mu.Unlock()
	d := w.e.gpus.devices[0]
	return d != nil && d.device != nil
}

// A GPU in quarantine is let go of, and used again when the quarantine is lifted, all
// without an end of the engine. What the engine hears itself holds before its owner has
// said anything.
func TestQuarantine(t *testing.T) {
	w := newWard(t)
	w.assign(nil)
	w.opens()
	w.await(cluster.Ready, "")
	uuid := arrived(w, "the GPU to be watched", w.source.added)
	tell := func(code uint64) {
		w.source.queue <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: code}
		if e := arrived(w, "the fault to be told", w.condemned); e.Code != code {
			t.Errorf("told of %v, want Xid %d", e, code)
		}
	}
	// By hand, or after a fault that leaves the GPU working: in order.
	w.assign(map[int]string{0: "by an operator"})
	w.await(cluster.Failed, "GPU 0: it is in quarantine: by an operator")
	if w.open() {
		t.Error("the GPU is open")
	}
	w.assign(nil)
	w.opens()
	w.await(cluster.Ready, "")
	tell(64)
	w.assign(map[int]string{0: "Xid 64"})
	w.await(cluster.Failed, "Xid 64")
	w.assign(nil)
	w.opens()
	w.await(cluster.Ready, "")
	// A fault that spoils the GPU, although it was opened just now: at once.
	tell(79)
	w.await(cluster.Failed, "")
	w.assign(map[int]string{0: "Xid 79"})
	w.await(cluster.Failed, "GPU 0: it is in quarantine: Xid 79")
	if len(w.opened) != 0 {
		t.Error("the GPU was opened although it is in quarantine")
	}
	if w.known[0].Ordinal != 0 || w.known[0].UUID != uuid {
		t.Errorf("told of %+v", w.known)
	}
	w.assign(nil)
	w.opens()
	w.await(cluster.Ready, "")
	// Other faults are no reason.
	w.source.queue <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: 94}
	w.source.queue <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: 13}
	if len(w.condemned) != 0 {
		t.Error("a contained memory error was a reason for quarantine")
	}
}

// A GPU that is in quarantine from the start is not opened; it is watched all the same, if
// the owner wants that.
func TestQuarantineFromTheStart(t *testing.T) {
	w := newWard(t, faults.Device{Ordinal: 0, UUID: "GPU-x", Name: "H200"})
	if uuid := arrived(w, "the GPU to be watched", w.source.added); uuid != "GPU-x" {
		t.Errorf("%s is watched", uuid)
	}
	w.assign(map[int]string{0: "Xid 79", 3: "Xid 48"})
	w.await(cluster.Failed, "Xid 79")
	// Whoever drains the placement too hears that it does not run.
	w.placement.Draining = true
	w.assign(map[int]string{0: "Xid 80"})
	w.await(cluster.Failed, "Xid 80")
	w.placement.Draining = false
	w.source.queue <- inventory.Event{Kind: inventory.XID, UUID: "GPU-x", Code: 48}
	arrived(w, "the fault to be told", w.condemned)
	if w.open() || len(w.opened) != 0 {
		t.Error("the GPU was opened")
	}
	w.assign(map[int]string{3: "Xid 48"})
	w.opens()
	w.await(cluster.Ready, "")
}

// A quarantine that is lifted before the watch goes on, leaves nothing behind: not that the
// GPU is barred, and not that it is lost once more when it is open anew.
func TestQuarantineLiftedAtOnce(t *testing.T) {
	w := newWard(t, faults.Device{Ordinal: 0, UUID: "GPU-x", Name: "H200"})
	w.lift = true
	arrived(w, "the GPU to be watched", w.source.added)
	tell := func(code uint64) {
		w.source.queue <- inventory.Event{Kind: inventory.XID, UUID: "GPU-x", Code: code}
		arrived(w, "the fault to be told", w.condemned)
		w.opens()
		w.await(cluster.Ready, "")
	}
	tell(48) // it is used for the first time
	tell(79)
	if len(w.opened) != 0 || !w.open() {
		t.Error("the GPU was lost twice")
	}
}

// A GPU that must not be used from now on is not closed while it is asked something.
func TestQuarantineWhileAsked(t *testing.T) {
	cfg, _, _, _ := loading(t)
	g := newEngine(cfg).gpus
	err := g.ask(0, func(d *cudaexec.Device) error {
		if g.bar(0, "Xid 64", nil); g.devices[0].device != d {
			t.Error("it is closed")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if g.devices[0].device != nil || !errors.Is(g.devices[0].fault, errBarred) {
		t.Error("it is open after that")
	}
	if err := g.ask(0, nil); !errors.Is(err, errBarred) {
		t.Errorf("it is asked again: %v", err)
	}
}

// A replica that was to end anyway has stopped, and is not forgotten, when the quarantine is
// lifted before it has ended.
func TestQuarantineLiftedWhileDrained(t *testing.T) {
	c := newCrewed(t, 1, "0:s-a:tiny-s", "0:l-a:tiny-l")
	c.await(cluster.Ready, "s-a", "l-a")
	e, r := c.engines[0], c.engines[0].list()[0]
	assign := func(draining bool, barred map[int]string) {
		e.Assign(Assignment{Groups: c.groups, Barred: barred, Placements: []Placement{
			{Name: "s-a", Generation: 1, Model: Model{Name: "tiny-s"}, GPUs: []int{0}, Draining: draining},
			{Name: "l-a", Generation: 1, Model: Model{Name: "tiny-l"}},
		}})
	}
	if r.name != "s-a" {
		r = e.list()[1]
	}
	ask := questions(1, 400)[0]
	ask.IgnoreEOS = true
	for tok, err := range c.serve("s-a").Generate(t.Context(), ask) {
		if err != nil {
			t.Fatal(tok, err)
		}
		assign(false, map[int]string{0: "Xid 64"})
		<-r.drains
		assign(true, map[int]string{0: "Xid 64"})
		assign(true, nil)
		break // nothing is left to do
	}
	c.await(cluster.Stopped, "s-a")
	assign(false, nil)
	c.await(cluster.Ready, "s-a")
}
