package control

import (
	"fmt"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// begins is the entry of a node's start.
func begins(t *testing.T, index uint64, role cluster.Role, id, addr string) *raft.Log {
	t.Helper()
	return entry(t, index, cluster.KindPutNode, cluster.Node{ID: id, Role: role, Addr: addr, Protocol: 1})
}

// What a node has told counts before the log, which counts until the state has got to it.
func TestBook(t *testing.T) {
	f := newFSM(client.NewView())
	b := newBook(f.view)
	log := []*raft.Log{
		entry(t, 5, cluster.KindInit, cluster.Cluster{ID: "c"}),
		begins(t, 6, cluster.Control, "c1", "a:6"), begins(t, 7, cluster.Control, "c2", "a:7"), begins(t, 8, cluster.Control, "c1", "a:8"),
	}
	for _, l := range log {
		b.read(l)
	}
	want := func(id, addr string) {
		t.Helper()
		if got, ok := b.find(id); got != addr || ok != (addr != "") {
			t.Errorf("%s is at %q, %v; want %q", id, got, ok, addr)
		}
	}
	apply := func(list ...*raft.Log) {
		t.Helper()
		for _, l := range list {
			if got, ok := f.Apply(l).(applied); !ok || got.err != nil {
				t.Fatalf("entry %d: %+v", l.Index, got)
			}
		}
	}
	want("c1", "a:8")
	want("c3", "")
	b.note("c1", "a:9")
	want("c1", "a:9")
	if all := b.all(); len(all) != 1 || all["c1"] != "a:9" {
		t.Errorf("others are told %v; the log is for this node alone", all)
	}
	apply(log[:2]...)
	want("c1", "a:8") // what was told was of the start before
	want("c2", "a:7")
	apply(log[2:]...)
	want("c1", "a:8")
	apply(begins(t, 9, cluster.Control, "c1", "a:10"))
	want("c1", "a:10")
	b.note("c1", "no address")
	want("c1", "a:10")
	apply(entry(t, 10, cluster.KindRemoveNode, cluster.Name{Name: "c1"}))
	want("c1", "a:10") // it may still have to be told so
}

// What is no start of a control node says nothing, and there are not too many of those.
func TestBookReads(t *testing.T) {
	b := newBook(client.NewView())
	for i, data := range []string{
		"", string(cluster.KindPutNode), `{"v":1,"kind":"put-node","body":{"id":7}}`, `{"v":1,"kind":"put-node","body":`, `{"v":1,"kind":"put-node"}`,
		`{"v":99,"kind":"put-node","body":{"id":"c1","role":"control","addr":"a:1"}}`,
	} {
		b.read(&raft.Log{Index: uint64(i + 1), Data: []byte(data)})
	}
	b.read(begins(t, 20, cluster.Worker, "w1", "a:1"))
	b.read(begins(t, 21, cluster.Control, "c1", "nowhere"))
	other := begins(t, 22, cluster.Control, "c1", "a:1")
	other.Type = raft.LogConfiguration
	b.read(other)
	if len(b.logged) > 0 {
		t.Errorf("read %v", b.logged)
	}
	for i := range 2 * maxBook {
		b.read(begins(t, uint64(100+i), cluster.Control, fmt.Sprint("c", i), "a:1"))
	}
	if len(b.logged) != maxBook {
		t.Errorf("%d nodes are remembered, want %d", len(b.logged), maxBook)
	}
}
