package quota

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// A refusal names the rates that have too little left, and no other: also while the
// leader is not asked again, or does not answer.
func TestRefusal(t *testing.T) {
	for _, c := range []struct {
		name  string
		rates Rates
		// spent are the tokens of the requests before.
		spent             []int64
		tokens            int64
		down              bool
		granted           bool
		requests, tokened bool
	}{
		{name: "it fits", rates: Rates{Requests: 3, Tokens: 100}, spent: []int64{10, 10}, tokens: 80, granted: true},
		{name: "requests", rates: Rates{Requests: 2, Tokens: 100}, spent: []int64{10, 10}, tokens: 10, requests: true},
		{name: "tokens", rates: Rates{Requests: 6000, Tokens: 100}, spent: []int64{50, 45}, tokens: 10, tokened: true},
		{name: "both", rates: Rates{Requests: 2, Tokens: 100}, spent: []int64{50, 50}, tokens: 10, requests: true, tokened: true},
		{name: "requests alone are bounded", rates: Rates{Requests: 1}, spent: []int64{1}, tokens: 1 << 40, requests: true},
		{name: "larger than the rate", rates: Rates{Tokens: 100}, tokens: 500, granted: true},
		{name: "larger than what is left", rates: Rates{Tokens: 100}, spent: []int64{1}, tokens: 500, tokened: true},
		{name: "requests of the own part", rates: Rates{Requests: 1, Tokens: 100}, spent: []int64{10}, tokens: 10, down: true, requests: true},
		{name: "tokens of the own part", rates: Rates{Requests: 60, Tokens: 100}, spent: []int64{95}, tokens: 10, down: true, tokened: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, gateways := books(1, c.rates)
			l.down = c.down
			a := gateways[0].Account("k", c.rates)
			if got := a.Rates(); got != c.rates {
				t.Errorf("rates %+v, want %+v", got, c.rates)
			}
			for _, n := range c.spent {
				settle, _, ok := a.Reserve(t.Context(), n)
				if !ok {
					t.Fatalf("%d tokens are refused", n)
				}
				settle(n)
			}
			for i := range 2 { // the second time the leader is not asked
				_, refused, ok := a.Reserve(t.Context(), c.tokens)
				if ok != c.granted || refused.Requests != c.requests || refused.Tokens != c.tokened || ok == (refused.After > 0) {
					t.Errorf("time %d: granted %t, %+v", i+1, ok, refused)
				}
				if ok {
					return
				}
			}
			l.now = l.now.Add(cluster.SliceWindow)
			if _, refused, ok := a.Reserve(t.Context(), c.tokens); !ok || refused != (Refusal{}) {
				t.Errorf("a minute later: granted %t, %+v", ok, refused)
			}
		})
	}
}

// What the leader gave to this request and another took is no rate used up.
func TestRefusalOfWhatOthersTook(t *testing.T) {
	_, gateways := books(1, Rates{Requests: 600})
	a := gateways[0].Account("k", Rates{Requests: 600})
	if _, _, ok := a.Reserve(t.Context(), 0); !ok {
		t.Fatal("the first request is refused")
	}
	if short := a.release(cluster.Amount{Requests: 100}); short != (scarcity{}) {
		t.Errorf("short of %+v", short)
	}
	if _, _, ok := a.Reserve(t.Context(), 0); !ok {
		t.Error("the second request is refused")
	}
}

// A wait that was told is long enough for the leader to be asked again.
func TestRefusalLasts(t *testing.T) {
	rates := Rates{Requests: 2}
	l, gateways := books(1, rates)
	a := gateways[0].Account("k", rates)
	for range 2 {
		if _, _, ok := a.Reserve(t.Context(), 0); !ok {
			t.Fatal("refused")
		}
	}
	_, refused, ok := a.Reserve(t.Context(), 0)
	if ok || refused.After < minRetry || refused.After > time.Minute+cluster.SliceLife {
		t.Fatalf("granted %t, %+v", ok, refused)
	}
	l.now = l.now.Add(refused.After)
	if _, again, ok := a.Reserve(t.Context(), 0); !ok {
		t.Errorf("after %v it is refused again: %+v", refused.After, again)
	}
}
