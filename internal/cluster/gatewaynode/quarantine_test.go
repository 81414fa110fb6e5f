package gatewaynode

import (
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// No request goes to a GPU in quarantine, not even as the last resort.
func TestNoEntryInQuarantine(t *testing.T) {
	t.Parallel()
	s := new(state.State)
	apply := func(kind cluster.Kind, body any) {
		t.Helper()
		c, err := cluster.NewCommand(kind, "", time.Now(), body)
		if err != nil {
			t.Fatal(err)
		}
		if s, err = state.Apply(s, s.Index+1, c); err != nil {
			t.Fatal(err)
		}
	}
	apply(cluster.KindInit, cluster.Cluster{ID: "c"})
	var put []cluster.Replica
	for _, id := range []string{"w1", "w2"} {
		apply(cluster.KindPutNode, cluster.Node{ID: id, Role: cluster.Worker, Addr: "a:1", Protocol: 1, GPUs: []cluster.GPU{{UUID: "GPU-" + id}}})
		put = append(put, cluster.Replica{ID: "s-" + id, Model: "s", Node: id, TP: 1, GPUs: []int{0}})
	}
	apply(cluster.KindPlace, cluster.Place{From: s.Placement, Put: put})
	for id, r := range s.AllReplicas() {
		apply(cluster.KindReport, cluster.Report{Node: r.Node, Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready}}})
	}
	d := cluster.Deployment{Name: "d", Models: []string{"s"}, Policy: "single"}
	check := func(what, entries, doubtful string) {
		t.Helper()
		names := func(list []cluster.Replica) string {
			var out []string
			for _, r := range list {
				out = append(out, r.ID)
			}
			return strings.Join(out, " ")
		}
		if got, last := names(entriesOf(s, &d)), names(doubtfulOf(s, &d)); got != entries || last != doubtful {
			t.Errorf("%s: entries %q, in doubt %q; want %q and %q", what, got, last, entries, doubtful)
		}
	}
	yes := true
	check("at first", "s-w1 s-w2", "")
	apply(cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-w1", Node: "w1", Cause: cluster.CauseXid, Xid: 79})
	check("a fault", "s-w2", "")
	apply(cluster.KindNodeState, cluster.NodeState{ID: "w1", Lost: &yes})
	apply(cluster.KindNodeState, cluster.NodeState{ID: "w2", Lost: &yes})
	check("both lost", "", "s-w2")
	apply(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-w1"})
	check("released", "", "s-w1 s-w2")
}
