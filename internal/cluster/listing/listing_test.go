package listing

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

var update = flag.Bool("update", false, "write the golden files")

var began = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// script makes a state by commands.
type script struct {
	t     *testing.T
	s     *state.State
	now   time.Time
	index uint64
}

func (w *script) do(kind cluster.Kind, body any) {
	w.t.Helper()
	c, err := cluster.NewCommand(kind, "", w.now, body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	if w.s, err = state.Apply(w.s, w.index, c); err != nil {
		w.t.Fatalf("%s: %v", kind, err)
	}
}

func yesPtr() *bool { b := true; return &b }

// world is a cluster with something of everything: replicas in all phases, nodes that
// drain and are lost, keys and tokens that are good and that are not.
func world(t *testing.T) *Facts {
	w := &script{t: t, s: new(state.State), now: began}
	w.do(cluster.KindInit, cluster.Cluster{ID: "857b172c9924ed6f", Name: "test", Created: began})
	node := func(id string, role cluster.Role, addr string, n cluster.Node) {
		n.ID, n.Role, n.Addr, n.Build, n.Protocol = id, role, addr, "v1.0.0", 1
		w.do(cluster.KindPutNode, n)
	}
	node("c1", cluster.Control, "10.0.0.1:7000", cluster.Node{Gossip: "10.0.0.1:7946"})
	node("g1", cluster.Gateway, "10.0.0.1:8000", cluster.Node{Public: "10.0.0.1:8000"})
	w.now = w.now.Add(time.Minute)
	pin := func(model string) []cluster.Pin { return []cluster.Pin{{Model: model, Source: model, TP: 1}} }
	node("w1", cluster.Worker, "10.0.0.2:7001", cluster.Node{Pins: pin("tiny-s")})
	node("w2", cluster.Worker, "10.0.0.2:7002", cluster.Node{Pins: pin("tiny-l"), GPUs: []cluster.GPU{{Ordinal: 0, Name: "H200", Memory: 1 << 37}}})
	node("w3", cluster.Worker, "10.0.0.3:7001", cluster.Node{Pins: pin("tiny-s")})
	node("w4", cluster.Worker, "10.0.0.3:7002", cluster.Node{})
	replica := func(id, model, node string, pinned bool) cluster.Replica {
		return cluster.Replica{ID: id, Model: model, Node: node, Source: model, TP: 1, Pinned: pinned}
	}
	w.do(cluster.KindPlace, cluster.Place{From: w.s.Placement, Put: []cluster.Replica{
		replica("tiny-s-w1", "tiny-s", "w1", true), replica("tiny-l-w2", "tiny-l", "w2", true), replica("tiny-s-w3", "tiny-s", "w3", true),
		replica("tiny-m-w4", "tiny-m", "w4", false), replica("other-w4", "other", "w4", false),
	}})
	report := func(id string, phase cluster.Phase, reason, print string) {
		r, _ := w.s.Replica(id)
		w.do(cluster.KindReport, cluster.Report{Node: r.Node, Replicas: []cluster.ReplicaReport{{
			ID: id, Generation: r.Generation, Phase: phase, Reason: reason, Facts: cluster.Facts{Fingerprint: print, MaxContext: 1024, KVTokens: 8192, Backend: "cpu"},
		}}})
	}
	report("tiny-s-w1", cluster.Ready, "", "abc")
	report("tiny-l-w2", cluster.Ready, "", "abc")
	report("tiny-s-w3", cluster.Ready, "", "abc")
	report("tiny-m-w4", cluster.Failed, "no such file", "")
	report("other-w4", cluster.Starting, "", "xyz")
	w.do(cluster.KindPutDeployment, cluster.Deployment{Name: "tiny", Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch", Settings: json.RawMessage(`{"threshold":0.01}`)})
	w.do(cluster.KindPutDeployment, cluster.Deployment{Name: "solo", Models: []string{"tiny-m"}, Policy: "single", Replicas: []int{3}, Thresholds: []int{2}, Fallback: cluster.FallbackFail})
	w.do(cluster.KindPutDeployment, cluster.Deployment{Name: "wrong", Models: []string{"tiny-l", "other"}, Policy: "r-stitch"})
	w.do(cluster.KindPutTable, cluster.Table{Deployment: "tiny", B: [][]int{{1, 1}, {1, 2}, {1, 2}, {1, 3}}, Solved: w.now, Predicted: 1234.5})
	w.now = w.now.Add(time.Minute)
	w.do(cluster.KindNodeState, cluster.NodeState{ID: "w3", Draining: yesPtr()})
	node("w2", cluster.Worker, "10.0.0.2:7002", cluster.Node{Pins: pin("tiny-l")})
	r, _ := w.s.Replica("tiny-l-w2")
	w.do(cluster.KindReport, cluster.Report{Node: "w2", Replicas: []cluster.ReplicaReport{{ID: r.ID, Generation: r.Generation, Phase: cluster.Ready, Facts: cluster.Facts{Fingerprint: "abc"}}}})
	node("w5", cluster.Worker, "10.0.0.4:7001", cluster.Node{})
	w.do(cluster.KindNodeState, cluster.NodeState{ID: "w5", Lost: yesPtr()})
	mac := bytes.Repeat([]byte{1}, 32)
	w.do(cluster.KindPutKey, cluster.Key{ID: "abcd", Name: "me", MAC: mac, Created: w.now, Models: []string{"tiny"}, RequestsPerMinute: 60, Expires: w.now.AddDate(0, 1, 0)})
	w.do(cluster.KindPutKey, cluster.Key{ID: "efgh", MAC: mac, Created: w.now})
	w.do(cluster.KindPutKey, cluster.Key{ID: "old", MAC: mac, Created: w.now, Expires: w.now.Add(time.Second)})
	w.do(cluster.KindRevokeKey, cluster.Name{Name: "efgh"})
	w.do(cluster.KindPutToken, cluster.Token{ID: "t1", Role: cluster.Worker, Hash: mac, Created: w.now, Expires: w.now.Add(time.Hour), Uses: 3, Comment: "for the lab"})
	w.do(cluster.KindPutToken, cluster.Token{ID: "t2", Role: cluster.Gateway, Hash: mac, Created: w.now, Expires: w.now.Add(time.Second), Uses: 1})
	w.do(cluster.KindNoteOperator, cluster.Operator{Name: "alice", Until: w.now.Add(48 * time.Hour), Expires: w.now.Add(72 * time.Hour)})
	w.do(cluster.KindNoteOperator, cluster.Operator{Name: "bob", Until: w.now.Add(time.Hour)})
	w.do(cluster.KindNoteOperator, cluster.Operator{Name: "carl", Until: w.now.Add(time.Second)})
	w.do(cluster.KindNoteOperator, cluster.Operator{Name: "dan", Until: w.now.Add(time.Second), Expires: w.now.Add(time.Second)})
	w.do(cluster.KindRemoveNode, cluster.RemoveNode{Name: "bob", Role: cluster.Admin})
	w.do(cluster.KindRemoveNode, cluster.RemoveNode{Name: "eve", Role: cluster.Admin})
	return &Facts{State: w.s, Now: w.now.Add(5 * time.Minute), Loads: map[string]cluster.NodeLoad{
		"c1": {Age: 120 * time.Millisecond},
		"w1": {Age: 300 * time.Millisecond, Beat: cluster.Beat{Node: "w1", Loads: map[string]cluster.Load{"tiny-s-w1": {Live: 3, Waiting: 1, KV: 0.25}}}},
		"w2": {Age: 300 * time.Millisecond, Beat: cluster.Beat{Node: "w2", Loads: map[string]cluster.Load{"tiny-l-w2": {Live: 2, KV: 0.5}}}},
	}}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs; if that is meant, run with -update:\n%s", path, got)
	}
}

func TestTables(t *testing.T) {
	f := world(t)
	var out strings.Builder
	for _, kind := range Kinds() {
		table, err := f.List(kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, wide := range []bool{false, true} {
			if err := table.Write(&out, wide); err != nil {
				t.Fatal(err)
			}
			out.WriteByte('\n')
		}
	}
	golden(t, "tables.txt", out.String())
	if strings.Contains(out.String(), " \n") {
		t.Error("a line ends in a blank")
	}
}

// What people and nodes say stays in its cell.
func TestCellsDoNotSteer(t *testing.T) {
	type k = cluster.Key
	got := table(Keys, []k{{ID: "a", Name: "x\n\x1b[31m\ty\u202e\xffé 😀"}, {ID: "b", Name: "z"}}, []column[k]{
		{title: "ID", text: func(k *k) string { return k.ID }}, {title: "NAME", text: func(k *k) string { return k.Name }},
	})
	var out strings.Builder
	if err := got.Write(&out, true); err != nil {
		t.Fatal(err)
	}
	if want := "ID  NAME\na   x??[31m?y??é 😀\nb   z\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if got := compact(json.RawMessage(`{"special_map":{"l":["\u003ct\u003e=\u0026"]}}`)); got != `{"special_map":{"l":["<t>=&"]}}` {
		t.Error(got)
	}
}

func TestDescriptions(t *testing.T) {
	f := world(t)
	var out strings.Builder
	for _, c := range []struct {
		kind Kind
		name string
	}{
		{Nodes, "w3"}, {Workers, "w2"}, {Gateways, "g1"}, {Deployments, "tiny"}, {Deployments, "solo"}, {Deployments, "wrong"},
		{Placements, "tiny-m-w4"}, {Thresholds, "tiny"}, {Keys, "old"}, {Tokens, "t1"},
	} {
		d, err := f.Describe(c.kind, c.name)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString("# " + string(c.kind) + " " + c.name + "\n")
		if err := d.Write(&out); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "descriptions.txt", out.String())
}

func TestJSONHasNoHashes(t *testing.T) {
	f := world(t)
	for _, kind := range []Kind{Keys, Tokens} {
		table, err := f.List(kind, "")
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(table.Objects())
		if err != nil || strings.Contains(string(text), "AQEB") {
			t.Errorf("%s: %s, %v", kind, text, err)
		}
	}
}

// A name that is empty, as of a variable that is not set, is nobody's.
func TestNoNameIsNobodys(t *testing.T) {
	f := world(t)
	for _, kind := range Kinds() {
		if row, err := f.Find(kind, ""); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %+v, %v", kind, row, err)
		}
		if d, err := f.Describe(kind, ""); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s: %+v, %v", kind, d, err)
		}
	}
}

