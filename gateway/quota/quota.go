package quota

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// ErrRefused says that the leader gives a key nothing, since it knows no such key.
var ErrRefused = errors.New("quota: the key is not known")

// Lessor gives out slices: the leader, by way of a control node. An error that wraps
// ErrRefused is the leader's word, any other means that none has answered.
type Lessor interface {
	Slice(ctx context.Context, ask cluster.SliceAsk) (cluster.Slice, error)
}

// Rates are what a key may have in a minute; 0 means no bound.
type Rates = cluster.Amount

// Config is what a Book needs.
type Config struct {
	// Gateway is this one's node.
	Gateway string
	Lessor  Lessor
	// Gateways is the number of gateways, for when no leader answers.
	Gateways func() int
	// Now is the clock; nil is time.Now.
	Now func() time.Time
	// Timeout bounds a question to the leader: 500 ms.
	Timeout time.Duration
}

const (
	// alone is for how long a gateway does not ask again after no leader has answered.
	alone = time.Second
	// maxPause is for how long it does not ask again after the leader gave too little:
	// others may give back at any time.
	maxPause = time.Second
	// bucket is how long spent slices are kept as one.
	bucket = 500 * time.Millisecond
	// minRetry is the least time after which a client may try again.
	minRetry = 100 * time.Millisecond
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

// forget drops accounts that were given nothing lately, or all if everything is in
// use: slices are lost, never doubled.
func (b *Book) forget() {
	now := b.cfg.Now()
	for key, a := range b.keys {
		if a.idle(now) {
			delete(b.keys, key)
		}
	}
	if len(b.keys) >= maxKeys {
		clear(b.keys)
	}
}

// Tell tells a new leader what this gateway was given of all keys. It ends early with
// ctx, or when nobody answers.
func (b *Book) Tell(ctx context.Context) {
	b.tell(ctx, func(a *Account, now time.Time) bool { return !a.idle(now) })
}

// Return gives back what has lapsed and what requests have not used. It is to be
// called about twice a second, and ends early as Tell does.
func (b *Book) Return(ctx context.Context) {
	b.tell(ctx, func(a *Account, now time.Time) bool { return a.owes(now) })
}

func (b *Book) tell(ctx context.Context, which func(*Account, time.Time) bool) {
	now := b.cfg.Now()
	b.mu.Lock()
	var list []*Account
	for _, a := range b.keys {
		if which(a, now) {
			list = append(list, a)
		}
	}
	b.mu.Unlock()
	for _, a := range list {
		if ctx.Err() != nil || !a.tell(ctx) {
			return
		}
	}
}

// Account is what a gateway has of a key's rates.
type Account struct {
	book *Book
	key  string
	// asking is held by the one caller that asks the leader. It is locked before mu.
	asking sync.Mutex

	mu    sync.Mutex
	rates Rates
	// slices are those of the last cluster.SliceWindow, oldest first.
	slices []slice
	// back is what the leader does not know yet that it gets back.
	back cluster.Amount
	// debt is what was used beyond what was reserved: the next slices pay for it.
	debt cluster.Amount
	// notBefore is when the leader may be asked again, aloneUntil when it is asked again
	// after it has not answered.
	notBefore, aloneUntil time.Time
}

// slice is an amount that was given, by the leader or by the gateway to itself.
type slice struct {
	// at is when the last of it was given, from when the first: spent slices of one
	// bucket are kept as one.
	from, at, until time.Time
	// given counts in the leader's ledger, left is not spent yet.
	given, left cluster.Amount
	own         bool
}

func (a *Account) setRates(r Rates) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rates = r
}

func (a *Account) idle(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lapse(now)
	return len(a.slices) == 0
}

// owes says that the leader is to get something back.
func (a *Account) owes(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lapse(now)
	return a.back != (cluster.Amount{}) && !now.Before(a.aloneUntil)
}

