package planner

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// world is a state that a script changes.
type world struct {
	fail func(format string, args ...any)
	s    *state.State
	now  time.Time
}

func newWorld(fail func(string, ...any)) *world {
	w := &world{fail: fail, s: new(state.State), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.apply(cluster.KindInit, cluster.Cluster{ID: "c"})
	return w
}

func (w *world) apply(kind cluster.Kind, body any) {
	if err := w.try(kind, body); err != nil {
		w.fail("%s: %v", kind, err)
	}
}

func (w *world) try(kind cluster.Kind, body any) error {
	c, err := cluster.NewCommand(kind, "", w.now, body)
	if err != nil {
		return err
	}
	w.s, err = state.Apply(w.s, w.s.Index+1, c)
	if bad := w.s.Check(); bad != nil {
		w.fail("after %s: %v", kind, bad)
	}
	return err
}

// settle applies plans until there is none, and says what they were.
func (w *world) settle() string {
	var out strings.Builder
	for round := 0; ; round++ {
		p := Plan(w.s, w.now)
		if p == nil {
			break
		}
		if round == 10 {
			w.fail("the plans have no end; the last is %+v", p)
			break
		}
		for _, r := range p.Put {
			fmt.Fprintf(&out, "put %s\n", describe(&r))
		}
		for _, id := range p.Drain {
			fmt.Fprintf(&out, "drain %s\n", id)
		}
		for _, id := range p.Delete {
			fmt.Fprintf(&out, "delete %s\n", id)
		}
		for _, d := range p.Deployments {
			fmt.Fprintf(&out, "deployment %s %s by %s\n", d.Name, strings.Join(d.Models, "+"), d.Policy)
		}
		w.apply(cluster.KindPlace, *p)
	}
	return out.String()
}

func describe(r *cluster.Replica) string {
	out := fmt.Sprintf("%s: %s of %s on %s tp %d", r.ID, r.Model, r.Source, r.Node, r.TP)
	if len(r.GPUs) > 0 {
		out += fmt.Sprintf(" gpus %v", r.GPUs)
	}
	if r.Pinned {
		out += " pinned"
	}
	return out
}

// report sets the phase of a replica, as its worker would.
func (w *world) report(id string, phase cluster.Phase) {
	r, ok := w.s.Replica(id)
	if !ok {
		w.fail("no replica %s", id)
		return
	}
	w.apply(cluster.KindReport, cluster.Report{Node: r.Node, Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: phase}}})
}

func (w *world) state() string {
	var out strings.Builder
	for _, r := range w.s.AllReplicas() {
		fmt.Fprintf(&out, "  %s %s", describe(&r), r.Phase)
		if r.Draining {
			out.WriteString(" draining")
		}
		out.WriteString("\n")
	}
	return out.String()
}

