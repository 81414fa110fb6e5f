package session

import (
	"context"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/generate"
)

// named is an entry that is only picked.
type named string

func (n named) Name() string { return string(n) }

func (n named) Generate(context.Context, *generate.Request) (Stream, error) {
	return nil, ErrProtocol
}

func TestPick(t *testing.T) {
	now := time.Unix(1000, 0)
	a, b, c := &replica{entry: named("a")}, &replica{entry: named("b")}, &replica{entry: named("c")}
	d := &Served{replicas: newReplicaSet(a, b, c)}
	seen := map[*replica]int{}
	for range 30 {
		seen[d.pick(now, nil)]++
	}
	if seen[a] != 10 || seen[b] != 10 || seen[c] != 10 {
		t.Errorf("ties are not shared: %v", seen)
	}
	a.inFlight.Store(2)
	b.inFlight.Store(1)
	c.inFlight.Store(3)
	for _, tc := range []struct {
		tried []*replica
		want  *replica
	}{
		{nil, b},
		{[]*replica{b}, a},
		{[]*replica{a, b}, c},
		{[]*replica{a, b, c}, b},
	} {
		if got := d.pick(now, tc.tried); got != tc.want {
			t.Errorf("tried %d: %s", len(tc.tried), got.entry.Name())
		}
	}
	b.eject(now, time.Second)
	if got := d.pick(now, nil); got != a {
		t.Errorf("ejected: %s", got.entry.Name())
	}
	if got := d.pick(now.Add(time.Second), nil); got != b {
		t.Errorf("back in: %s", got.entry.Name())
	}
	if (&Served{replicas: newReplicaSet()}).pick(now, nil) != nil {
		t.Error("picked from nothing")
	}
}

// loaded is an entry that knows its load.
type loaded struct {
	named
	others int64
}

func (l loaded) Others() int64 { return l.others }

// The load by others counts beside one's own.
func TestPickByLoad(t *testing.T) {
	busy, idle := newReplica(loaded{"busy", 3}), newReplica(loaded{"idle", 0})
	d := &Served{replicas: newReplicaSet(busy, idle)}
	for range 4 {
		if got := d.pick(time.Unix(1000, 0), nil); got != idle {
			t.Errorf("picked %s", got.entry.Name())
		}
	}
	idle.inFlight.Store(4)
	if got := d.pick(time.Unix(1000, 0), nil); got != busy {
		t.Errorf("picked %s", got.entry.Name())
	}
}

// A deployment of an older table has the newer one's replicas, unless its models have
// changed.
func TestReplicasOfNewerTable(t *testing.T) {
	one := Deployment{Name: "d", Models: []string{"s", "l"}, MaxContext: 8, Vocab: 8, Entries: []Entry{named("a")}}
	first, err := NewTable([]Deployment{one}, nil, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	running := first.Find("d")
	one.Entries, one.Policy = []Entry{named("b")}, "another"
	second, err := NewTable([]Deployment{one}, first, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if got := running.pick(time.Unix(1, 0), nil).entry.Name(); got != "b" {
		t.Errorf("the running request is sent to %s", got)
	}
	one.Entries, one.Models = []Entry{named("c")}, []string{"x", "l"}
	if _, err := NewTable([]Deployment{one}, second, time.Time{}); err != nil {
		t.Fatal(err)
	}
	if got := running.pick(time.Unix(1, 0), nil).entry.Name(); got != "b" {
		t.Errorf("with other models the running request is sent to %s", got)
	}
}
