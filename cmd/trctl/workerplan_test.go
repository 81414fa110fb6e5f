package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/lastseen"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// A worker that starts again does not ask a GPU that was in quarantine when it ended.
func TestPlanWithoutQuarantined(t *testing.T) {
	c := controltest.New(t, 1, nil)
	gpus := []cluster.GPU{{Ordinal: 0, UUID: "GPU-0"}, {Ordinal: 3, UUID: "GPU-3"}}
	n := c.Leader()
	c.Propose(n, cluster.KindPutNode, cluster.Node{ID: "w1", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: cluster.Protocol, GPUs: gpus})
	c.Propose(n, cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-3", Node: "w1", Cause: cluster.CauseLost})
	dir, _ := clustertest.Identity(c, cluster.Worker, "w1")
	keep := func(s *state.State) {
		t.Helper()
		if err := lastseen.Write(dir, identity.Name{Cluster: controltest.ID, Role: cluster.Worker, Node: "w1"}, s, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	var join workerJoinCmd
	join.Data = dir
	cfg := engine.Config{Models: []engine.Model{{Name: "a"}, {Name: "b"}}, GPUs: []int{0, 3}}
	pins := []cluster.Pin{{Model: "a", GPUs: []int{0}}, {Model: "b", GPUs: []int{3}}}
	whole := func(what string) {
		t.Helper()
		if got, lines := join.planned(cfg, pins, gpus); len(got.Models) != 2 || len(lines) != 0 {
			t.Errorf("%s: %+v %q", what, got.Models, lines)
		}
	}
	whole("nothing was seen")
	keep(n.State())
	got, lines := join.planned(cfg, pins, gpus)
	if len(got.Models) != 1 || got.Models[0].Name != "a" || len(got.GPUs) != 1 || got.GPUs[0] != 0 || len(cfg.Models) != 2 {
		t.Errorf("planned %+v on %v", got.Models, got.GPUs)
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "GPU 3 was in quarantine") {
		t.Errorf("it says %q", lines)
	}
	if err := join.printPlan(process{err: new(strings.Builder)}, engine.Config{Models: cfg.Models[1:], GPUs: cfg.GPUs[1:]}, pins[1:], gpus); err != nil {
		t.Errorf("a plan of nothing: %v", err)
	}
	c.Propose(n, cluster.KindReleaseGPU, cluster.Name{Name: "GPU-3"})
	keep(n.State())
	whole("released")
	join.Data = t.TempDir()
	whole("a node that has not joined")
}
