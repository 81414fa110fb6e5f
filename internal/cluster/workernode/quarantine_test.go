package workernode

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/engine"
)

// feed is the faults of a machine's GPUs, without GPUs.
type feed struct {
	watched chan string
	events  chan inventory.Event
}

func newFeed() *feed {
	return &feed{watched: make(chan string, 64), events: make(chan inventory.Event)}
}

func (f *feed) Add(uuid string) error { f.watched <- uuid; return nil }
func (f *feed) Close() error          { return nil }

func (f *feed) Next(wait time.Duration) (inventory.Event, bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case e := <-f.events:
		return e, true, nil
	case <-timer.C:
		return inventory.Event{}, false, nil
	}
}

func (f *feed) xid(uuid string, code uint64) {
	f.events <- inventory.Event{Kind: inventory.XID, UUID: uuid, Code: code}
}

// notes is a log that is read while it is written.
type notes struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (n *notes) Write(b []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.out.Write(b)
}

// about are the lines with a text.
func (n *notes) about(text string) (out []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for line := range strings.Lines(n.out.String()) {
		if strings.Contains(line, text) {
			out = append(out, line)
		}
	}
	return out
}

const outOfUse = "GPU is in quarantine and is not used"

// withGPUs starts a worker on a CPU that says that it has GPUs. Without pins the cluster
// places models on it.
func (w *town) withGPUs(name string, f *feed, log *notes, uuids []string, pins ...string) *worker {
	w.t.Helper()
	return w.workerWith(name, func(cfg *Config, self *cluster.Node) {
		for i, uuid := range uuids {
			self.GPUs = append(self.GPUs, cluster.GPU{Ordinal: i, UUID: uuid, Name: "fake", Memory: 1 << 37})
		}
		for i := range self.Pins {
			self.Pins[i].GPUs = []int{i % len(uuids)}
		}
		cfg.GPUs = self.GPUs
		cfg.Engine.Faults = func() (faults.Events, error) { return f, nil }
		cfg.Log = slog.New(slog.NewTextHandler(log, nil))
	}, pins...)
}

// serves waits until a replica of a model serves on a node, or none does.
func (w *town) serves(model, node string, want bool) {
	w.t.Helper()
	w.await(model+" on "+node, func(s *state.State) bool {
		return slices.ContainsFunc(s.ReplicasOf(model), func(r cluster.Replica) bool { return r.Node == node && s.Serving(&r) }) == want
	})
}

// A GPU's fault takes it out of use in the whole cluster while requests run: none fails, and
// what ran there goes on elsewhere. A start of the worker, and another name, change nothing;
// a release does.
func TestQuarantinedGPU(t *testing.T) {
	list := questions(8, 100, "tiny")
	want := alone(t, list, nil)
	w := newTown(t)
	f, log := newFeed(), &notes{}
	gpu := []string{"GPU-a"}
	w.worker("w1", "tiny-l")
	w.worker("w2", "tiny-s")
	x := w.withGPUs("w3", f, log, gpu, "tiny-s")
	w.awaitReady(3)
	<-x.Ready()
	if uuid := <-f.watched; uuid != "GPU-a" {
		t.Errorf("%s is watched", uuid)
	}
	g := w.gate()
	var began time.Time
	compare(t, "while the fault comes", g.all(list, 8, func(n int) {
		if n == 60 {
			began = time.Now()
			f.xid("GPU-a", 79)
		}
	}), want)
	w.serves("tiny-s", "w3", false)
	q, ok := w.now().Quarantine("GPU-a")
	if !ok || q.Node != "w3" || q.Why() != "Xid 79: the GPU has fallen off the bus" || q.Seen.Before(began.Add(-time.Second)) || q.Since.IsZero() {
		t.Errorf("the cluster has %+v", q)
	}
	failed := func(s *state.State) bool {
		list := s.ReplicasOf("tiny-s")
		return slices.ContainsFunc(list, func(r cluster.Replica) bool {
			return r.Node != "w2" && r.Phase == cluster.Failed && strings.Contains(r.Reason, "GPU 0: it is in quarantine: Xid 79")
		})
	}
	w.await("the worker's word", failed)
	if lines := log.about(outOfUse); len(lines) != 1 || !strings.Contains(lines[0], `reason="Xid 79: the GPU has fallen off the bus" release="trctl gpu release GPU-a"`) {
		t.Errorf("the log has %q", lines)
	}
	r := httptest.NewRecorder()
	x.probes().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/readyz", nil))
	if !strings.Contains(r.Body.String(), "GPU 0 is in quarantine: Xid 79") {
		t.Errorf("/readyz says %s", r.Body)
	}
	r = httptest.NewRecorder()
	x.probes().ServeHTTP(r, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if !strings.Contains(r.Body.String(), `trctl_gpu_quarantined{device="0"} 1`) {
		t.Errorf("/metrics says %s", r.Body)
	}

	x.drained()
	again := &notes{}
	x = w.withGPUs("w3", newFeed(), again, gpu, "tiny-s")
	w.await("the worker's word after its start", func(s *state.State) bool {
		n, _ := s.Node("w3")
		return n.Incarnation == 2 && failed(s)
	})
	if lines := again.about(outOfUse); len(lines) != 1 || !strings.Contains(lines[0], "since=") || !strings.Contains(lines[0], "trctl gpu release GPU-a") {
		t.Errorf("after the start the log has %q", lines)
	}
	if lines := again.about("replica serves"); len(lines) > 0 {
		t.Errorf("it served: %q", lines)
	}
	x.drained()
	w.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "w3"})
	renamed := &notes{}
	x = w.withGPUs("w4", newFeed(), renamed, []string{"GPU-b", "GPU-a"}, "tiny-m", "tiny-s")
	w.serves("tiny-m", "w4", true)
	w.await("the worker's word under another name", func(s *state.State) bool {
		list := s.ReplicasOf("tiny-s")
		return slices.ContainsFunc(list, func(r cluster.Replica) bool { return r.Node == "w4" && r.Phase == cluster.Failed })
	})
	compare(t, "without it", g.all(list[:3], 3, nil), want[:3])

	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	w.serves("tiny-s", "w4", true)
	<-x.Ready()
	if lines := renamed.about("GPU is out of quarantine"); len(lines) != 1 {
		t.Errorf("the log has %q", renamed.out.String())
	}
	compare(t, "released", g.all(list[:3], 3, nil), want[:3])
}

