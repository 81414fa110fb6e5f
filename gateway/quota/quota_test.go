package quota

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"
)

// leader is a Lessor over a Ledger, with a clock of its own; down makes it silent.
type leader struct {
	ledger *Ledger
	rates  Rates
	now    time.Time
	down   bool
	asked  int
}

func (l *leader) Lease(_ context.Context, key string, want Amount) (Grant, error) {
	l.asked++
	if l.down {
		return Grant{}, errors.New("no leader")
	}
	return l.ledger.Lease(key, l.rates, want, l.now), nil
}

// cluster is some gateways and their leader.
func cluster(n int, r Rates) (*leader, []*Book) {
	l := &leader{ledger: NewLedger(), rates: r, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	books := make([]*Book, n)
	for i := range books {
		books[i] = NewBook(Config{Lessor: l, Gateways: func() int { return n }, Now: func() time.Time { return l.now }})
	}
	return l, books
}

// However many gateways there are, a key gets its rate: at most 5 % more in any
// minute, and at least half of it where single requests are large parts of it.
func TestRateOverAllGateways(t *testing.T) {
	for _, c := range []struct {
		name     string
		gateways int
		rates    Rates
		tokens   int64
	}{
		{"requests, one gateway", 1, Rates{Requests: 600}, 10},
		{"requests, seven gateways", 7, Rates{Requests: 600}, 10},
		{"requests, 40 gateways", 40, Rates{Requests: 600}, 10},
		{"tokens, one gateway", 1, Rates{Tokens: 60_000}, 100},
		{"tokens, seven gateways", 7, Rates{Tokens: 60_000}, 100},
		{"both", 3, Rates{Requests: 1200, Tokens: 60_000}, 100},
		{"one request is a quarter of the minute", 3, Rates{Tokens: 60_000}, 15_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, books := cluster(c.gateways, c.rates)
			draw := rand.New(rand.NewPCG(1, 2))
			const minutes = 6
			var requests, tokens [minutes]int64
			for ms := 0; ms < minutes*60_000; ms += 5 { // 200 requests a second
				l.now = l.now.Add(5 * time.Millisecond)
				a := books[draw.IntN(len(books))].Account("k", c.rates)
				if settle, _, ok := a.Reserve(t.Context(), 2*c.tokens); ok {
					settle(c.tokens) // half of what was asked for
					requests[ms/60_000]++
					tokens[ms/60_000] += c.tokens
				}
			}
			for m := range minutes {
				over := false
				share := 0.0
				if r := c.rates.Requests; r > 0 {
					over = over || float64(requests[m]) > 1.05*float64(r)
					share = max(share, float64(requests[m])/float64(r))
				}
				if r := c.rates.Tokens; r > 0 {
					over = over || float64(tokens[m]) > 1.05*float64(r)
					share = max(share, float64(tokens[m])/float64(r))
				}
				if over || share < 0.5 {
					t.Errorf("minute %d: %d requests, %d tokens, of %+v", m, requests[m], tokens[m], c.rates)
				}
			}
			// 72,000 requests came: the leader is asked when a slice is spent, and when a wait is over.
			if l.asked > 20_000 {
				t.Errorf("the leader was asked %d times", l.asked)
			}
			t.Logf("%v requests, %v tokens a minute, the leader was asked %d times", requests, tokens, l.asked)
		})
	}
}

// Without a leader every gateway has its part, and asks once a second.
func TestNoLeader(t *testing.T) {
	rates := Rates{Requests: 600}
	l, books := cluster(3, rates)
	l.down = true
	var granted int
	for range 12_000 { // a minute
		l.now = l.now.Add(5 * time.Millisecond)
		for _, b := range books {
			if _, _, ok := b.Account("k", rates).Reserve(t.Context(), 1); ok {
				granted++
			}
		}
	}
	if granted < 500 || granted > 650 {
		t.Errorf("%d requests in a minute, want about 600", granted)
	}
	if l.asked > 3*61 {
		t.Errorf("the leader was asked %d times", l.asked)
	}
}

// An answer that was longer than expected is paid for by those after it.
func TestDebtIsPaid(t *testing.T) {
	rates := Rates{Tokens: 600}
	l, books := cluster(1, rates)
	a := books[0].Account("k", rates)
	settle, _, ok := a.Reserve(t.Context(), 10)
	if !ok {
		t.Fatal("the first request is refused")
	}
	settle(500)
	if _, retry, ok := a.Reserve(t.Context(), 10); ok || retry < time.Second {
		t.Errorf("at once: %t, retry after %v", ok, retry)
	}
	l.now = l.now.Add(time.Minute)
	if _, _, ok := a.Reserve(t.Context(), 10); !ok {
		t.Error("it is refused after a minute too")
	}
}

// A key without rates is not counted, and nobody is asked.
func TestNoRates(t *testing.T) {
	l, books := cluster(1, Rates{})
	for range 100 {
		if _, _, ok := books[0].Account("k", Rates{}).Reserve(t.Context(), 1<<40); !ok {
			t.Fatal("refused")
		}
	}
	if l.asked != 0 {
		t.Errorf("the leader was asked %d times", l.asked)
	}
}
