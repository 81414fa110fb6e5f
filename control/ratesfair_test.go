package control

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// A gateway whose clients come when they are told gets at least half of its fair share,
// also where another one has all of the rate and asks all the time.
func TestPatienceIsFair(t *testing.T) {
	for _, limit := range []cluster.Amount{{Requests: 60}, {Requests: 6000}, {Tokens: 6000}, {Requests: 60, Tokens: 6000}} {
		const gateways = 3
		minutes := int(seeds(3, 10))
		s := newStage(gateways, limit)
		for range 60 { // the first gateway has all, spread over a minute
			s.pass(time.Second)
			s.reserve(0, 100)
		}
		var granted [gateways]int
		next := [gateways]time.Time{1: s.now, 2: s.now}
		for range minutes * 60 * 20 {
			s.pass(50 * time.Millisecond)
			for range 3 {
				if _, ok := s.reserve(0, 100); ok {
					granted[0]++
				}
			}
			for i := 1; i < gateways; i++ {
				if s.now.Before(next[i]) {
					continue
				}
				refused, ok := s.reserve(i, 100)
				if ok {
					granted[i]++
				}
				next[i] = s.now.Add(refused.After.Truncate(time.Second)) // it comes a little early, or late
				if !ok {
					next[i] = next[i].Add(time.Second)
				}
			}
		}
		all := 0
		for _, n := range granted {
			all += n
		}
		for i, n := range granted {
			if n < all/(2*gateways)*9/10 {
				t.Errorf("%v: %v were granted; gateway %d has too little", limit, granted, i)
			}
		}
		if rate := max(limit.Requests, limit.Tokens/100); all < int(rate)*(minutes-1) && limit.Requests <= 60 {
			t.Errorf("%v: %v were granted in %d minutes", limit, granted, minutes)
		}
		t.Logf("%v: %v", limit, granted)
	}
}

// What is kept for gateways that wait is what they need, if they have little, until they
// have asked again or should have.
func TestKept(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := newRates()
	r.reset(now.Add(-time.Hour), "l", 1)
	limit := cluster.Amount{Tokens: 100}
	ask := func(gateway string, want, need int64, held ...cluster.HeldSlice) int64 {
		t.Helper()
		s, err := r.ask(now, limit, &cluster.SliceAsk{
			Gateway: gateway, Key: "k", Want: cluster.Amount{Tokens: want}, Need: cluster.Amount{Tokens: need}, Held: held,
		})
		if err != nil {
			t.Fatal(err)
		}
		return s.Given.Tokens
	}
	kept := func(gateway string, want int64, held ...cluster.HeldSlice) {
		t.Helper()
		a := cluster.SliceAsk{Gateway: gateway, Need: cluster.Amount{Tokens: 10}, Held: held}
		if got := r.keys["k"].kept(now, &a); got.Tokens != want || got.Requests != 0 {
			t.Errorf("%+v are kept from %s, want %d", got, gateway, want)
		}
	}
	all := cluster.HeldSlice{Age: time.Second, Amount: cluster.Amount{Tokens: 100}}
	ask("a", 60, 60)
	now = now.Add(10 * time.Second)
	ask("a", 40, 40)
	kept("b", 0)
	ask("b", 10, 10)
	ask("a", 10, 10, all)
	kept("a", 10, all)
	kept("b", 0)
	now = now.Add(time.Second)
	ask("c", 12, 12) // a third of the rate is fair, half of it 16
	kept("a", 22, all)
	kept("b", 0)
	kept("c", 10) // b has waited longer
	ask("d", 13, 13)
	kept("a", 22, all) // an eighth is 12
	ask("b", 0, 0)
	kept("a", 22, all) // it only told something
	ask("c", 5, 5, cluster.HeldSlice{Age: time.Second, Amount: cluster.Amount{Tokens: 8}})
	kept("a", 10, all) // c has enough
	now = now.Add(counted - 11*time.Second)
	if got := ask("a", 100, 50, all); got != 50 {
		t.Errorf("60 are back, 10 of them kept for another: %d are given, want 50", got)
	}
	if got := ask("b", 20, 10); got != 10 {
		t.Errorf("the 10 that were kept: %d are given", got)
	}
	kept("a", 0, all)
	ask("e", 3, 3)
	kept("a", 3, all)
	now = now.Add(10*time.Second + waitSlack)
	kept("a", 0, all) // it should have come
}
