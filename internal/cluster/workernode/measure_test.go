package workernode

import (
	"slices"
	"testing"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/tuner"
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
)

// What two workers measure is what their deployment's thresholds can be solved from.
func TestMeasures(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s")
	w.worker("w2", "tiny-l")
	w.awaitReady(2)
	g := w.gate()
	enough := func(s cluster.StepTime) bool { return s.N >= measured.LeastSteps }
	said := map[string]cluster.Measures{}
	for deadline := time.After(patience); len(said) < 2; {
		w.mu.Lock()
		for node, m := range w.measured {
			if m.List[0].Routed > 30 && slices.ContainsFunc(m.List[0].Steps, enough) {
				said[node] = m
			}
		}
		w.mu.Unlock()
		select {
		default:
			g.all(questions(6, 100, "tiny"), 6, nil)
		case <-deadline:
			t.Fatalf("measures %+v", said)
		}
	}
	heard := tuner.New()
	for node, m := range said {
		if len(m.List) != 1 || m.List[0].Deployment != "tiny" || m.List[0].To[1] == 0 && node == "w1" {
			t.Errorf("%s has measured %+v", node, m)
		}
		m.List[0].Routed *= 1000 // as if it had gone on
		heard.Note(time.Now(), m)
	}
	jobs := heard.Due(time.Now(), w.now())
	if len(jobs) != 1 || jobs[0].Deployment != "tiny" || jobs[0].Input.N != 16 {
		t.Fatalf("jobs %+v", jobs)
	}
	if _, err := jobs[0].Input.System(); err != nil {
		t.Error(err)
	}
}

// A table in the state is taken up by replicas whose requests run, and so is the next one.
func TestTableIsTakenUp(t *testing.T) {
	w := newTown(t)
	w.worker("w1", "tiny-s")
	other := w.worker("w2", "tiny-l")
	w.awaitReady(2)
	g := w.gate()
	table := func(large int) {
		b := make([][]int, 16)
		for i := range b {
			b[i] = []int{1, min(large, i+1)}
		}
		w.must(cluster.KindPutTable, cluster.Table{Deployment: "tiny", B: b, Solved: time.Now()})
	}
	threshold := func() float64 {
		families, err := other.registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if f.GetName() == "trctl_batch_threshold" {
				return f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return 0
	}
	stop := make(chan struct{})
	var asking conc.WaitGroup
	asking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				g.all(questions(8, 150, "tiny"), 8, nil)
			}
		}
	})
	defer asking.Wait()
	defer close(stop)
	for _, large := range []int{3, 2, 4} {
		table(large)
		for deadline := time.After(patience); threshold() != float64(large); {
			select {
			case <-time.After(5 * time.Millisecond):
			case <-deadline:
				t.Fatalf("the threshold is %g, the table says %d", threshold(), large)
			}
		}
	}
}
