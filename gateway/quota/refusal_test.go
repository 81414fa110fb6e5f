package quota

import (
	"context"
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
			var first Refusal
			for i := range 2 { // the second time the leader is not asked
				_, refused, ok := a.Reserve(t.Context(), c.tokens)
				if i == 0 {
					first = refused
				} else if refused != first {
					t.Errorf("a second refusal at once: %+v, want %+v", refused, first)
				}
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

// What a request has is kept for it while the rest is asked for: nobody else takes it.
func TestOthersMeanwhile(t *testing.T) {
	rates := Rates{Tokens: 600}
	l, gateways := books(1, rates)
	a := gateways[0].Account("k", rates)
	if settle, _, ok := a.Reserve(t.Context(), 10); !ok {
		t.Fatal("the first request is refused")
	} else {
		settle(0)
	}
	others := 0
	l.meanwhile = func() {
		for {
			if _, ok := a.take(cluster.Amount{Tokens: 1}); !ok {
				return
			}
			others++
		}
	}
	if _, refused, ok := a.Reserve(t.Context(), 600); !ok {
		t.Errorf("all that is left is refused: %+v, others took %d", refused, others)
	}
}

// A client that goes away makes no leader silent: what it asked for is there for others.
func TestClientGoesAway(t *testing.T) {
	rates := Rates{Requests: 60}
	l, gateways := books(1, rates)
	a := gateways[0].Account("k", rates)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, ok := a.Reserve(ctx, 1); !ok {
		t.Error("refused")
	}
	if len(l.given) != 1 || !a.aloneUntil.IsZero() {
		t.Errorf("the leader has given %v, the gateway is alone until %v", l.given, a.aloneUntil)
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

// A rate that is lowered while a request asks for more than it makes no leader silent.
func TestRateIsLowered(t *testing.T) {
	l, gateways := books(1, Rates{Tokens: 50})
	a := gateways[0].Account("k", Rates{Tokens: 100})
	need := a.need(500)
	a.setRates(Rates{Tokens: 50})
	if c := a.borrow(t.Context(), need); !c.ok || c.need.Tokens != 50 || l.asked != 1 {
		t.Errorf("%+v, asked %d times", c, l.asked)
	}
}
