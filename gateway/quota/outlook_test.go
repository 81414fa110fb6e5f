package quota

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// simulate is enoughAfter, step by step.
func simulate(counts []cluster.CountedSlice, clock time.Duration, rate, need, owed int64) time.Duration {
	type entry struct {
		at time.Duration
		n  int64
	}
	var all []entry
	for _, c := range counts {
		all = append(all, entry{c.At, c.Amount.Tokens})
	}
	for now := clock; ; now += cluster.SliceStep {
		free := rate
		for _, e := range all {
			if now-e.at < counted {
				free -= e.n
			}
		}
		if paid := min(owed, max(0, free)); paid > 0 {
			owed, free = owed-paid, free-paid
			all = append(all, entry{now, paid})
		}
		if owed == 0 && free >= need {
			return now - clock
		}
	}
}

func TestEnoughAfter(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 3000 {
		rate := 1 + random.Int64N(50)
		clock := time.Hour
		var counts []cluster.CountedSlice
		left := rate
		for at := clock - counted; at <= clock && left > 0; at += cluster.SliceStep * time.Duration(1+random.IntN(60)) {
			n := random.Int64N(left + 1)
			counts = append(counts, cluster.CountedSlice{At: at, Amount: cluster.Amount{Tokens: n, Requests: 7}})
			left -= n
		}
		need := 1 + random.Int64N(rate)
		owed := max(0, random.Int64N(8*rate)-4*rate)
		want := simulate(counts, clock, rate, need, owed)
		got := enoughAfter(counts, clock, rate, need, owed, func(a cluster.Amount) int64 { return a.Tokens })
		if got != want {
			t.Fatalf("%d of %d, %d owed, with %v at %v: %v, want %v", need, rate, owed, counts, clock, got, want)
		}
	}
}

// The own part of a rate lasts until what was given of it is old enough for the request.
func TestOutlookAlone(t *testing.T) {
	rates := Rates{Tokens: 100}
	l, gateways := books(1, rates)
	l.down = true
	a := gateways[0].Account("k", rates)
	for range 2 {
		if _, _, ok := a.Reserve(t.Context(), 40); !ok {
			t.Fatal("refused")
		}
		l.now = l.now.Add(10 * time.Second)
	}
	for _, c := range []struct {
		tokens int64
		want   time.Duration
	}{{30, cluster.SliceWindow - 20*time.Second}, {70, cluster.SliceWindow - 10*time.Second}, {200, cluster.SliceWindow - 10*time.Second}} {
		if _, refused, ok := a.Reserve(t.Context(), c.tokens); ok || refused.After != c.want {
			t.Errorf("%d tokens: granted %t, %+v, want %v", c.tokens, ok, refused, c.want)
		}
	}
	l.now = l.now.Add(cluster.SliceWindow - 20*time.Second)
	if _, refused, ok := a.Reserve(t.Context(), 30); !ok {
		t.Errorf("after its wait it is refused: %+v", refused)
	}
}

// Where one rate has too little, what needs little or none of it passes, also at once and
// with leaders of older builds, which tell less.
func TestOtherRate(t *testing.T) {
	rates := Rates{Requests: 6000, Tokens: 100}
	_, gateways := books(1, rates)
	a := gateways[0].Account("k", rates)
	if _, _, ok := a.Reserve(t.Context(), 95); !ok {
		t.Fatal("the first request is refused")
	}
	for range 3 {
		_, refused, ok := a.Reserve(t.Context(), 10)
		if ok || !refused.Tokens || refused.Requests || refused.After < time.Minute {
			t.Errorf("more than is left: granted %t, %+v", ok, refused)
		}
		if _, refused, ok := a.Reserve(t.Context(), 0); !ok {
			t.Errorf("no tokens: %+v", refused)
		}
	}
}