// lapse ends the slices that are too old to be spent, and forgets those that have left
// the window. mu is held.
func (a *Account) lapse(now time.Time) {
	gone := 0
	for i := range a.slices {
		s := &a.slices[i]
		if now.Sub(s.at) >= cluster.SliceWindow {
			gone = i + 1
			continue
		}
		if now.Before(s.until) || s.left == (cluster.Amount{}) {
			continue
		}
		if s.own {
			s.given = minus(s.given, s.left)
		} else {
			a.back = plus(a.back, s.left)
		}
		s.left = cluster.Amount{}
	}
	if gone > 0 {
		a.slices = append(a.slices[:0], a.slices[gone:]...)
	}
}

// Reserve takes one request and up to tokens tokens, or says after how long it may
// be asked again. A request that is larger than the rate of a minute is charged
// with that rate, so that it can run at all.
func (a *Account) Reserve(ctx context.Context, tokens int64) (settle func(used int64), retry time.Duration, ok bool) {
	need := a.need(tokens)
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
	a.release() // others may have use for it
	return nil, max(wait, minRetry), false
}

// release ends the slices before their time.
func (a *Account) release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.slices {
		a.slices[i].until = a.slices[i].at
	}
	a.lapse(a.book.cfg.Now())
}

// need is what a request takes of the rates that are bounded.
func (a *Account) need(tokens int64) cluster.Amount {
	a.mu.Lock()
	defer a.mu.Unlock()
	var n cluster.Amount
	if a.rates.Requests > 0 {
		n.Requests = 1
	}
	if a.rates.Tokens > 0 {
		n.Tokens = min(tokens, a.rates.Tokens)
	}
	return n
}

// take spends from what is there, if that is enough, debts first.
func (a *Account) take(need cluster.Amount) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lapse(a.book.cfg.Now())
	if a.rates.Tokens == 0 {
		a.debt.Tokens = 0
	}
	paid := least(a.left(), a.debt)
	a.spend(paid)
	a.debt = minus(a.debt, paid)
	left := a.left()
	if a.debt != (cluster.Amount{}) || left.Requests < need.Requests || left.Tokens < need.Tokens {
		return false
	}
	a.spend(need)
	return true
}

// left is what can be spent. mu is held, lapse was called.
func (a *Account) left() (sum cluster.Amount) {
	for i := range a.slices {
		sum = plus(sum, a.slices[i].left)
	}
	return sum
}

// spend takes an amount that is there from the oldest slices. mu is held.
func (a *Account) spend(amount cluster.Amount) {
	for i := range a.slices {
		part := least(a.slices[i].left, amount)
		a.slices[i].left = minus(a.slices[i].left, part)
		amount = minus(amount, part)
	}
}

// settler gives back what was reserved and not used, or takes what was used beyond it.
func (a *Account) settler(reserved int64) func(int64) {
	began := a.book.cfg.Now()
	return func(used int64) {
		now := a.book.cfg.Now()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.rates.Tokens == 0 {
			return
		}
		unused := reserved - used
		switch {
		case unused < 0:
			a.debt.Tokens -= unused
		case now.Sub(began) < cluster.SliceWindow-cluster.SliceLife:
			a.back.Tokens += unused
		}
		// What is older has left the ledger anyway.
	}
}

// borrow asks the leader for what is missing and for a second's worth.
func (a *Account) borrow(ctx context.Context, need cluster.Amount) (wait time.Duration) {
	now := a.book.cfg.Now()
	a.mu.Lock()
	early, lonely := a.notBefore.Sub(now), now.Before(a.aloneUntil)
	due := plus(need, a.debt)
	left := a.left()
	want := cluster.Amount{
		Requests: missing(a.rates.Requests, due.Requests, left.Requests),
		Tokens:   missing(a.rates.Tokens, due.Tokens, left.Tokens),
	}
	a.mu.Unlock()
	if early > 0 {
		return early
	}
	if !lonely {
		s, err := a.ask(ctx, want)
		if err == nil {
			return s.Retry
		}
		if errors.Is(err, ErrRefused) {
			return maxPause
		}
		a.mu.Lock()
		a.aloneUntil = a.book.cfg.Now().Add(alone)
		a.mu.Unlock()
	}
	return a.addOwnPart(now, due)
}