// What the cluster has placed on a GPU goes to another one, of the same worker or of others,
// and waits where there is none. A memory error that was contained moves nothing.
func TestQuarantineMoves(t *testing.T) {
	w := newTown(t)
	f, log := newFeed(), &notes{}
	w.withGPUs("w1", f, log, []string{"GPU-a", "GPU-b"})
	w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "solo", Models: []string{"tiny-s"}, Policy: "single"})
	on := func(gpu int) {
		t.Helper()
		w.await("another GPU", func(s *state.State) bool {
			list := s.ReplicasOf("tiny-s")
			return len(list) == 1 && s.Serving(&list[0]) && slices.Equal(list[0].GPUs, []int{gpu})
		})
	}
	on(0)
	for range 20 {
		f.xid("GPU-a", 94)
	}
	f.xid("GPU-a", 64)
	on(1)
	if q, _ := w.now().Quarantine("GPU-a"); q.Xid != 64 {
		t.Errorf("the cluster has %+v", q)
	}
	f.events <- inventory.Event{Kind: inventory.Lost, UUID: "GPU-b"}
	w.await("no placement", func(s *state.State) bool { return len(s.ReplicasOf("tiny-s")) == 0 && len(s.Quarantines) == 2 })
	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	on(0)
	w.must(cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-a", Cause: cluster.CauseOperator, Reason: "for a test"})
	w.await("no placement", func(s *state.State) bool { return len(s.ReplicasOf("tiny-s")) == 0 })
	w.withGPUs("w2", newFeed(), log, []string{"GPU-c"})
	w.serves("tiny-s", "w2", true)
	if n := len(log.about("failed; it will be restarted")); n > 0 {
		t.Errorf("%d replicas failed", n)
	}
}

