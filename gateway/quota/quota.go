package quota

import (
	"context"
	"sync"
	"time"
)

// Amount is requests and tokens.
type Amount struct {
	Requests int64 `json:"requests"`
	Tokens   int64 `json:"tokens"`
}

// Grant is a slice of a key's rates.
type Grant struct {
	Amount
	// Wait is when more may be had, if this is less than was wanted.
	Wait time.Duration `json:"wait"`
}

// Lessor gives out slices: the leader, by way of a control node.
type Lessor interface {
	Lease(ctx context.Context, key string, want Amount) (Grant, error)
}

// Rates are what a key may have in a minute; 0 means no bound.
type Rates struct {
	Requests, Tokens int64
}

// Config is what a Book needs.
type Config struct {
	Lessor Lessor
	// Gateways is the number of gateways, for when no leader answers.
	Gateways func() int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Timeout bounds a question to the leader: 500 ms.
	Timeout time.Duration
}

const (
	// lapse is how long a slice may be kept.
	lapse = 5 * time.Second
	// alone is for how long a gateway does not ask again after no leader has answered.
	alone = time.Second
	// maxKeys bounds the keys that are remembered; idle ones go first.
	maxKeys = 16384
)

// Book is one gateway's slices of all keys. It is safe for concurrent use.
type Book struct {
	cfg  Config
	mu   sync.Mutex
	keys map[string]*Account
}

// NewBook returns an empty book.
func NewBook(cfg Config) *Book {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 500 * time.Millisecond
	}
	return &Book{cfg: cfg, keys: map[string]*Account{}}
}

// Account returns the account of a key, whose rates may have changed.
func (b *Book) Account(key string, r Rates) *Account {
	b.mu.Lock()
	defer b.mu.Unlock()
	a := b.keys[key]
	if a == nil {
		if len(b.keys) >= maxKeys {
			b.forget()
		}
		a = &Account{book: b, key: key}
		b.keys[key] = a
	}
	a.setRates(r)
	return a
}

// forget drops what has lapsed, or all if everything is in use: slices are lost,
// never doubled.
func (b *Book) forget() {
	now := b.cfg.Now()
	for key, a := range b.keys {
		if a.lapsed(now) {
			delete(b.keys, key)
		}
	}
	if len(b.keys) >= maxKeys {
		clear(b.keys)
	}
}

// Account is what a gateway has of a key's rates.
type Account struct {
	book *Book
	key  string
	// asking is held by the one caller that asks the leader.
	asking sync.Mutex

	mu    sync.Mutex
	rates Rates
	// have may fall below zero: answers without a bound are charged when they end.
	have    Amount
	granted time.Time
	// notBefore is when the leader may be asked again, since it had not enough.
	notBefore time.Time
	// aloneSince is when the leader last did not answer, refilled when the own part
	// was last added since then.
	aloneSince, refilled time.Time
}

func (a *Account) setRates(r Rates) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rates = r
}

func (a *Account) lapsed(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.Sub(a.granted) > lapse
}

// Reserve takes one request and up to tokens tokens, or says after how long it may
// be asked again. A request that is larger than the rate of a minute is charged
// with that rate, so that it can run at all.
func (a *Account) Reserve(ctx context.Context, tokens int64) (settle func(used int64), retry time.Duration, ok bool) {
	need := Amount{Requests: 1, Tokens: tokens}
	a.mu.Lock()
	if a.rates.Tokens > 0 {
		need.Tokens = min(need.Tokens, a.rates.Tokens)
	}
	a.mu.Unlock()
	if a.take(need) {
		return a.settler(need.Tokens), 0, true
	}
	a.asking.Lock()
	defer a.asking.Unlock()
	if a.take(need) { // who asked before has brought enough
		return a.settler(need.Tokens), 0, true
	}
	wait := a.borrow(ctx, need)
	if a.take(need) {
		return a.settler(need.Tokens), 0, true
	}
	return nil, max(wait, 100*time.Millisecond), false
}

// take spends from what is there, if that is enough.
func (a *Account) take(need Amount) bool {
	now := a.book.cfg.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.granted) > lapse {
		a.have = Amount{min(a.have.Requests, 0), min(a.have.Tokens, 0)} // debts stay
	}
	if a.rates.Requests > 0 && a.have.Requests < need.Requests || a.rates.Tokens > 0 && a.have.Tokens < need.Tokens {
		return false
	}
	if a.rates.Requests > 0 {
		a.have.Requests -= need.Requests
	}
	if a.rates.Tokens > 0 {
		a.have.Tokens -= need.Tokens
	}
	return true
}

// settler gives back what was reserved and not used, or takes what was used beyond it.
func (a *Account) settler(reserved int64) func(int64) {
	return func(used int64) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.rates.Tokens > 0 {
			a.have.Tokens += reserved - used
		}
	}
}

// borrow asks the leader for what is missing and for a second's worth.
func (a *Account) borrow(ctx context.Context, need Amount) (wait time.Duration) {
	now := a.book.cfg.Now()
	a.mu.Lock()
	want := Amount{
		Requests: missing(a.rates.Requests, need.Requests, a.have.Requests),
		Tokens:   missing(a.rates.Tokens, need.Tokens, a.have.Tokens),
	}
	lonely, early := now.Sub(a.aloneSince) < alone, a.notBefore.Sub(now)
	a.mu.Unlock()
	if early > 0 {
		return early
	}
	if !lonely {
		ctx, cancel := context.WithTimeout(ctx, a.book.cfg.Timeout)
		defer cancel()
		if g, err := a.book.cfg.Lessor.Lease(ctx, a.key, want); err == nil {
			a.add(g)
			return g.Wait
		}
	}
	return a.addOwnPart(now, need)
}

// missing is what to ask for of one rate: the gap, and a second's worth.
func missing(rate, need, have int64) int64 {
	if rate == 0 {
		return 0
	}
	return max(0, need-have) + rate/60
}

func (a *Account) add(g Grant) {
	now := a.book.cfg.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.have.Requests += g.Requests
	a.have.Tokens += g.Tokens
	a.granted, a.aloneSince, a.refilled = now, time.Time{}, time.Time{}
	a.notBefore = now.Add(min(g.Wait, alone))
}

// addOwnPart refills from this gateway's part of the rates, for want of a leader.
// It says when the need will be met.
func (a *Account) addOwnPart(now time.Time, need Amount) time.Duration {
	n := float64(60 * max(1, a.book.cfg.Gateways()))
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Sub(a.aloneSince) >= alone {
		a.aloneSince = now
	}
	if a.refilled.IsZero() {
		a.refilled = now.Add(-time.Second)
	}
	passed := min(now.Sub(a.refilled), time.Minute).Seconds()
	part := Amount{int64(passed * float64(a.rates.Requests) / n), int64(passed * float64(a.rates.Tokens) / n)}
	if part != (Amount{}) {
		a.refilled, a.granted = now, now
	}
	a.have.Requests = min(a.have.Requests+part.Requests, max(1, a.rates.Requests/int64(n/60)))
	a.have.Tokens = min(a.have.Tokens+part.Tokens, max(need.Tokens, a.rates.Tokens/int64(n/60)))
	wait := 0.0
	if a.rates.Requests > 0 {
		wait = max(wait, float64(need.Requests-a.have.Requests)*n/float64(a.rates.Requests))
	}
	if a.rates.Tokens > 0 {
		wait = max(wait, float64(need.Tokens-a.have.Tokens)*n/float64(a.rates.Tokens))
	}
	return time.Duration(wait * float64(time.Second))
}
