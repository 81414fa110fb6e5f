package workernode

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// writeRouter saves a net that nobody trained for tiny-s under a name.
func writeRouter(t *testing.T, stem string) {
	t.Helper()
	tau := 0.5
	s := router.Sidecar{Format: 1, Kind: router.R2R, Model: "tiny-s", HiddenSize: 128, LogitsSize: 100, Threshold: &tau}
	sidecar, weights, err := router.Random("net", s, router.Shape{Width: 64, Inner: 128, Blocks: 2}, "F32", 3).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{stem + ".json": sidecar, stem + ".safetensors": weights} {
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A deployment comes to need a router network that no worker has loaded: workers start
// their replicas anew, and never all at once. One whose file is missing is told of.
func TestRouterOfALaterPolicy(t *testing.T) {
	net := filepath.Join(t.TempDir(), "net")
	writeRouter(t, net)
	list := questions(4, 80, "tiny")
	want := alone(t, list, func(d *engine.Deployment) { d.Policy = engine.Policy{Name: "r2r", Router: net} })
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-s")
	w.worker("w3", "tiny-l")
	w.awaitReady(3)
	settings := func(router string) json.RawMessage {
		text, err := json.Marshal(cluster.PolicySettings{Router: router})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	put := func(router string) {
		w.must(cluster.KindPutDeployment, cluster.Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Policy: "r2r", Settings: settings(router)})
	}
	put(net + "-missing")
	w.await("complaints", func(s *state.State) bool {
		return !slices.ContainsFunc(s.ReplicasOf("tiny-s"), func(r cluster.Replica) bool {
			return !r.LeavesOut("tiny") || !strings.Contains(r.Reason, "nor a file")
		})
	})
	put(net)
	none := false
	w.await("the network everywhere", func(s *state.State) bool {
		serving, have := 0, 0
		for _, r := range s.ReplicasOf("tiny-s") {
			if s.Serving(&r) {
				serving++
			}
			if s.Serving(&r) && slices.Contains(r.Facts.Routers, net) && r.Reason == "" {
				have++
			}
		}
		none = none || serving == 0
		return have == 2
	})
	if none {
		t.Error("at some time no replica has served")
	}
	compare(t, "by the network", w.gate().all(list, 4, nil), want)
}

// Replicas wait for those before them that serve and can have the network.
func TestTurnsOfReplicas(t *testing.T) {
	has, lacks := []string{"n"}, []string(nil)
	groups := []engine.Routing{{Deployment: engine.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: engine.Policy{Name: "r2r", Router: "n"}}}}
	for name, c := range map[string]struct {
		before cluster.ReplicaReport
		own    []string
		want   bool
	}{
		"it lacks the network":      {cluster.ReplicaReport{Phase: cluster.Ready, Facts: cluster.Facts{Routers: lacks}}, nil, true},
		"it has the network":        {cluster.ReplicaReport{Phase: cluster.Ready, Facts: cluster.Facts{Routers: has}}, nil, false},
		"it starts":                 {cluster.ReplicaReport{Phase: cluster.Starting, Facts: cluster.Facts{Routers: lacks}}, nil, true},
		"it has failed":             {cluster.ReplicaReport{Phase: cluster.Failed, Facts: cluster.Facts{Routers: lacks}}, nil, false},
		"it cannot have it":         {cluster.ReplicaReport{Phase: cluster.Ready, Reason: `deployment d: policy r2r: no such file "n"`, Facts: cluster.Facts{Routers: lacks}}, nil, false},
		"it lacked another":         {cluster.ReplicaReport{Phase: cluster.Ready, Reason: `deployment d: policy r2r: no such file "n2"`, Facts: cluster.Facts{Routers: lacks}}, nil, true},
		"it lacks another":          {cluster.ReplicaReport{Phase: cluster.Ready, Reason: `deployment e: policy r2r: no such file "n"`, Facts: cluster.Facts{Routers: lacks}}, nil, true},
		"it says that it cannot":    {cluster.ReplicaReport{Phase: cluster.Ready, Facts: cluster.Facts{Routers: lacks, LeftOut: []cluster.LeftOut{{Deployment: "d", Router: "n"}}}}, nil, false},
		"it says another":           {cluster.ReplicaReport{Phase: cluster.Ready, Reason: `deployment d: policy r2r: no such file "n"`, Facts: cluster.Facts{Routers: lacks, LeftOut: []cluster.LeftOut{{Deployment: "d", Router: "n2"}}}}, nil, true},
		"the replica has it itself": {cluster.ReplicaReport{Phase: cluster.Ready, Facts: cluster.Facts{Routers: lacks}}, has, false},
	} {
		c.before.Facts.Policies = []string{"me"}
		s := withFacts(t, map[string]cluster.Facts{"s-1": c.before.Facts, "s-2": {Policies: []string{"me"}, Routers: c.own}, "l-1": {}})
		first, _ := s.Replica("s-1")
		c.before.ID, c.before.Generation = first.ID, first.Generation
		report, err := cluster.NewCommand(cluster.KindReport, "", time.Now(), cluster.Report{Node: "w", Replicas: []cluster.ReplicaReport{c.before}})
		if err == nil {
			s, err = state.Apply(s, s.Index+1, report)
		}
		if err != nil {
			t.Fatal(err)
		}
		second, _ := s.Replica("s-2")
		if got := waits(s, &second, groups); got != c.want {
			t.Errorf("%s: waits %t", name, got)
		}
		if waits(s, &first, groups) {
			t.Errorf("%s: the first one waits", name)
		}
	}
}

// While some control node does not speak the version that they came with, what is new in
// reports is left out, so that the rest gets through.
func TestReportsToOldControlNodes(t *testing.T) {
	w := newTown(t)
	w.must(cluster.KindPutNode, cluster.Node{ID: "c1", Role: cluster.Control, Addr: "127.0.0.1:1", Protocol: 1})
	w.worker("w1", "tiny-s")
	w.awaitReady(1)
	if f := w.now().ReplicasOf("tiny-s")[0].Facts; f.Policies != nil || f.Vocab == 0 {
		t.Errorf("facts %+v", f)
	}
	w.must(cluster.KindPutNode, cluster.Node{ID: "c1", Role: cluster.Control, Addr: "127.0.0.1:1", Protocol: cluster.Protocol})
	w.await("the rest", func(s *state.State) bool { return slices.Contains(s.ReplicasOf("tiny-s")[0].Facts.Policies, "r2r") })
}