// Without control nodes the worker keeps its GPU out of use by itself, and tells of it when
// they are back; with control nodes that do not know quarantines it goes on like that.
func TestQuarantineWithoutControl(t *testing.T) {
	w := newTown(t)
	f, log := newFeed(), &notes{}
	x := w.withGPUs("w1", f, log, []string{"GPU-a"}, "tiny-s")
	w.awaitReady(1)
	w.outage(true)
	f.xid("GPU-a", 48)
	ctx := t.Context()
	poll := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); !ok(); {
			if time.Now().After(deadline) || !sleep(ctx, 5*time.Millisecond) {
				t.Fatalf("waited for %s in vain: %s", what, log.about(""))
			}
		}
	}
	poll("the end of the replica", func() bool {
		return slices.ContainsFunc(x.engine.Reports(), func(r cluster.ReplicaReport) bool { return r.Phase == cluster.Failed })
	})
	if len(log.about(outOfUse)) != 1 {
		t.Errorf("the log has %q", log.about(""))
	}
	w.outage(false)
	w.await("the quarantine", func(s *state.State) bool { q, ok := s.Quarantine("GPU-a"); return ok && q.Xid == 48 })
	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	w.awaitReady(1)

	// Control nodes of an older build.
	old := cluster.Node{ID: "c1", Role: cluster.Control, Addr: "127.0.0.1:1"}
	old.Speak(protocol.Range{Oldest: 1, Newest: 3})
	w.must(cluster.KindPutNode, old)
	f.xid("GPU-a", 79)
	poll("a word of the older control nodes", func() bool { return len(log.about("the cluster keeps no quarantine")) == 1 })
	w.serves("tiny-s", "w1", false)
	if len(w.now().Quarantines) != 0 {
		t.Error("an older build has written it")
	}
	old.Speak(protocol.Cluster())
	w.must(cluster.KindPutNode, old)
	w.await("the quarantine after the upgrade", func(s *state.State) bool { return len(s.Quarantines) == 1 })
}

// A node whose end is due tells of its fault first.
func TestLastWords(t *testing.T) {
	w := newTown(t)
	f, log := newFeed(), &notes{}
	x := w.withGPUs("w1", f, log, []string{"GPU-a"}, "tiny-s")
	w.awaitReady(1)
	x.tie.mute.Store(true)
	f.xid("GPU-a", 79)
	for deadline := time.Now().Add(patience); len(x.unknown()) == 0; {
		if time.Now().After(deadline) || !sleep(t.Context(), 5*time.Millisecond) {
			t.Fatal("the fault is not noted")
		}
	}
	x.drained()
	if _, ok := w.now().Quarantine("GPU-a"); !ok {
		t.Error("the cluster does not know")
	}
}

// A fault that the cluster does not take keeps no other one from being told.
func TestRefusedFault(t *testing.T) {
	w := newTown(t)
	f, log := newFeed(), &notes{}
	x := w.withGPUs("w1", f, log, []string{"GPU a", "GPU-b"}, "tiny-s", "tiny-m")
	w.awaitReady(2)
	f.xid("GPU a", 79) // a name that no quarantine can have
	f.xid("GPU-b", 79)
	w.await("the other quarantine", func(s *state.State) bool { _, ok := s.Quarantine("GPU-b"); return ok })
	w.await("the end of both", func(s *state.State) bool {
		failed := 0
		for _, r := range s.AllReplicas() {
			if r.Phase == cluster.Failed && strings.Contains(r.Reason, "it is in quarantine: Xid 79") {
				failed++
			}
		}
		return failed == 2
	})
	x.drained()
	if lines := log.about("the cluster keeps no quarantine"); len(lines) != 1 || !strings.Contains(lines[0], `uuid="GPU a"`) {
		t.Errorf("the log has %q", lines)
	}
	if lines := log.about("the cluster does not know of a GPU's fault"); len(lines) != 1 {
		t.Errorf("at the end the log has %q", lines)
	}
}

// hears lets a worker hear of changes, or not.
func (w *town) hears(x *worker, yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.views = slices.DeleteFunc(w.views, func(v *client.View) bool { return v == x.tie.view }); yes {
		w.views = append(w.views, x.tie.view)
		x.tie.view.Publish(w.state)
	}
}

// A fault that comes after a release, and before the worker has heard of that, puts the GPU into
// quarantine again, and nothing uses it in between. Faults of a GPU that is in quarantine are not
// told, however many come, and do not outlast its release.
func TestFaultAfterRelease(t *testing.T) {
	w := newTown(t)
	f, log := newFeed(), &notes{}
	x := w.withGPUs("w1", f, log, []string{"GPU-a"}, "tiny-s")
	w.awaitReady(1)
	storm := func(code uint64) {
		t.Helper()
		for range 100 {
			f.xid("GPU-a", code)
		}
		f.xid("GPU-nobody", code) // it was taken, so the others were noted
	}
	settled := func() {
		t.Helper()
		for deadline := time.Now().Add(patience); len(x.unreported()) > 0; {
			if time.Now().After(deadline) || !sleep(t.Context(), 5*time.Millisecond) {
				t.Fatalf("not settled: %v", x.unreported())
			}
		}
	}
	storm(79)
	w.await("the quarantine", func(s *state.State) bool { return len(s.Quarantines) == 1 })
	w.await("the end of the replica", func(s *state.State) bool { return s.ReplicasOf("tiny-s")[0].Phase == cluster.Failed })
	settled()
	w.hears(x, false)
	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	storm(48)
	w.hears(x, true)
	w.await("the quarantine again", func(s *state.State) bool { q, ok := s.Quarantine("GPU-a"); return ok && q.Xid == 48 })
	storm(95)
	settled()
	if told := x.tie.told.Load(); told > 10 {
		t.Errorf("the cluster was told %d times", told)
	}
	if lines := log.about("replica serves"); len(lines) != 1 {
		t.Errorf("the log has %q", lines)
	}
	if len(log.about(outOfUse)) != 1 || len(log.about("GPU is out of quarantine")) != 0 {
		t.Errorf("the log has %q", log.about("GPU"))
	}
	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	w.awaitReady(1)
	x.drained()
	if len(w.now().Quarantines) != 0 {
		t.Error("a fault of before the release counts after it")
	}
}

