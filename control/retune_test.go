package control

import (
	"log/slog"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/control/tuner"
)

// A deployment that was changed while its thresholds were solved has them solved again, though
// what is measured of it stays the same.
func TestThresholdsOfChangedDeployment(t *testing.T) {
	n := &Node{log: slog.New(slog.DiscardHandler), view: client.NewView(), tuner: tuner.New()}
	put := func(kind cluster.Kind, body any) {
		t.Helper()
		c, err := cluster.NewCommand(kind, "", epoch, body)
		if err != nil {
			t.Fatal(err)
		}
		s, err := state.Apply(n.State(), n.State().Index+1, c)
		if err != nil {
			t.Fatal(err)
		}
		n.view.Publish(s)
	}
	put(cluster.KindInit, cluster.Cluster{ID: "c"})
	put(cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "a:1", Protocol: 1})
	put(cluster.KindPlace, cluster.Place{From: n.State().Placement, Put: []cluster.Replica{{ID: "s-w", Model: "s", Node: "w", TP: 1}, {ID: "l-w", Model: "l", Node: "w", TP: 1}}})
	d := cluster.Deployment{Name: "d", Models: []string{"s", "l"}, Policy: "r-stitch"}
	put(cluster.KindPutDeployment, d)
	measures := cluster.Measures{Node: "w"}
	for i, model := range d.Models {
		measures.List = append(measures.List, cluster.Measure{
			Deployment: "d", Replica: model + "-w", Model: i, Routed: 5000, To: [][]float64{{0.65, 0.35}, {1, 0}}[i], Kept: []float64{1, 0},
			Steps: []cluster.StepTime{{N: 100, MS: []float64{6, 27.9}[i]}}, Slowdown: 1, Live: 4,
		})
	}
	if err := measures.Check(); err != nil {
		t.Fatal(err)
	}
	n.tuner.Note(time.Now(), measures)
	jobs := n.tuner.Due(time.Now(), n.State())
	if len(jobs) != 1 {
		t.Fatalf("jobs %+v", jobs)
	}
	d.MaxInFlight = 7
	put(cluster.KindPutDeployment, d)
	if err := n.retune(t.Context(), &jobs[0]); err != nil {
		t.Fatal(err)
	}
	n.tuner.Note(time.Now(), measures)
	if jobs = n.tuner.Due(time.Now(), n.State()); len(jobs) != 1 || jobs[0].Version != 2 {
		t.Errorf("jobs %+v", jobs)
	}
}
