package state_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// history is a state that commands change, one an hour.
type history struct {
	t     *testing.T
	s     *state.State
	now   time.Time
	index uint64
}

func begin(t *testing.T) *history {
	h := &history{t: t, s: new(state.State), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	h.must(cluster.KindInit, cluster.Cluster{ID: "c", Name: "n", CAs: []string{"ca"}})
	return h
}

func (h *history) apply(kind cluster.Kind, body any) error {
	h.t.Helper()
	c, err := cluster.NewCommand(kind, "", h.now, body)
	if err != nil {
		h.t.Fatal(err)
	}
	h.index++
	h.s, err = state.Apply(h.s, h.index, c)
	if cerr := h.s.Check(); cerr != nil {
		h.t.Fatal(cerr)
	}
	return err
}

func (h *history) must(kind cluster.Kind, body any) {
	h.t.Helper()
	if err := h.apply(kind, body); err != nil {
		h.t.Fatal(err)
	}
}

// Operators are noted as they join and as their certificates are renewed, are never given
// more time than their token said, and leave the list some time after they have ended.
func TestOperators(t *testing.T) {
	t.Parallel()
	h := begin(t)
	ends := h.now.Add(50 * 24 * time.Hour)
	h.must(cluster.KindPutToken, cluster.Token{
		ID: "t", Role: cluster.Admin, Hash: make([]byte, 32), Created: h.now, Expires: h.now.Add(time.Hour), Uses: 3, IdentityExpires: ends,
	})
	until := h.now.Add(30 * 24 * time.Hour)
	h.must(cluster.KindUseToken, cluster.UseToken{ID: "t", Node: "alice", Role: cluster.Admin, Until: until})
	h.must(cluster.KindUseToken, cluster.UseToken{ID: "t", Node: "old", Role: cluster.Admin}) // by a build that does not note
	joined := h.now
	want := cluster.Operator{Name: "alice", Created: joined, Expires: ends, Until: until, Token: "t"}
	if o, ok := h.s.Operator("alice"); !ok || o != want || len(h.s.Operators) != 1 || h.s.Written != 2 {
		t.Errorf("joined: %+v, %d operators, version %d", o, len(h.s.Operators), h.s.Written)
	}
	h.now = h.now.Add(20 * 24 * time.Hour)
	want.Until = ends
	h.must(cluster.KindNoteOperator, cluster.Operator{Name: "alice", Until: ends})
	h.must(cluster.KindNoteOperator, cluster.Operator{Name: "old", Until: h.now.Add(time.Hour)})
	if o, _ := h.s.Operator("alice"); o != want {
		t.Errorf("renewed: %+v", o)
	}
	if o, ok := h.s.Operator("old"); !ok || !o.Created.Equal(h.now) || !o.Expires.IsZero() {
		t.Errorf("an identity of before: %+v", o)
	}
	h.must(cluster.KindPutNode, cluster.Node{ID: "g", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: 1})
	h.must(cluster.KindRemoveNode, cluster.RemoveNode{Name: "eve", Role: cluster.Admin})
	for name, o := range map[string]cluster.Operator{
		"a node": {Name: "g", Until: ends}, "revoked": {Name: "eve", Until: ends}, "no end": {Name: "x"},
		"longer than its identity": {Name: "x", Until: ends, Expires: h.now}, "bad name": {Name: "x/y", Until: ends},
	} {
		if err := h.apply(cluster.KindNoteOperator, o); !errors.Is(err, state.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := h.apply(cluster.KindPutToken, cluster.Token{ID: "u", Role: cluster.Worker, Hash: make([]byte, 32), Uses: 1, IdentityExpires: ends}); !errors.Is(err, state.ErrInvalid) {
		t.Errorf("a worker's token with an end of identities: %v", err)
	}
	h.now = ends.Add(31 * 24 * time.Hour)
	h.must(cluster.KindNoteOperator, cluster.Operator{Name: "bob", Until: h.now.Add(time.Hour)})
	if _, ok := h.s.Operator("alice"); ok || len(h.s.Operators) != 1 {
		t.Errorf("%d operators are left", len(h.s.Operators))
	}
	if state.Visible(cluster.Gateway, state.KindOperator) || !state.Visible(cluster.Admin, state.KindOperator) {
		t.Error("who sees operators")
	}
}

// Keys are deleted when nobody can use them any more.
func TestDeleteKey(t *testing.T) {
	t.Parallel()
	h := begin(t)
	for _, k := range []cluster.Key{{ID: "a"}, {ID: "b", Expires: h.now.Add(time.Hour)}} {
		k.MAC = make([]byte, 32)
		h.must(cluster.KindPutKey, k)
		if err := h.apply(cluster.KindDeleteKey, cluster.Name{Name: k.ID}); !errors.Is(err, state.ErrInvalid) {
			t.Errorf("a valid key: %v", err)
		}
	}
	h.must(cluster.KindRevokeKey, cluster.Name{Name: "a"})
	h.must(cluster.KindDeleteKey, cluster.Name{Name: "a"})
	h.now = h.now.Add(time.Hour)
	h.must(cluster.KindDeleteKey, cluster.Name{Name: "b"})
	if err := h.apply(cluster.KindDeleteKey, cluster.Name{Name: "b"}); !errors.Is(err, state.ErrNotFound) || len(h.s.Keys) != 0 {
		t.Errorf("again: %v", err)
	}
}

// A gateway that is lost for a day is forgotten, and may come back; nothing else is.
func TestForgetGateways(t *testing.T) {
	t.Parallel()
	h := begin(t)
	lost, back := true, false
	for _, n := range []cluster.Node{
		{ID: "g", Role: cluster.Gateway, Addr: "127.0.0.1:1", Protocol: 1},
		{ID: "w", Role: cluster.Worker, Addr: "127.0.0.1:2", Protocol: 1},
	} {
		h.must(cluster.KindPutNode, n)
		h.must(cluster.KindNodeState, cluster.NodeState{ID: n.ID, Lost: &lost})
	}
	h.now = h.now.Add(state.ForgetAfter - time.Second)
	if err := h.apply(cluster.KindForgetNode, cluster.Name{Name: "g"}); !errors.Is(err, state.ErrConflict) {
		t.Errorf("too early: %v", err)
	}
	h.now = h.now.Add(time.Second)
	if err := h.apply(cluster.KindForgetNode, cluster.Name{Name: "w"}); !errors.Is(err, state.ErrInvalid) {
		t.Errorf("a worker: %v", err)
	}
	before := h.s
	h.must(cluster.KindForgetNode, cluster.Name{Name: "g"})
	if _, ok := h.s.Node("g"); ok || h.s.IsRemoved("g") {
		t.Error("it is there, or was removed")
	}
	changes, err := h.s.Changes(cluster.Worker, before.Index)
	if err != nil || len(changes) != 1 || changes[0].Kind != state.KindNode || changes[0].Value != nil {
		t.Errorf("watchers see %+v, %v", changes, err)
	}
	if err := h.apply(cluster.KindForgetNode, cluster.Name{Name: "g"}); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("again: %v", err)
	}
	h.must(cluster.KindPutNode, cluster.Node{ID: "g", Role: cluster.Gateway, Addr: "127.0.0.1:3", Protocol: 1})
	if err := h.apply(cluster.KindForgetNode, cluster.Name{Name: "g"}); !errors.Is(err, state.ErrConflict) {
		t.Errorf("one that is there: %v", err)
	}
	h.must(cluster.KindNodeState, cluster.NodeState{ID: "w", Lost: &back})
}
