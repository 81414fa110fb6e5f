package gatewaynode

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/workernode"
)

// feed is the faults of a machine's GPUs, without GPUs.
type feed chan inventory.Event

func (feed) Add(string) error { return nil }
func (feed) Close() error     { return nil }

func (f feed) Next(wait time.Duration) (inventory.Event, bool, error) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case e := <-f:
		return e, true, nil
	case <-timer.C:
		return inventory.Event{}, false, nil
	}
}

// gpuWorker starts a worker on a CPU that says that it has a GPU, with a model pinned to it. It
// ends with the test, or by stop.
func (r *rig) gpuWorker(name, dir, model, uuid string, f feed) (n *workernode.Node, stop func()) {
	r.t.Helper()
	_, saved := clustertest.Identity(r.Cluster, cluster.Worker, name)
	own := engine.Defaults()
	onCPU(&own)
	own.Faults = func() (faults.Events, error) { return f, nil }
	n, err := workernode.New(workernode.Config{
		Dir: dir, Saved: saved, Listen: "127.0.0.1:0", Gossip: "127.0.0.1:0", Engine: own, Build: "test",
		Pins:         []cluster.Pin{{Model: model, Source: model, TP: 1, GPUs: []int{0}}},
		GPUs:         []cluster.GPU{{UUID: uuid, Name: "fake"}},
		Resolve:      func(source string) (engine.Model, error) { return engine.Model{Name: source}, nil },
		DrainTimeout: 5 * time.Second, Log: r.log.logger(),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running conc.WaitGroup
	running.Go(func() {
		if err := n.Run(ctx); err != nil {
			r.t.Errorf("%s: %v", name, err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	r.t.Cleanup(stop)
	return n, stop
}

// A GPU's fault, from the event to the gateway, with real nodes of every kind: requests go on
// without an error, the GPU is out of use for gateways at once, and stays so when its worker
// starts again and another control node leads; when it is released, it serves again.
func TestGPUOutOfUse(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	f := make(feed)
	dir := t.TempDir()
	r.realWorker("w1", embedded("tiny-s"))
	r.realWorker("w2", embedded("tiny-l"))
	_, stop := r.gpuWorker("w3", dir, "tiny-s", "GPU-a", f)
	g := r.gateway("g1")
	key, _ := r.key(nil)
	g.await()
	serves := func(s *state.State) bool {
		for _, x := range s.ReplicasOf("tiny-s") {
			if x.Node == "w3" && s.Serving(&x) {
				return true
			}
		}
		return false
	}
	atGateway := func(what string, ok func(*state.State) bool) {
		t.Helper()
		clustertest.Await(t, what, func() bool { return ok(g.link.View().State()) })
	}
	atGateway("three replicas", func(s *state.State) bool {
		ready := 0
		for _, x := range s.AllReplicas() {
			if s.Serving(&x) {
				ready++
			}
		}
		return ready == 3
	})
	ask := server{t, g.url, key, r.http}
	want := ask.chat("tiny", "What is 12 + 34?", nil)
	var asked atomic.Int32
	asking, end := context.WithCancel(t.Context())
	var clients conc.WaitGroup
	for range 3 {
		clients.Go(func() {
			for asking.Err() == nil {
				if got := ask.chat("tiny", "What is 12 + 34?", nil); got.status != http.StatusOK || got.text() != want.text() {
					t.Errorf("%d %q, want %q", got.status, got.text(), want.text())
				}
				asked.Add(1)
			}
		})
	}
	more := func(n int32) {
		t.Helper()
		least := asked.Load() + n
		clustertest.Await(t, "more answers", func() bool { return asked.Load() >= least || t.Failed() })
	}
	more(6)
	began := time.Now()
	f <- inventory.Event{Kind: inventory.XID, UUID: "GPU-a", Code: 95}
	atGateway("the quarantine", func(s *state.State) bool { return !serves(s) })
	t.Logf("out of use at the gateway %s after the event", time.Since(began))
	held := func(s *state.State) bool {
		q, ok := s.QuarantineOf("w3", "GPU-a")
		return ok && q.Xid == 95
	}
	more(6)
	r.Await("the quarantine", held)
	stop()
	first := r.Leader()
	first.Crash()
	r.Forget(first)
	r.Await("the quarantine at the next leader", held)
	again, _ := r.gpuWorker("w3", dir, "tiny-s", "GPU-a", make(feed))
	r.Await("the worker's second start", func(s *state.State) bool {
		n, _ := s.Node("w3")
		return n.Incarnation == 2 && strings.Contains(reasonOf(s, "tiny-s", "w3"), "GPU 0: it is in quarantine: Xid 95")
	})
	more(6)
	if serves(again.State()) {
		t.Error("the GPU is in use")
	}
	r.Propose(r.Leader(), cluster.KindReleaseGPU, cluster.Name{Name: "GPU-a"})
	atGateway("its replica", serves)
	<-again.Ready()
	more(6)
	end()
	clients.Wait()
}

// reasonOf is why a model's replica on a node does not serve, as its worker says.
func reasonOf(s *state.State, model, node string) string {
	for _, x := range s.ReplicasOf(model) {
		if x.Node == node {
			return x.Reason
		}
	}
	return ""
}