// TestScripts runs testdata/*.txt. A script starts and changes nodes, deployments and
// phases; after each command come the plans that follow, then the replicas.
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t.Fatalf)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.fail = func(format string, args ...any) { d.Fatalf(t, format, args...) }
			w.command(t, d)
			return w.settle() + w.state()
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData) {
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	yes, no := true, false
	switch d.Cmd {
	case "worker": // worker ID [gpus=N] [pins=(model:source:tp:gpu:gpu,...)]
		n := cluster.Node{ID: name, Role: cluster.Worker, Addr: "a:1", Protocol: 1}
		gpus := 0
		d.MaybeScanArgs(t, "gpus", &gpus)
		for i := range gpus {
			n.GPUs = append(n.GPUs, cluster.GPU{Ordinal: i, UUID: fmt.Sprintf("%s/%d", name, i), Name: "gpu", Memory: 80 << 30})
		}
		for _, arg := range d.CmdArgs {
			if arg.Key != "pins" {
				continue
			}
			for _, text := range arg.Vals {
				n.Pins = append(n.Pins, pin(text))
			}
		}
		w.apply(cluster.KindPutNode, n)
	case "remove":
		w.apply(cluster.KindRemoveNode, cluster.Name{Name: name})
	case "drain":
		w.apply(cluster.KindNodeState, cluster.NodeState{ID: name, Draining: &yes})
	case "undrain":
		w.apply(cluster.KindNodeState, cluster.NodeState{ID: name, Draining: &no})
	case "lost":
		w.apply(cluster.KindNodeState, cluster.NodeState{ID: name, Lost: &yes})
	case "heard":
		w.apply(cluster.KindNodeState, cluster.NodeState{ID: name, Lost: &no})
	case "quarantine": // quarantine NODE/ORDINAL
		w.apply(cluster.KindQuarantine, cluster.Quarantine{GPU: name, Cause: cluster.CauseOperator})
	case "release":
		w.apply(cluster.KindReleaseGPU, cluster.Name{Name: name})
	case "deploy": // deploy NAME models=(a,b) [replicas=(1,2)]
		dep := cluster.Deployment{Name: name, Policy: "r-stitch"}
		for _, arg := range d.CmdArgs {
			switch arg.Key {
			case "models":
				dep.Models = arg.Vals
			case "replicas":
				for _, v := range arg.Vals {
					n, err := strconv.Atoi(v)
					if err != nil {
						d.Fatalf(t, "%v", err)
					}
					dep.Replicas = append(dep.Replicas, n)
				}
			}
		}
		w.apply(cluster.KindPutDeployment, dep)
	case "undeploy":
		w.apply(cluster.KindDeleteDeployment, cluster.Name{Name: name})
	case "ready", "failed", "stopped", "starting": // PHASE ID...
		for _, arg := range d.CmdArgs {
			w.report(arg.Key, cluster.Phase(d.Cmd))
		}
	case "wait": // wait SECONDS
		n, err := strconv.Atoi(name)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		w.now = w.now.Add(time.Duration(n) * time.Second)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
}

// pin reads MODEL[:SOURCE[:TP[:GPU...]]].
func pin(text string) cluster.Pin {
	parts := strings.Split(text, ":")
	p := cluster.Pin{Model: parts[0], Source: parts[0], TP: 1}
	if len(parts) > 1 {
		p.Source = parts[1]
	}
	if len(parts) > 2 {
		p.TP, _ = strconv.Atoi(parts[2])
	}
	for _, g := range parts[min(3, len(parts)):] {
		n, _ := strconv.Atoi(g)
		p.GPUs = append(p.GPUs, n)
	}
	return p
}

// Whatever happens, plans come to an end, every pin has its replica, and no worker
// with pins runs anything else. Nothing stays on a GPU in quarantine but what is pinned.
func TestPlansSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t.Fatalf)
		models := []string{"tiny-s", "tiny-l", "Qwen/Qwen3-8B", "a.b"}
		workers := []string{"w1", "w2", "w3", "w4"}
		flip := rapid.Bool()
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			id := rapid.SampledFrom(workers).Draw(t, "worker")
			yes := flip.Draw(t, "yes")
			gpu := fmt.Sprintf("%s/%d", id, rapid.IntRange(0, 1).Draw(t, "gpu"))
			switch rapid.IntRange(0, 8).Draw(t, "what") {
			case 0:
				n := cluster.Node{ID: id, Role: cluster.Worker, Addr: "a:1", Protocol: 1}
				for _, m := range rapid.SliceOfN(rapid.SampledFrom(models), 0, 3).Draw(t, "pins") {
					n.Pins = append(n.Pins, cluster.Pin{Model: m, Source: m, TP: 1})
				}
				for i := range rapid.IntRange(0, 2).Draw(t, "gpus") {
					n.GPUs = append(n.GPUs, cluster.GPU{Ordinal: i, UUID: fmt.Sprintf("%s/%d", id, i), Name: "gpu"})
				}
				_ = w.try(cluster.KindPutNode, n) // it may have been removed
			case 1:
				_ = w.try(cluster.KindNodeState, cluster.NodeState{ID: id, Draining: &yes})
			case 2:
				_ = w.try(cluster.KindNodeState, cluster.NodeState{ID: id, Lost: &yes})
			case 3:
				n := rapid.IntRange(0, 3)
				_ = w.try(cluster.KindPutDeployment, cluster.Deployment{
					Name: rapid.SampledFrom([]string{"d", "tiny"}).Draw(t, "name"), Policy: "r-stitch",
					Models: models[:2], Replicas: []int{n.Draw(t, "a"), n.Draw(t, "b")},
				})
			case 4:
				_ = w.try(cluster.KindDeleteDeployment, cluster.Name{Name: "d"})
			case 5:
				for rid, r := range w.s.AllReplicas() {
					if r.Node == id {
						w.report(rid, rapid.SampledFrom(cluster.Phases()).Draw(t, "phase"))
					}
				}
			case 6:
				w.now = w.now.Add(LostGrace)
			case 7:
				_ = w.try(cluster.KindQuarantine, cluster.Quarantine{GPU: gpu, Cause: cluster.CauseOperator}) // it may not be there
			case 8:
				_ = w.try(cluster.KindReleaseGPU, cluster.Name{Name: gpu})
			}
			w.settle()
			for rid, r := range w.s.AllReplicas() {
				if _, barred := w.s.Barred(&r); barred && !r.Pinned && !r.Draining {
					t.Fatalf("%s stays on a GPU in quarantine: %+v", rid, r)
				}
			}
		}
		for id, n := range w.s.AllNodes() {
			var pinned, loose []string
			for _, r := range w.s.AllReplicas() {
				if r.Node == id && r.Pinned {
					pinned = append(pinned, r.Model)
				} else if r.Node == id && !r.Draining {
					loose = append(loose, r.Model)
				}
			}
			var want []string
			for _, p := range n.Pins {
				want = append(want, p.Model)
			}
			slices.Sort(pinned)
			slices.Sort(want)
			if !slices.Equal(pinned, want) {
				t.Fatalf("%s pins %v and has %v", id, want, pinned)
			}
			slices.Sort(loose)
			if len(slices.Compact(loose)) != len(loose) {
				t.Fatalf("%s runs a model twice: %v", id, loose)
			}
		}
	})
}

func TestNames(t *testing.T) {
	long := strings.Repeat("m", cluster.MaxID)
	for model, want := range map[string]string{
		"tiny-s": "tiny-s-w", "Qwen/Qwen3-8B": "Qwen-Qwen3-8B-w", "../x": "x-w", "é": "model-w", "": "model-w",
		long: strings.Repeat("m", cluster.MaxID-8),
	} {
		p := &plan{s: new(state.State), replicas: map[string]cluster.Replica{}}
		if got := p.name(model, "w"); got != want {
			t.Errorf("%q: %q, want %q", model, got, want)
		}
	}
}
