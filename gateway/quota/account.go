package quota

import (
	"context"
	"errors"
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
	// said is what the leader said when it last gave less than was wanted. It is nil if it
	// has given all since, or none answers.
	said *said
	// After an ask that brought too little, notBefore is when the leader is asked again if
	// nothing is known of its having enough: others may give back at any time. pause is
	// how long that was, and doubles until an ask brings enough.
	notBefore time.Time
	pause     time.Duration
	// aloneUntil is when the leader is asked again after it has not answered.
	aloneUntil time.Time
}

// shortage says of which rates there is less than a request needs.
type shortage struct{ requests, tokens bool }

// reign is a leader in its term.
type reign struct {
	leader string
	term   uint64
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

// owes says that the leader is to get something back, or to hear of something.
func (a *Account) owes(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.lapse(now)
	if now.Before(a.aloneUntil) {
		return false
	}
	for _, s := range a.slices {
		// Leaders that tell no times do not listen.
		if s.own && s.given != (cluster.Amount{}) && (s.asked == 0 || a.stamps) {
			return true
		}
	}
	return len(a.returns) > 0
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
// is larger than the rate of a minute takes that rate, so that it can run at all; what
// it uses beyond is charged when it is settled.
//
// The leader is asked whatever becomes of ctx: it takes a moment, and others have use
// for what it gives.
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
	c := a.borrow(context.WithoutCancel(ctx), need)
	if c.ok {
		return a.settler(c.need.Tokens, c.parts), Refusal{}, true
	}
	return nil, Refusal{After: max(c.wait, minRetry), Requests: c.short.requests, Tokens: c.short.tokens}, false
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

// take spends from what is there, if that is enough.
func (a *Account) take(need cluster.Amount) ([]part, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.takeAt(a.book.cfg.Now(), need)
}

// takeAt is take. mu is held.
func (a *Account) takeAt(now time.Time, need cluster.Amount) ([]part, bool) {
	a.lapse(now)
	if !covers(a.left(), need) {
		return nil, false
	}
	return a.spend(need), true
}

// settler gives back what was reserved and not used, or charges what was used beyond it.
func (a *Account) settler(reserved int64, parts []part) func(int64) {
	return func(used int64) {
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.rates.Tokens == 0 {
			return
		}
		now := a.book.cfg.Now()
		if used > reserved {
			a.charge(now, cluster.Amount{Tokens: used - reserved})
			return
		}
		a.unspend(now, parts, cluster.Amount{Tokens: reserved - used})
	}
}

// borrow asks the leader for what is missing and for a second's worth, and takes what is
// needed, if there is enough. asking is held.
func (a *Account) borrow(ctx context.Context, need cluster.Amount) (c claim) {
	a.mu.Lock()
	now := a.book.cfg.Now()
	c.need = least(need, a.rates) // they may have changed
	if c.wait, c.short = a.outlook(now, c.need); c.wait > 0 && now.Before(a.notBefore) {
		a.mu.Unlock()
		return c
	}
	lonely := now.Before(a.aloneUntil)
	// What is there is kept, so that nobody takes it while the rest is asked for.
	c.parts = a.spend(c.need)
	for _, p := range c.parts {
		c.has = plus(c.has, p.amount)
	}
	c.want = cluster.Amount{
		Requests: missing(a.rates.Requests, c.need.Requests, c.has.Requests),
		Tokens:   missing(a.rates.Tokens, c.need.Tokens, c.has.Tokens),
	}
	a.mu.Unlock()
	if !lonely {
		err := a.insist(ctx, &c)
		if err == nil {
			return c
		}
		if errors.Is(err, ErrRefused) {
			a.refuse(&c)
			return c
		}
	}
	a.takeOwnPart(&c, lonely)
	return c
}

// refuse ends a claim of a key that the leader does not know.
func (a *Account) refuse(c *claim) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = nil
	a.unspend(a.book.cfg.Now(), c.parts, c.has)
	c.parts, c.wait, c.short = nil, maxPause, shortage{}
}

// missing is what to ask for of one rate: the gap, and no less than a second's worth.
func missing(rate, need, has int64) int64 {
	if rate == 0 {
		return 0
	}
	return min(max(need-has, rate/60), rate)
}

// tell tells the leader what the gateway was given.
func (a *Account) tell(ctx context.Context) bool {
	a.asking.Lock()
	defer a.asking.Unlock()
	err := a.ask(ctx, nil, a.book.cfg.Timeout)
	return err == nil || errors.Is(err, ErrRefused)
}