func TestNotThere(t *testing.T) {
	f := &Facts{State: new(state.State)}
	for _, kind := range Kinds() {
		table, err := f.List(kind, "")
		if err != nil || len(table.Rows) != 0 || table.Objects() == nil {
			t.Errorf("%s: %+v, %v", kind, table, err)
		}
		if _, err := f.List(kind, "x"); !errors.Is(err, ErrNotFound) {
			t.Errorf("%s x: %v", kind, err)
		}
		for _, name := range []string{"", "x"} {
			if _, err := f.Find(kind, name); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s %q: %v", kind, name, err)
			}
			if _, err := f.Describe(kind, name); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s %q: %v", kind, name, err)
			}
		}
		if got, err := KindOf(strings.TrimSuffix(string(kind), "s")); err != nil || got != kind {
			t.Errorf("%s in the singular: %s, %v", kind, got, err)
		}
	}
	if _, err := KindOf("pods"); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
	if _, err := f.List("pods", ""); !errors.Is(err, ErrKind) {
		t.Error(err)
	}
}

// What changes by itself does not count as a change.
func TestLasting(t *testing.T) {
	f := world(t)
	before, err := f.List(Workers, "")
	if err != nil {
		t.Fatal(err)
	}
	f.Now = f.Now.Add(time.Hour)
	f.Loads = nil
	after, err := f.List(Workers, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range before.Rows {
		if before.Rows[i].Lasting != after.Rows[i].Lasting {
			t.Errorf("%q became %q", before.Rows[i].Lasting, after.Rows[i].Lasting)
		}
	}
}

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 1234 * time.Millisecond: "1.2s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 5 * time.Hour: "5h", 75 * time.Hour: "3d",
	} {
		if got := span(d); got != want {
			t.Errorf("%s is %s, want %s", d, got, want)
		}
	}
}
