package quota

import (
	"sync"
	"time"
)

// Ledger is the leader's side: what is left of every key's rates. A new leader
// begins with full budgets, so that a change of leader may give a key up to a
// tenth of its minute twice. It is safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	budgets map[string]*budget
}

// burst is the part of a minute's rate that may be had at once.
const burst = 20

// budget is two buckets that fill at the key's rates.
type budget struct {
	requests, tokens float64
	at               time.Time
}

// NewLedger returns a ledger with full budgets.
func NewLedger() *Ledger { return &Ledger{budgets: map[string]*budget{}} }

// Lease grants of a key's rates what is there, up to want. A need for tokens above
// the burst is granted against the future: the budget then is below zero until
// time has made up for it.
func (l *Ledger) Lease(key string, r Rates, want Amount, now time.Time) Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.budgets[key]
	if b == nil {
		if len(l.budgets) >= maxKeys {
			l.forget(now)
		}
		b = &budget{float64(r.Requests) / burst, float64(r.Tokens) / burst, now}
		l.budgets[key] = b
	}
	passed := max(0, now.Sub(b.at).Minutes())
	b.at = now
	b.requests = min(b.requests+passed*float64(r.Requests), max(1, float64(r.Requests)/burst))
	b.tokens = min(b.tokens+passed*float64(r.Tokens), max(1, float64(r.Tokens)/burst))
	var g Grant
	g.Requests, g.Wait = draw(&b.requests, r.Requests, want.Requests, g.Wait)
	g.Tokens, g.Wait = draw(&b.tokens, r.Tokens, want.Tokens, g.Wait)
	return g
}

// draw takes up to want of a bucket.
func draw(left *float64, rate, want int64, wait time.Duration) (int64, time.Duration) {
	if rate <= 0 || want <= 0 {
		return 0, wait
	}
	whole := max(1, float64(rate)/burst)
	if *left >= min(float64(want), whole) {
		// All of it, even if it is more than the bucket holds.
		granted := min(want, rate)
		*left -= float64(granted)
		return granted, wait
	}
	short := min(float64(want), whole) - *left
	return 0, max(wait, time.Duration(short/float64(rate)*float64(time.Minute)))
}

// forget drops budgets that are full again.
func (l *Ledger) forget(now time.Time) {
	for key, b := range l.budgets {
		if now.Sub(b.at) > time.Minute {
			delete(l.budgets, key)
		}
	}
}
