package quota

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Account is what a gateway has of a key's rates.
type Account struct {
	book *Book
	key  string
	// asking is held by the one caller that asks the leader. It is locked before mu.
	asking sync.Mutex

	mu    sync.Mutex
	rates Rates
	// slices are those of the last cluster.SliceWindow, oldest first.
	slices []*slice
	// returns are what the leader does not know yet that it gets back, oldest first. What
	// a slice returns was taken off it.
	returns []returned
	// seq is the last that was given, reign whose the slices' stamps are.
	seq   uint64
	reign reign
	// stamps says that the last leader that answered tells times.
	stamps bool
	// debt is what was used beyond what was reserved: the next slices pay for it.
	debt cluster.Amount
	// notBefore is when the leader may be asked again, aloneUntil when it is asked again
	// after it has not answered.
	notBefore, aloneUntil time.Time
	// scarce says of which rates too little was given when it was last asked for.
	scarce scarcity
}

// scarcity says which rates have not enough.
type scarcity struct{ requests, tokens bool }

// reign is a leader in its term.
type reign struct {
	leader string
	term   uint64
}

// slice is an amount that was given, by the leader or by the gateway to itself.
type slice struct {
	// at is when the last of it was given, from when the first: slices that the leader
	// has as one, or spent ones of one bucket, are kept as one.
	from, at, until time.Time
	// given counts in the leader's ledger, left is not spent yet.
	given, left cluster.Amount
	// own slices are the gateway's own gift, of which no leader is known to know; seq is
	// the number under which it is told, asked how often that was tried.
	own   bool
	seq   uint64
	asked int
	// stamp is the leader's time of it, 0 if it has not said one.
	stamp time.Duration
}

// returned is what a slice had and was not used. Once it was sent it keeps its amount,
// because the leader may know it already.
type returned struct {
	seq    uint64
	slice  *slice
	amount cluster.Amount
	sent   bool
}

// part is what a reservation has of a slice.
type part struct {
	slice  *slice
	amount cluster.Amount
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
	return len(a.returns) > 0 && !now.Before(a.aloneUntil)
}

// lapse ends the slices that are too old to be spent, and forgets those that have left
// the window. mu is held.
func (a *Account) lapse(now time.Time) {
	for _, s := range a.slices {
		if now.Before(s.until) || s.left == (cluster.Amount{}) {
			continue
		}
		left := s.left
		s.left = cluster.Amount{}
		a.giveBack(s, left)
	}
	gone := func(s *slice) bool { return now.Sub(s.at) >= cluster.SliceWindow }
	a.slices = slices.DeleteFunc(a.slices, gone)
	a.returns = slices.DeleteFunc(a.returns, func(r returned) bool { return gone(r.slice) })
}

// giveBack takes off a slice what was not used, and has the leader told. mu is held.
func (a *Account) giveBack(s *slice, amount cluster.Amount) {
	if amount = least(amount, s.given); amount == (cluster.Amount{}) {
		return
	}
	s.given = minus(s.given, amount)
	if s.own {
		return // the leader is told what is left of it
	}
	for i := range a.returns {
		if r := &a.returns[i]; r.slice == s && !r.sent {
			r.amount = plus(r.amount, amount)
			return
		}
	}
	a.returns = append(a.returns, returned{seq: a.next(), slice: s, amount: amount})
}

// next is a sequence number: they grow also over an account, or a process, that begins
// anew. mu is held.
func (a *Account) next() uint64 {
	a.seq = max(a.seq+1, uint64(max(0, a.book.cfg.Now().UnixNano())))
	return a.seq
}

// Rates are what the key may have in a minute over all gateways.
func (a *Account) Rates() Rates {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rates
}

// Reserve takes one request and up to tokens tokens, or says why not. A request that
// is larger than the rate of a minute is charged with that rate, so that it can run at
// all.
func (a *Account) Reserve(ctx context.Context, tokens int64) (settle func(used int64), refused Refusal, ok bool) {
	need := a.need(tokens)
	if parts, ok := a.take(need); ok {
		return a.settler(need.Tokens, parts), Refusal{}, true
	}
	a.asking.Lock()
	defer a.asking.Unlock()
	if parts, ok := a.take(need); ok { // who asked before has brought enough
		return a.settler(need.Tokens, parts), Refusal{}, true
	}
	wait := a.borrow(ctx, need)
	if parts, ok := a.take(need); ok {
		return a.settler(need.Tokens, parts), Refusal{}, true
	}
	short := a.release(need) // others may have use for it
	return nil, Refusal{After: max(wait, minRetry), Requests: short.requests, Tokens: short.tokens}, false
}

