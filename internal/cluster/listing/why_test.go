package listing

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Replicas of a node that is lost do not serve, whatever they said last.
func TestLostServesNothing(t *testing.T) {
	f := world(t)
	lost := *f.State
	n, _ := lost.Node("w1")
	w := &script{t: t, s: &lost, now: began, index: lost.Index}
	if got := f.node(&n); got.Ready != 1 {
		t.Errorf("before: %+v", got)
	}
	w.do(cluster.KindNodeState, cluster.NodeState{ID: "w1", Lost: yesPtr()})
	f.State = w.s
	n, _ = w.s.Node("w1")
	if got := f.node(&n); got.Ready != 0 || len(got.Replicas) != 1 {
		t.Errorf("after: %+v", got)
	}
	list := f.placements()
	var out strings.Builder
	if err := list.Write(&out, false); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "w1    lost ") {
		t.Errorf("placements:\n%s", &out)
	}
}

// What a worker leaves out is told of with the deployment, and models with a special map
// may have another vocabulary.
func TestWhatIsLeftOut(t *testing.T) {
	w := &script{t: t, s: new(state.State), now: began}
	w.do(cluster.KindInit, cluster.Cluster{ID: "c", Created: began})
	w.do(cluster.KindPutNode, cluster.Node{ID: "w1", Role: cluster.Worker, Addr: "10.0.0.2:7001", Protocol: 1})
	w.do(cluster.KindPutNode, cluster.Node{ID: "g1", Role: cluster.Gateway, Addr: "10.0.0.2:8000", Protocol: 1})
	for id, print := range map[string]string{"s": "abc", "l": "xyz"} {
		w.do(cluster.KindPlace, cluster.Place{From: w.s.Placement, Put: []cluster.Replica{{ID: id, Model: id, Node: "w1", TP: 1}}})
		r, _ := w.s.Replica(id)
		w.do(cluster.KindReport, cluster.Report{Node: "w1", Replicas: []cluster.ReplicaReport{{
			ID: id, Generation: r.Generation, Phase: cluster.Ready, Facts: cluster.Facts{Fingerprint: print, MaxContext: 10},
			Reason: map[string]string{"s": "deployment routed: no such router network"}[id],
		}}})
	}
	f := &Facts{State: w.s, Now: began}
	for name, c := range map[string]struct {
		settings, state string
		says            []string
	}{
		"mapped": {`{"special_map":{"l":["<a>=<b>"]}}`, "ready", nil},
		"plain":  {``, "faulty", []string{"the vocabulary of l is not that of s"}},
		"routed": {`{"special_map":{"l":["<a>=<b>"]}}`, "waiting", []string{"s: s serves without it: deployment routed: no such router network"}},
	} {
		d := f.Deployment(&cluster.Deployment{Name: name, Models: []string{"s", "l"}, Policy: "me", Settings: json.RawMessage(c.settings)})
		if d.State != c.state || len(d.Why) != len(c.says) {
			t.Errorf("%s: %s %q", name, d.State, d.Why)
		}
		for i := range min(len(d.Why), len(c.says)) {
			if !strings.Contains(d.Why[i], c.says[i]) {
				t.Errorf("%s: %q, want %q", name, d.Why[i], c.says[i])
			}
		}
	}
}
