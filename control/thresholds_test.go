package control_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/policies/threshold"
)

// What workers measure becomes a table on all nodes. Another leader keeps it, and solves
// when the routing changes.
func TestThresholds(t *testing.T) {
	if raceEnabled {
		t.Skip("solves for too long under the race detector")
	}
	t.Parallel()
	c := controltest.New(t, 3, func(cfg *control.Config) { cfg.Tune, cfg.LostAfter = 50*time.Millisecond, time.Hour })
	ctx := t.Context()
	workers := map[string]*client.Client{}
	for id, model := range map[string]string{"w1": "tiny-s", "w2": "tiny-l"} {
		w := c.Client(cluster.Worker, id)
		if _, err := w.Propose(ctx, command(t, cluster.KindPutNode, pinned(id, model))); err != nil {
			t.Fatal(err)
		}
		workers[id] = w
	}
	c.Await("a deployment", func(s *state.State) bool { _, ok := s.Deployment("tiny"); return ok })
	tell := func(p float64) error {
		one := func(replica string, model int, to []float64, ms float64) []cluster.Measure {
			return []cluster.Measure{{Deployment: "tiny", Replica: replica, Model: model, Routed: 5000, To: to, Kept: []float64{1, 0},
				Steps: []cluster.StepTime{{N: 100, MS: ms}}, Slowdown: 1, Live: 4}}
		}
		return errors.Join(workers["w1"].Measure(ctx, cluster.Measures{Node: "w1", List: one("tiny-s-w1", 0, []float64{1 - p, p}, 6)}),
			workers["w2"].Measure(ctx, cluster.Measures{Node: "w2", List: one("tiny-l-w2", 1, []float64{1, 0}, 27.9)}))
	}
	table := func(s *state.State) []int {
		t, ok := s.Table("tiny")
		if !ok || len(t.B) < 4 || len(t.Inputs) == 0 || t.Predicted == 0 {
			return nil
		}
		return t.B[3]
	}
	first := func(s *state.State) bool { b := table(s); return b != nil && b[1] == 3 }
	c.Poll("the table", func() bool { // another leader has to be told again
		l := c.Leader()
		if first(l.State()) {
			return true
		}
		if err := tell(0.35); err != nil {
			t.Log(err)
		}
		return false
	})
	c.Await("the table on every node", first)
	before, _ := c.Leader().State().Table("tiny")
	if !threshold.Feasible(before.B[3], 4) {
		t.Errorf("table %v", before.B)
	}
	if err := workers["w1"].Measure(ctx, cluster.Measures{Node: "w2"}); !errors.Is(err, client.ErrForbidden) {
		t.Errorf("for another node: %v", err)
	}
	if err := workers["w1"].Measure(ctx, cluster.Measures{Node: "w1", List: make([]cluster.Measure, 1)}); !errors.Is(err, client.ErrBadRequest) {
		t.Errorf("nonsense: %v", err)
	}

	old := c.Leader()
	old.Crash()
	c.Forget(old)
	c.Poll("the new leader", func() bool { return tell(0.35) == nil })
	if now, _ := c.Leader().State().Table("tiny"); !now.Solved.Equal(before.Solved) {
		t.Error("the new leader has lost the table")
	}
	c.Poll("another table", func() bool {
		_ = tell(0.1) // a new leader that was not told everything hears it again
		b := table(c.Leader().State())
		return b != nil && b[1] != 3
	})
}
