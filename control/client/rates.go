package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Rates holds a gateway's slices of API keys' rates, and asks the leader for more. All
// methods are safe for concurrent use.
//
// With a leader the use of a key is bounded over all gateways (package control). While
// there is none, each gateway lets through its own part: the key's rate by the number
// of gateways, what it has already used in the minute included. All of them together
// then stay within the rate, but for what some have used above their part in the
// minute before.
type Rates struct {
	ask  Ask
	view *View
	self string

	mu   sync.Mutex
	keys map[string]*holding
}

// reign is a leader in its term.
type reign struct {
	node string
	term uint64
}

// holding is what is held of one key.
type holding struct {
	// asking is held (full) by the one that asks the leader, or tells it. Capacity 1.
	asking chan struct{}
	// left is of the slice that was given at began, and may be used until ends.
	left        cluster.Amount
	began, ends time.Time
	// unused was taken at unusedAt or later and was not used; the leader is to have it
	// back.
	unused   cluster.Amount
	unusedAt time.Time
	// held was given, or let through without a leader, in the last SliceWindow; oldest
	// first.
	held []heldSlice
	// told is the reign that knows of held.
	told reign
}

type heldSlice struct {
	at     time.Time
	amount cluster.Amount
}

// Bounds of Rates.
const (
	// maxHeld bounds the entries of a key; more are joined.
	maxHeld = 128
	// askTime bounds an ask.
	askTime = time.Second
	// backTime is how long what was not used may go back: after that it has left the
	// leader's window, and counts no more.
	backTime = cluster.SliceWindow - 2*askTime
)

// ErrRate says that a key's rate is used up.
var ErrRate = errors.New("the key's rate is used up")

// Ask asks the leader for a slice: Client.Slice.
type Ask func(context.Context, cluster.SliceAsk) (cluster.Slice, error)

// NewRates makes the Rates of a gateway. The view knows the leader and the gateways.
func NewRates(gateway string, view *View, ask Ask) *Rates {
	return &Rates{ask: ask, view: view, self: gateway, keys: map[string]*holding{}}
}