// outage says whether there is no leader.
func (w *town) outage(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = yes
}

// idle is a worker with one GPU of which nothing runs but what a test calls. With a directory it
// keeps faults there.
func (w *town) idle(log *notes, dir string) (*Node, *tie) {
	w.t.Helper()
	tie := &tie{town: w, view: w.view(), credentials: w.credentials(cluster.Worker, "w1", nil)}
	gpus := []cluster.GPU{{UUID: "GPU-a", Name: "fake", Memory: 1 << 37}}
	own := engine.Defaults()
	own.Device = "cpu"
	n, err := New(Config{
		Dir: dir, Listen: "127.0.0.1:0", Engine: own, Cluster: tie, GPUs: gpus, Log: slog.New(slog.NewTextHandler(log, nil)),
		Resolve: func(source string) (engine.Model, error) { return engine.Model{Name: source}, nil },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		if err := n.Close(); err != nil {
			w.t.Error(err)
		}
	})
	if _, known := w.now().Node("w1"); !known {
		w.must(cluster.KindPutNode, cluster.Node{ID: "w1", Role: cluster.Worker, Addr: n.Addr(), Protocol: cluster.Protocol, GPUs: gpus})
	}
	return n, tie
}

// Somebody who asks how the node is may see a newer state than the one that the engine is given
// next. The engine does not use the GPU by that.
func TestFaultOfNewerState(t *testing.T) {
	w, log := newTown(t), &notes{}
	n, _ := w.idle(log, "")
	before := n.State()
	n.assign(before)
	n.condemned(faults.Device{UUID: "GPU-a"}, inventory.Event{Kind: inventory.XID, UUID: "GPU-a", Code: 79}, func() {})
	n.assign(before)
	for _, p := range n.unreported() {
		if err := n.tellFault(t.Context(), &p); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*state.State{before, n.State()} {
		if len(n.quarantined()) != 1 {
			t.Error("the node does not know of the quarantine")
		}
		n.assign(s)
	}
	w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	if n.assign(n.State()); len(n.quarantined()) != 0 || len(n.ward.pending) != 0 {
		t.Error("the fault outlasts the release")
	}
	if in, out := len(log.about(outOfUse)), len(log.about("GPU is out of quarantine")); in != 1 || out != 1 {
		t.Errorf("the log has %q", log.about("GPU"))
	}
}

// A fault that the cluster was told of, though its answer was lost, does not undo a release: it is
// told again by the same request. One that comes later is another.
func TestFaultWithLostAnswer(t *testing.T) {
	for _, later := range []bool{false, true} {
		w := newTown(t)
		n, tie := w.idle(&notes{}, "")
		fault := func() {
			n.condemned(faults.Device{UUID: "GPU-a"}, inventory.Event{Kind: inventory.XID, UUID: "GPU-a", Code: 79}, func() {})
		}
		tell := func() {
			for _, p := range n.unreported() {
				if err := n.tellFault(t.Context(), &p); errors.Is(err, client.ErrNoLeader) != tie.deaf.Load() {
					t.Errorf("answer lost: %t; %v", tie.deaf.Load(), err)
				}
			}
		}
		fault()
		tie.deaf.Store(true)
		for range 2 {
			tell()
		}
		if len(w.now().Quarantines) != 1 {
			t.Error("the cluster was not told")
		}
		w.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
		if later {
			fault()
		}
		tie.deaf.Store(false)
		tell()
		n.assign(n.State())
		if q := w.now().Quarantines; (len(q) == 1) != later || len(n.quarantined()) != len(q) || len(n.ward.pending) != 0 {
			t.Errorf("another fault: %t; quarantines: %v, here %v, pending %v", later, q, n.quarantined(), n.ward.pending)
		}
	}
}
