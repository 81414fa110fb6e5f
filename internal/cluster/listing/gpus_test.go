package listing

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// ward is a cluster with GPUs in quarantine: by a fault and by hand, one that two workers
// have, and one whose worker is gone.
func ward(t *testing.T) *Facts {
	w := &script{t: t, s: new(state.State), now: began}
	w.do(cluster.KindInit, cluster.Cluster{ID: "c", Created: began})
	worker := func(id string, uuids ...string) {
		n := cluster.Node{ID: id, Role: cluster.Worker, Addr: "10.0.0.2:7001", Build: "v1.0.0", Protocol: 4}
		for i, uuid := range uuids {
			n.GPUs = append(n.GPUs, cluster.GPU{Ordinal: i, UUID: uuid, Name: "NVIDIA H200", Memory: 141 << 30})
		}
		w.do(cluster.KindPutNode, n)
	}
	worker("w1", "GPU-1a", "GPU-1b")
	worker("w2", "GPU-2a", "")
	worker("w3", "GPU-2a")
	worker("w4", "GPU-4a")
	w.do(cluster.KindPlace, cluster.Place{From: w.s.Placement, Put: []cluster.Replica{
		{ID: "tiny-s-w1", Model: "tiny-s", Node: "w1", Source: "tiny-s", TP: 1, GPUs: []int{0}},
		{ID: "tiny-l-w1", Model: "tiny-l", Node: "w1", Source: "tiny-l", TP: 1, GPUs: []int{1}},
	}})
	for _, id := range []string{"tiny-s-w1", "tiny-l-w1"} {
		r, _ := w.s.Replica(id)
		w.do(cluster.KindReport, cluster.Report{Node: "w1", Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready}}})
	}
	w.do(cluster.KindPutDeployment, cluster.Deployment{Name: "pair", Models: []string{"tiny-s", "tiny-l"}, Replicas: []int{3, 1}, Policy: "r-stitch"})
	w.now = w.now.Add(time.Minute)
	xid := func(node, gpu string, code uint64, reason string) {
		w.do(cluster.KindQuarantine, cluster.Quarantine{GPU: gpu, Node: node, Cause: cluster.CauseXid, Xid: code, Reason: reason, Seen: w.now.Add(-time.Second)})
	}
	xid("w1", "GPU-1a", 79, "the GPU has fallen off the bus")
	xid("w2", "GPU-2a", 48, "memory error that cannot be corrected")
	w.do(cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-4a", Cause: cluster.CauseOperator, Reason: "it is\nnoisy"})
	w.do(cluster.KindRemoveNode, cluster.RemoveNode{Name: "w4"})
	return &Facts{State: w.s, Now: w.now.Add(5 * time.Minute)}
}

func TestGPUs(t *testing.T) {
	f := ward(t)
	var out strings.Builder
	write := func(table Table, wide bool) {
		t.Helper()
		if err := table.Write(&out, wide); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	for _, kind := range []Kind{GPUs, Workers, Placements, Deployments} {
		table, err := f.List(kind, "")
		if err != nil {
			t.Fatal(err)
		}
		write(table, kind == GPUs)
		if kind != Workers {
			write(table, true)
		}
	}
	write(f.Quarantined(), false)
	for _, c := range []struct {
		kind Kind
		name string
	}{{GPUs, "GPU-1a"}, {GPUs, "GPU-4a"}, {Workers, "w1"}} {
		d, err := f.Describe(c.kind, c.name)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Write(&out); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "gpus.txt", out.String())
	list := f.Quarantined()
	text, err := json.Marshal(list.Objects())
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"state":"quarantined"`, `"xid":79`, `"cause":"operator"`, `"spared":["w3"]`, `"release":"trctl gpu release GPU-1a"`, `"gone":true`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