// missing is what to ask for of one rate: the gap, and no less than a second's worth.
func missing(rate, due, left int64) int64 {
	if rate == 0 {
		return 0
	}
	return min(max(due-left, rate/60), rate)
}

// ask sends one question. asking is held.
func (a *Account) ask(ctx context.Context, want cluster.Amount) (cluster.Slice, error) {
	began := a.book.cfg.Now()
	question := cluster.SliceAsk{Gateway: a.book.cfg.Gateway, Key: a.key, Want: want}
	a.mu.Lock()
	a.lapse(began)
	question.Back, a.back = a.back, cluster.Amount{} // lost with the question, if that is lost
	for i := range a.slices {
		if s := &a.slices[i]; s.given != (cluster.Amount{}) {
			question.Held = append(question.Held, cluster.HeldSlice{Age: max(0, began.Sub(s.at)), Amount: s.given})
		}
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, a.book.cfg.Timeout)
	defer cancel()
	s, err := a.book.cfg.Lessor.Slice(ctx, question)
	if err != nil {
		return s, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.returned(question.Back)
	a.aloneUntil = time.Time{}
	a.add(slice{from: began, at: began, until: began.Add(min(s.Life, cluster.SliceLife)), given: s.Given, left: s.Given})
	a.notBefore = time.Time{}
	if s.Given.Requests < want.Requests || s.Given.Tokens < want.Tokens {
		a.notBefore = a.book.cfg.Now().Add(min(s.Retry, maxPause))
	}
	return s, nil
}

// add notes what was given. mu is held.
func (a *Account) add(s slice) {
	if s.given == (cluster.Amount{}) {
		return
	}
	if n := len(a.slices); n > 0 {
		last := &a.slices[n-1]
		if last.left == (cluster.Amount{}) && last.own == s.own && s.at.Sub(last.from) < bucket {
			s.from, s.given = last.from, plus(s.given, last.given)
			*last = s
			return
		}
	}
	a.slices = append(a.slices, s)
}

// returned takes off the slices what the leader got back, from the newest as the
// leader does. mu is held.
func (a *Account) returned(back cluster.Amount) {
	for i := len(a.slices) - 1; i >= 0; i-- {
		part := least(minus(a.slices[i].given, a.slices[i].left), back)
		a.slices[i].given = minus(a.slices[i].given, part)
		back = minus(back, part)
	}
}

// tell tells the leader what the gateway was given.
func (a *Account) tell(ctx context.Context) bool {
	a.asking.Lock()
	defer a.asking.Unlock()
	_, err := a.ask(ctx, cluster.Amount{})
	return err == nil || errors.Is(err, ErrRefused)
}

// addOwnPart gives what is due from this gateway's part of the rates, for want of a
// leader. It says when that may go better.
func (a *Account) addOwnPart(now time.Time, due cluster.Amount) time.Duration {
	n := int64(max(1, a.book.cfg.Gateways()))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lapse(now)
	var sum cluster.Amount
	for i := range a.slices {
		sum = plus(sum, a.slices[i].given)
	}
	due = minus(due, a.left())
	if !fits(a.rates.Requests, n, sum.Requests, due.Requests) || !fits(a.rates.Tokens, n, sum.Tokens, due.Tokens) {
		if len(a.slices) == 0 {
			return maxPause
		}
		return cluster.SliceWindow - now.Sub(a.slices[0].at)
	}
	a.add(slice{from: now, at: now, until: now.Add(cluster.SliceLife), given: due, left: due, own: true})
	return 0
}

// fits says that a gateway may give itself an amount: it stays within its part of the
// rate, or is more than that part and the first of the minute.
func fits(rate, gateways, given, due int64) bool {
	return rate == 0 || due <= 0 || given+due <= max(1, rate/gateways) || given == 0
}

func plus(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: a.Requests + b.Requests, Tokens: a.Tokens + b.Tokens}
}

// minus is not below zero.
func minus(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: max(0, a.Requests-b.Requests), Tokens: max(0, a.Tokens-b.Tokens)}
}

func least(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: min(a.Requests, b.Requests), Tokens: min(a.Tokens, b.Tokens)}
}
