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
	d := &Served{replicas: []*replica{a, b, c}}
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
	if (&Served{}).pick(now, nil) != nil {
		t.Error("picked from nothing")
	}
}