// Take takes an amount of a key's rates: nil, or ErrRate and when to try again. A key
// without rates takes nothing and is always free.
func (r *Rates) Take(ctx context.Context, key *cluster.Key, amount cluster.Amount) (retry time.Duration, err error) {
	limit := cluster.Amount{Requests: key.RequestsPerMinute, Tokens: key.TokensPerMinute}
	if limit.Requests == 0 {
		amount.Requests = 0
	}
	if limit.Tokens == 0 {
		amount.Tokens = 0
	}
	if amount == (cluster.Amount{}) {
		return 0, nil
	}
	s := r.of(key.ID)
	if r.spend(s, amount) {
		return 0, nil
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if r.spend(s, amount) { // another request has asked meanwhile
		return 0, nil
	}
	given, err := r.more(ctx, key.ID, s, limit, amount)
	switch {
	case errors.Is(err, ErrNoLeader):
		return r.alone(s, limit, amount)
	case err != nil:
		return 0, err
	case r.spend(s, amount):
		return 0, nil
	}
	return max(given.Retry, time.Millisecond), ErrRate
}

// Back returns what was taken at a time and not used, such as the tokens that a
// request did not write.
func (r *Rates) Back(key *cluster.Key, amount cluster.Amount, taken time.Time) {
	amount.Requests, amount.Tokens = max(0, amount.Requests), max(0, amount.Tokens)
	if key.RequestsPerMinute == 0 {
		amount.Requests = 0
	}
	if key.TokensPerMinute == 0 {
		amount.Tokens = 0
	}
	s := r.of(key.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	switch {
	case !taken.Before(s.began) && now.Before(s.ends):
		s.left = plus(s.left, amount) // it is of the slice that still may be used
	case now.Sub(taken) < backTime:
		s.giveBack(amount, taken)
	}
}

func plus(a, b cluster.Amount) cluster.Amount {
	return cluster.Amount{Requests: a.Requests + b.Requests, Tokens: a.Tokens + b.Tokens}
}

// Run tells every new leader what is held, as soon as the View's states come from it:
// until all gateways have done so it gives little. It returns ctx's cause.
func (r *Rates) Run(ctx context.Context, every time.Duration) error {
	for sleep(ctx, every) {
		for _, key := range r.untold() {
			s := r.of(key)
			select {
			case s.asking <- struct{}{}:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			_, _ = r.more(ctx, key, s, cluster.Amount{}, cluster.Amount{}) // repeated with the next turn
			<-s.asking
		}
	}
	return context.Cause(ctx)
}

// of returns what is held of a key.
func (r *Rates) of(key string) *holding {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.keys[key]
	if s == nil {
		s = &holding{asking: make(chan struct{}, 1)}
		r.keys[key] = s
	}
	return s
}

// spend takes from what is left.
func (r *Rates) spend(s *holding, amount cluster.Amount) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(s.ends) || amount.Requests > s.left.Requests || amount.Tokens > s.left.Tokens {
		return false
	}
	s.left.Requests -= amount.Requests
	s.left.Tokens -= amount.Tokens
	return true
}

// more asks the leader; the caller holds s.asking. It returns what was given.
func (r *Rates) more(ctx context.Context, key string, s *holding, limit, amount cluster.Amount) (cluster.Slice, error) {
	began, ask := r.prepare(key, s, limit, amount)
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	given, err := r.ask(ctx, ask)
	if err != nil {
		return given, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.told = reign{given.Leader, given.Term}
	// The time of the ask counts: that of the answer may be late.
	s.left, s.began, s.ends = given.Given, began, began.Add(given.Life)
	s.hold(began, given.Given)
	return given, nil
}

// prepare makes an ask, and gives up what it gives back.
func (r *Rates) prepare(key string, s *holding, limit, amount cluster.Amount) (time.Time, cluster.SliceAsk) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s.expire(now)
	ask := cluster.SliceAsk{Gateway: r.self, Key: key, Want: amount}
	// As much as was used of late in a second: one ask for many requests.
	recent := s.since(now.Add(-10 * time.Second))
	if limit.Requests > 0 {
		ask.Want.Requests = max(amount.Requests, min(recent.Requests/10, limit.Requests/20))
	}
	if limit.Tokens > 0 {
		ask.Want.Tokens = max(amount.Tokens, min(recent.Tokens/10, limit.Tokens/20))
	}
	if now.Sub(s.began) < backTime {
		s.giveBack(s.left, s.began)
	}
	s.left = cluster.Amount{}
	if now.Sub(s.unusedAt) < backTime {
		ask.Back = s.unused
	}
	s.unused = cluster.Amount{}
	for _, h := range s.held {
		ask.Held = append(ask.Held, cluster.HeldSlice{Age: now.Sub(h.at), Amount: h.amount})
	}
	return now, ask
}

// alone lets through this gateway's part without a leader.
func (r *Rates) alone(s *holding, limit, amount cluster.Amount) (time.Duration, error) {
	gateways := int64(0)
	for _, n := range r.view.State().AllNodes() {
		if n.Role == cluster.Gateway && n.Serves() {
			gateways++
		}
	}
	gateways = max(1, gateways)
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	s.expire(now)
	used := s.since(time.Time{})
	over := func(limit, used, amount int64) bool { return limit > 0 && used+amount > max(1, limit/gateways) }
	if over(limit.Requests, used.Requests, amount.Requests) || over(limit.Tokens, used.Tokens, amount.Tokens) {
		if len(s.held) == 0 {
			return cluster.SliceWindow, ErrRate
		}
		return max(time.Millisecond, cluster.SliceWindow-now.Sub(s.held[0].at)), ErrRate
	}
	s.hold(now, amount)
	return 0, nil
}

// untold lists the keys of which the present leader does not know what is held.
func (r *Rates) untold() (out []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for key, s := range r.keys {
		if s.expire(now); len(s.held) == 0 {
			if now.After(s.ends) && len(s.asking) == 0 {
				delete(r.keys, key)
			}
			continue
		}
		if node, term := r.view.Leader(); node != "" && s.told != (reign{node, term}) {
			out = append(out, key)
		}
	}
	return out
}

func (s *holding) hold(at time.Time, a cluster.Amount) {
	if a == (cluster.Amount{}) {
		return
	}
	if n := len(s.held); n >= maxHeld {
		s.held[n-1] = heldSlice{at, plus(s.held[n-1].amount, a)}
		return
	}
	s.held = append(s.held, heldSlice{at, a})
}

func (s *holding) expire(now time.Time) {
	for len(s.held) > 0 && now.Sub(s.held[0].at) >= cluster.SliceWindow {
		s.held = s.held[1:]
	}
}

// since sums what was held after a time.
func (s *holding) since(at time.Time) (sum cluster.Amount) {
	for _, h := range s.held {
		if h.at.After(at) {
			sum = plus(sum, h.amount)
		}
	}
	return sum
}

// giveBack takes off what was taken at a time and not used. It goes from the oldest:
// what stays counts longer than it would have to, never shorter.
func (s *holding) giveBack(a cluster.Amount, taken time.Time) {
	if a == (cluster.Amount{}) {
		return
	}
	if s.unused == (cluster.Amount{}) || taken.Before(s.unusedAt) {
		s.unusedAt = taken
	}
	s.unused = plus(s.unused, a)
	for i := range s.held {
		h := &s.held[i].amount
		requests, tokens := min(a.Requests, h.Requests), min(a.Tokens, h.Tokens)
		h.Requests, h.Tokens = h.Requests-requests, h.Tokens-tokens
		a.Requests, a.Tokens = a.Requests-requests, a.Tokens-tokens
	}
}
