package membership

import (
	"bytes"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// A key is replaced in three steps during which both sides hear each other, whichever is
// first; afterwards who has the old key alone is not heard.
func TestKeysAreReplaced(t *testing.T) {
	t.Parallel()
	old, fresh := bytes.Repeat([]byte{7}, KeySize), bytes.Repeat([]byte{9}, KeySize)
	a := start(t, "a", nil)
	b := start(t, "b", nil, a)
	a.await(t, "b", is("b", Alive))
	b.await(t, "a", is("a", Alive))
	load := 0
	talk := func(step string) {
		t.Helper()
		load++
		told := cluster.Load{Live: load}
		a.Tell(told)
		b.await(t, step, func(m map[string]Member) bool { return m["a"].State == Alive && m["a"].Load == told })
		b.Tell(told)
		a.await(t, step, func(m map[string]Member) bool { return m["b"].State == Alive && m["b"].Load == told })
	}
	for _, keys := range [][][]byte{{old, fresh}, {fresh, old}, {fresh}} {
		for _, m := range []*running{a, b} {
			if err := m.SetKeys(keys); err != nil {
				t.Fatal(err)
			}
			talk("the others' load during a step")
		}
	}
	if _, err := Probe(Config{Node: "p", Cluster: "c", Key: old}, "a", a.Addr()); err == nil {
		t.Error("the old key is taken")
	}
	answered(t, Config{Node: "p", Cluster: "c", Key: fresh}, a.Addr())
	for _, bad := range [][][]byte{nil, {old[:16]}} {
		if err := a.SetKeys(bad); err == nil {
			t.Errorf("%d keys are taken", len(bad))
		}
	}
}
