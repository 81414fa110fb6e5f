package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// withGPUs is a worker with devices, by UUID.
func withGPUs(id string, uuids ...string) cluster.Node {
	n := worker(id)
	for i, uuid := range uuids {
		n.GPUs = append(n.GPUs, cluster.GPU{Ordinal: i, UUID: uuid, Name: "H200", Memory: 1 << 37})
	}
	return n
}

// xid is a worker's word about a fault.
func xid(node, gpu string, code uint64) cluster.Quarantine {
	return cluster.Quarantine{GPU: gpu, Node: node, Cause: cluster.CauseXid, Xid: code, Reason: "it means something", Seen: epoch}
}

func byHand(gpu string) cluster.Quarantine {
	return cluster.Quarantine{GPU: gpu, Cause: cluster.CauseOperator, Reason: "for a test"}
}

// onGPU is a replica on a worker's first device.
func onGPU(id, node string) cluster.Replica {
	r := replica(id, node)
	r.GPUs = []int{0}
	return r
}

func TestQuarantineRefusals(t *testing.T) {
	other := func(change func(*cluster.Quarantine)) cluster.Quarantine {
		q := xid("w1", "GPU-1", 79)
		change(&q)
		return q
	}
	for name, c := range map[string]struct {
		kind cluster.Kind
		body any
		want error
		text string
	}{
		"no GPU":           {cluster.KindQuarantine, byHand(""), ErrInvalid, "UUID"},
		"a GPU in a line":  {cluster.KindQuarantine, byHand("GPU 1"), ErrInvalid, "printed"},
		"a long GPU":       {cluster.KindQuarantine, byHand(strings.Repeat("g", cluster.MaxGPUName+1)), ErrInvalid, "128"},
		"GPU of nobody":    {cluster.KindQuarantine, byHand("GPU-9"), ErrNotFound, `gpu "GPU-9" does not exist`},
		"GPU of another":   {cluster.KindQuarantine, xid("w1", "GPU-2", 79), ErrNotFound, "on node w1"},
		"node of nobody":   {cluster.KindQuarantine, xid("w9", "GPU-1", 79), ErrNotFound, "w9"},
		"no node":          {cluster.KindQuarantine, xid("", "GPU-1", 79), ErrInvalid, "node"},
		"long node":        {cluster.KindQuarantine, xid(strings.Repeat("w", cluster.MaxID+1), "GPU-1", 79), ErrInvalid, "node"},
		"strange cause":    {cluster.KindQuarantine, other(func(q *cluster.Quarantine) { q.Cause = "mood" }), ErrInvalid, "cause"},
		"Xid 0":            {cluster.KindQuarantine, xid("w1", "GPU-1", 0), ErrInvalid, "xid"},
		"Xid by hand":      {cluster.KindQuarantine, other(func(q *cluster.Quarantine) { q.Cause = cluster.CauseOperator }), ErrInvalid, "xid"},
		"long reason":      {cluster.KindQuarantine, other(func(q *cluster.Quarantine) { q.Reason = strings.Repeat("r", cluster.MaxQuarantineReason+1) }), ErrInvalid, "reason"},
		"release of none":  {cluster.KindReleaseGPU, cluster.Name{Name: "GPU-1"}, ErrNotFound, `quarantine "GPU-1" does not exist`},
		"a field too many": {cluster.KindQuarantine, map[string]any{"gpu": "GPU-1", "cause": "operator", "mood": 1}, cluster.ErrCommand, "mood"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLog(t)
			l.must(cluster.KindPutNode, withGPUs("w1", "GPU-1"))
			l.must(cluster.KindPutNode, withGPUs("w2", "GPU-2"))
			before := *l.s
			err := l.apply(c.kind, "", c.body)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %v with %q", err, c.want, c.text)
			}
			before.Index, before.Time, before.Written = l.s.Index, l.s.Time, l.s.Written
			if !reflect.DeepEqual(&before, l.s) {
				t.Error("the refused command changed the state")
			}
		})
	}
}