// release ends the slices before their time. It says for want of which rates they do
// not suffice: what is not here may be elsewhere, unless it was asked for and refused.
func (a *Account) release(need cluster.Amount) (short scarcity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	left := a.left()
	short.requests = a.scarce.requests && left.Requests < need.Requests+a.debt.Requests
	short.tokens = a.scarce.tokens && left.Tokens < need.Tokens+a.debt.Tokens
	for _, s := range a.slices {
		s.until = s.at
	}
	a.lapse(a.book.cfg.Now())
	return short
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
		n.Tokens = min(max(0, tokens), a.rates.Tokens)
	}
	return n
}

// take spends from what is there, if that is enough, debts first.
func (a *Account) take(need cluster.Amount) ([]part, bool) {
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
		return nil, false
	}
	return a.spend(need), true
}

// left is what can be spent. mu is held, lapse was called.
func (a *Account) left() (sum cluster.Amount) {
	for _, s := range a.slices {
		sum = plus(sum, s.left)
	}
	return sum
}

// spend takes an amount that is there from the oldest slices. mu is held.
func (a *Account) spend(amount cluster.Amount) (parts []part) {
	for _, s := range a.slices {
		p := least(s.left, amount)
		if p == (cluster.Amount{}) {
			continue
		}
		s.left = minus(s.left, p)
		amount = minus(amount, p)
		parts = append(parts, part{s, p})
	}
	return parts
}

// settler gives back what was reserved and not used, or takes what was used beyond it.
func (a *Account) settler(reserved int64, parts []part) func(int64) {
	return func(used int64) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.rates.Tokens == 0 {
			return
		}
		unused := reserved - used
		if unused < 0 {
			a.debt.Tokens -= unused
			return
		}
		now := a.book.cfg.Now()
		a.lapse(now)
		// From the newest, which has the longest time before it.
		for _, p := range slices.Backward(parts) {
			back := cluster.Amount{Tokens: min(unused, p.amount.Tokens)}
			unused -= back.Tokens
			switch {
			case now.Before(p.slice.until):
				p.slice.left = plus(p.slice.left, back)
			case slices.Contains(a.slices, p.slice):
				a.giveBack(p.slice, back)
			} // what is older has left the ledger
		}
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
		s, err := a.insist(ctx, want)
		if err == nil {
			return s.Retry
		}
		a.mu.Lock()
		a.scarce = scarcity{}
		if errors.Is(err, ErrRefused) {
			a.mu.Unlock()
			return maxPause
		}
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

// add notes what was given. mu is held.
func (a *Account) add(s *slice) {
	if s.given == (cluster.Amount{}) {
		return
	}
	if n := len(a.slices); n > 0 {
		last := a.slices[n-1]
		spent := last.left == (cluster.Amount{})
		one := last.stamp == s.stamp
		if s.stamp == 0 {
			one = one && spent && s.at.Sub(last.from) < bucket
		}
		if one && last.own == s.own && last.asked == 0 {
			if spent {
				last.until = s.until // else what is left of the older ends it
			}
			last.at, last.given, last.left = s.at, plus(last.given, s.given), plus(last.left, s.left)
			return
		}
	}
	a.slices = append(a.slices, s)
}

// tell tells the leader what the gateway was given.
func (a *Account) tell(ctx context.Context) bool {
	a.asking.Lock()
	defer a.asking.Unlock()
	_, err := a.ask(ctx, cluster.Amount{}, a.book.cfg.Timeout)
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
	for _, s := range a.slices {
		sum = plus(sum, s.given)
	}
	due = minus(due, a.left())
	a.scarce = scarcity{
		requests: !fits(a.rates.Requests, n, sum.Requests, due.Requests), tokens: !fits(a.rates.Tokens, n, sum.Tokens, due.Tokens),
	}
	if a.scarce != (scarcity{}) {
		if len(a.slices) == 0 {
			return maxPause
		}
		return cluster.SliceWindow - now.Sub(a.slices[0].at)
	}
	a.add(&slice{from: now, at: now, until: now.Add(cluster.SliceLife), given: due, left: due, own: true, seq: a.next()})
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