// A GPU in quarantine serves nothing, whatever its worker says and however it is called,
// until it is released.
func TestQuarantine(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0", "GPU-1"))
	l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Put: []cluster.Replica{onGPU("r", "w1"), replica("cpu", "w1")}})
	ready := func(id string) {
		r, _ := l.s.Replica(id)
		l.must(cluster.KindReport, cluster.Report{Node: r.Node, Replicas: []cluster.ReplicaReport{{ID: id, Generation: r.Generation, Phase: cluster.Ready}}})
	}
	serving := func(id string, want bool) {
		t.Helper()
		r, _ := l.s.Replica(id)
		if got := l.s.Serving(&r); got != want {
			t.Errorf("%s serves: %v, want %v", id, got, want)
		}
	}
	ready("r")
	ready("cpu")
	serving("r", true)
	placement := l.s.Placement
	l.now = l.now.Add(time.Hour)
	l.must(cluster.KindQuarantine, xid("w1", "GPU-0", 79))
	serving("r", false)
	serving("cpu", true)
	if l.s.Placement != placement+1 {
		t.Error("a plan of before would be applied")
	}
	want := xid("w1", "GPU-0", 79)
	want.Since = l.now
	if q, ok := l.s.Quarantine("GPU-0"); !ok || !reflect.DeepEqual(q, want) || q.Why() != "Xid 79: it means something" {
		t.Errorf("it is %+v", q)
	}
	// What comes later changes nothing.
	index, placement := l.s.Quarantines["GPU-0"].Index, l.s.Placement
	l.must(cluster.KindQuarantine, xid("w1", "GPU-0", 48))
	l.must(cluster.KindQuarantine, byHand("GPU-0"))
	if e := l.s.Quarantines["GPU-0"]; e.Index != index || !reflect.DeepEqual(e.Value, want) || l.s.Placement != placement {
		t.Errorf("later: %+v", e)
	}
	// Nor a new start of the worker, nor another name of it.
	l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0", "GPU-1"))
	ready("r")
	serving("r", false)
	l.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "w1"})
	l.must(cluster.KindPutNode, withGPUs("w2", "GPU-1", "GPU-0"))
	r := onGPU("again", "w2")
	r.GPUs = []int{1}
	l.must(cluster.KindPlace, cluster.Place{From: l.s.Placement, Put: []cluster.Replica{r}})
	ready("again")
	serving("again", false)
	if s := l.s.Started("w2"); len(s.Quarantines) != 1 {
		t.Error("a start by what was seen last does not know of it")
	}
	placement = l.s.Placement
	l.must(cluster.KindReleaseGPU, cluster.Name{Name: "GPU-0"})
	serving("again", true)
	if l.s.Placement != placement+1 || len(l.s.Quarantines) != 0 {
		t.Errorf("after the release: placement %d, %v", l.s.Placement, l.s.Quarantines)
	}
	// Workers and gateways hear of both.
	for _, role := range []cluster.Role{cluster.Worker, cluster.Gateway} {
		changes, err := l.s.Changes(role, index-1)
		gone := slices.ContainsFunc(changes, func(o Object) bool { return o.Kind == KindQuarantined && o.Value == nil })
		if err != nil || !gone {
			t.Errorf("%s hears %v, %v", role, shown(changes), err)
		}
	}
}

// Nobody is believed about others: a worker that tells of the fault of a GPU that another
// one has too takes it from that one only when that one, or an operator, says so as well.
func TestQuarantineSpares(t *testing.T) {
	holds := func(l *log, want map[string]bool) {
		l.t.Helper()
		for node, held := range want {
			if _, ok := l.s.QuarantineOf(node, "GPU-0"); ok != held {
				t.Errorf("%s: %v, want %v", node, ok, held)
			}
		}
	}
	begin := func() *log {
		l := newLog(t)
		for _, id := range []string{"w1", "w2", "w3", "old"} {
			l.must(cluster.KindPutNode, withGPUs(id, "GPU-0"))
		}
		yes := true
		l.must(cluster.KindNodeState, cluster.NodeState{ID: "old", Lost: &yes})
		l.must(cluster.KindQuarantine, xid("w1", "GPU-0", 79))
		holds(l, map[string]bool{"w1": true, "w2": false, "w3": false, "old": true})
		return l
	}
	l := begin()
	l.must(cluster.KindQuarantine, xid("w2", "GPU-0", 79))
	holds(l, map[string]bool{"w1": true, "w2": true, "w3": false})
	l.must(cluster.KindQuarantine, xid("w3", "GPU-0", 79))
	holds(l, map[string]bool{"w1": true, "w2": true, "w3": true})
	if q, _ := l.s.Quarantine("GPU-0"); q.Spared != nil || q.Node != "w1" {
		t.Errorf("it is %+v", q)
	}
	l = begin()
	l.must(cluster.KindQuarantine, byHand("GPU-0"))
	holds(l, map[string]bool{"w1": true, "w2": true, "w3": true, "old": true})
	if q, _ := l.s.Quarantine("GPU-0"); q.Cause != cluster.CauseXid {
		t.Errorf("the first reason is lost: %+v", q)
	}
	l = newLog(t)
	l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0"))
	l.must(cluster.KindPutNode, withGPUs("w2", "GPU-0"))
	l.must(cluster.KindQuarantine, byHand("GPU-0"))
	holds(l, map[string]bool{"w1": true, "w2": true})
	// The list that a command brings along says nothing.
	l = newLog(t)
	l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0"))
	lie := xid("w1", "GPU-0", 79)
	lie.Spared = []string{"w1"}
	l.must(cluster.KindQuarantine, lie)
	holds(l, map[string]bool{"w1": true})
}

// A worker that lies fills its own share, and an operator is still heard.
func TestQuarantineBounds(t *testing.T) {
	l := newLog(t)
	gpu := func(i int) string { return fmt.Sprintf("GPU-%d", i) }
	refused := func(q cluster.Quarantine, text string) {
		t.Helper()
		if err := l.apply(cluster.KindQuarantine, "", q); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	for i := range maxQuarantinesOne {
		l.must(cluster.KindPutNode, withGPUs("w1", gpu(i)))
		l.must(cluster.KindQuarantine, xid("w1", gpu(i), 79))
	}
	l.must(cluster.KindPutNode, withGPUs("w1", gpu(1000)))
	l.must(cluster.KindPutNode, withGPUs("w2", gpu(2000)))
	refused(xid("w1", gpu(1000), 79), "node w1 has told of 64 already")
	l.must(cluster.KindQuarantine, xid("w2", gpu(2000), 79))
	l.must(cluster.KindQuarantine, byHand(gpu(1000)))
	full := *l.s
	for i := len(full.Quarantines); i < maxQuarantines; i++ {
		full.Quarantines = full.Quarantines.with(fmt.Sprintf("GPU-x%d", i), byHand(fmt.Sprintf("GPU-x%d", i)), 1)
	}
	l.s = &full
	l.must(cluster.KindPutNode, withGPUs("w3", gpu(3000)))
	refused(byHand(gpu(3000)), "there are 4096 already")
	l.must(cluster.KindReleaseGPU, cluster.Name{Name: gpu(0)})
	l.must(cluster.KindQuarantine, byHand(gpu(3000)))
}

// The state's JSON, which snapshots and backups are, keeps quarantines; one of before
// there were any has none.
func TestQuarantineSnapshot(t *testing.T) {
	l := newLog(t)
	l.must(cluster.KindPutNode, withGPUs("w1", "GPU-0"))
	old, err := json.Marshal(l.s)
	if err != nil || strings.Contains(string(old), "quarantine") {
		t.Fatalf("without any: %s, %v", old, err)
	}
	l.must(cluster.KindQuarantine, xid("w1", "GPU-0", 79))
	fresh, err := json.Marshal(l.s)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]int{string(old): 0, string(fresh): 1} {
		var s State
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		if err := s.Check(); err != nil || len(s.Quarantines) != want || s.Written != 4*want {
			t.Errorf("%d quarantines, written by version %d, %v; want %d", len(s.Quarantines), s.Written, err, want)
		}
		if err := s.releaseGPU(&cluster.Name{Name: "GPU-0"}); (err == nil) != (want == 1) {
			t.Errorf("release: %v", err)
		}
	}
	for name, change := range map[string]func(*cluster.Quarantine){
		"another GPU": func(q *cluster.Quarantine) { q.GPU = "GPU-7" },
		"too long":    func(q *cluster.Quarantine) { q.Reason = strings.Repeat("x", 1000) },
		"spares many": func(q *cluster.Quarantine) { q.Spared = make([]string, cluster.MaxSpared+1) },
	} {
		bad := *l.s
		q, _ := bad.Quarantine("GPU-0")
		change(&q)
		bad.Quarantines = bad.Quarantines.with("GPU-0", q, 1)
		if bad.Check() == nil {
			t.Errorf("%s: a damaged state is taken", name)
		}
	}
}
