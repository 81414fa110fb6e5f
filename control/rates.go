package control

import (
	"fmt"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
)

// rates is the leader's memory of what it has given of the keys' rates.
//
// A slice may be used for SliceLife after it was given, so what is used within any
// minute was given within SliceWindow. The sum of a key's slices within every
// SliceWindow is at most its rate; therefore the use within every minute is, with any
// number of gateways.
//
// A new leader knows nothing of the slices before it. Gateways tell it with their
// first ask after the change, and ask at once when they see the change (client.Rates).
// Until grace has passed it gives no more than a twentieth of a rate, so that at most
// 5 % too much is used if all gateways that hold slices are heard within that time. A
// gateway that is lost with the leader takes the knowledge of its slices with it.
//
// What a gateway did not use comes back under the time that the leader had told it
// (cluster.Slice.At), so it is taken off where it was noted, or has left the window
// and counts no more. Times are since the reign began.
type rates struct {
	mu   sync.Mutex
	from time.Time
	// leader and term are the reign: what was given in another one is not known here.
	leader string
	term   uint64
	keys   map[string]*given
}

// given is what was given of one key.
type given struct {
	// seconds has an entry for each second in which something was given, oldest first.
	seconds []second
	sum     cluster.Amount
	// early is what was given before grace had passed.
	early cluster.Amount
	// told are the gateways that have told what they hold.
	told map[string]heard
}

// heard are the last Seq of a gateway's returns, and of what it gave itself.
type heard struct{ returned, alone uint64 }

type second struct {
	at     time.Time
	amount cluster.Amount
}

// Bounds of rates.
const (
	// grace is how long a new leader gives little.
	grace = 3 * time.Second
	// step is the width of a given's entries. An entry counts until its end has left
	// the window.
	step = 500 * time.Millisecond
	// maxKeys bounds the keys that are remembered, maxTold the gateways of each.
	maxKeys, maxTold = 100_000, 1024
	earlyShare       = 20
)

func newRates() *rates { return &rates{keys: map[string]*given{}} }

// reset begins a reign.
func (r *rates) reset(now time.Time, leader string, term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from, r.leader, r.term = now, leader, term
	clear(r.keys)
}

// ask gives what a key has left. limit is the key's rate, a part of which is 0 for no
// bound.
func (r *rates) ask(now time.Time, limit cluster.Amount, a *cluster.SliceAsk) (cluster.Slice, error) {
	if a.Want.Requests < 0 || a.Want.Tokens < 0 || a.Back.Requests < 0 || a.Back.Tokens < 0 {
		return cluster.Slice{}, fmt.Errorf("%w: an amount is negative", client.ErrBadRequest)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.keys[a.Key]
	if g == nil {
		if len(r.keys) >= maxKeys {
			r.sweep(now)
		}
		g = &given{told: map[string]heard{}}
		r.keys[a.Key] = g
	}
	g.expire(now)
	out := cluster.Slice{Life: cluster.SliceLife, Leader: r.leader, Term: r.term, Now: r.clock(now)}
	out.Noted = r.hear(g, now, a)
	early := now.Sub(r.from) < grace
	out.Given.Requests = g.left(limit.Requests, g.sum.Requests, g.early.Requests, a.Want.Requests, early)
	out.Given.Tokens = g.left(limit.Tokens, g.sum.Tokens, g.early.Tokens, a.Want.Tokens, early)
	out.At = r.clock(g.add(now, out.Given))
	if early {
		g.early.Requests += out.Given.Requests
		g.early.Tokens += out.Given.Tokens
	}
	if out.Given != a.Want {
		out.Retry = g.retry(now)
		if early {
			out.Retry = min(out.Retry, grace-now.Sub(r.from))
		}
	}
	return out, nil
}

// dawn is a reign's beginning on the clock that gateways are told of: later than any
// age of what they hold, so that its times are never 0.
const dawn = time.Hour

// clock is a time as gateways are told it.
func (r *rates) clock(t time.Time) time.Duration { return dawn + t.Sub(r.from) }

// when is the time that clock has told.
func (r *rates) when(d time.Duration) time.Time { return r.from.Add(d - dawn) }

// hear notes what a gateway holds, with its first ask in a reign, or what it returns.
// noted says that it was the first ask.
func (r *rates) hear(g *given, now time.Time, a *cluster.SliceAsk) (noted bool) {
	last, known := g.told[a.Gateway]
	if !known && len(g.told) >= maxTold {
		g.back(a.Back)
		return false
	}
	if !known {
		for _, h := range a.Held {
			g.past(now, h.Age, h.Amount) // what comes back was taken off it
		}
		for _, h := range a.Alone {
			last.alone = max(last.alone, h.Seq)
		}
		g.told[a.Gateway] = last
		return true
	}
	for _, h := range a.Alone {
		if h.Seq > last.alone {
			last.alone = h.Seq
			g.past(now, h.Age, h.Amount)
		}
	}
	switch {
	case len(a.Returned) == 0:
		g.back(a.Back)
	case a.Leader == r.leader && a.Term == r.term:
		for _, b := range a.Returned {
			if b.Seq > last.returned { // else the answer to an earlier ask was lost
				last.returned = b.Seq
				g.takeOff(r.when(b.At), b.Amount)
			}
		}
	}
	g.told[a.Gateway] = last
	return false
}

// past notes what was given a while ago.
func (g *given) past(now time.Time, age time.Duration, a cluster.Amount) {
	if age >= 0 && age < cluster.SliceWindow && a.Requests >= 0 && a.Tokens >= 0 {
		g.add(now.Add(-age), a)
	}
}

// left is what may be given of one kind.
func (g *given) left(limit, sum, before, want int64, early bool) int64 {
	if limit <= 0 {
		return want
	}
	left := limit - sum
	if early {
		left = min(left, max(1, limit/earlyShare)-before)
	}
	return max(0, min(want, left))
}

// add notes what was given at a time that is not in the future, and returns the time of
// the entry that has it.
func (g *given) add(at time.Time, a cluster.Amount) time.Time {
	if a.Requests <= 0 && a.Tokens <= 0 {
		return at
	}
	g.sum.Requests += a.Requests
	g.sum.Tokens += a.Tokens
	// From the end: what is noted is new, but for what gateways tell a new leader.
	i := len(g.seconds)
	for i > 0 && g.seconds[i-1].at.After(at) {
		i--
	}
	if i > 0 && at.Sub(g.seconds[i-1].at) < step {
		g.seconds[i-1].amount.Requests += a.Requests
		g.seconds[i-1].amount.Tokens += a.Tokens
		return g.seconds[i-1].at
	}
	g.seconds = append(g.seconds, second{})
	copy(g.seconds[i+1:], g.seconds[i:])
	g.seconds[i] = second{at, a}
	return at
}

// takeOff takes off what was added at a time and not used. The entry that has it is the
// last one that does not begin later, whatever was added since: an entry is not begun
// within another one's step. Without it the amount has left the window.
func (g *given) takeOff(at time.Time, a cluster.Amount) {
	i := len(g.seconds)
	for i > 0 && g.seconds[i-1].at.After(at) {
		i--
	}
	if i == 0 || at.Sub(g.seconds[i-1].at) >= step || a.Requests < 0 || a.Tokens < 0 {
		return
	}
	g.reduce(&g.seconds[i-1].amount, a)
}

// reduce takes an amount off an entry, as far as it goes, and returns the rest.
func (g *given) reduce(s *cluster.Amount, a cluster.Amount) cluster.Amount {
	requests, tokens := min(a.Requests, s.Requests), min(a.Tokens, s.Tokens)
	s.Requests, s.Tokens = s.Requests-requests, s.Tokens-tokens
	g.sum.Requests, g.sum.Tokens = g.sum.Requests-requests, g.sum.Tokens-tokens
	return cluster.Amount{Requests: a.Requests - requests, Tokens: a.Tokens - tokens}
}

// expire forgets what has left the window.
func (g *given) expire(now time.Time) {
	n := 0
	for n < len(g.seconds) && now.Sub(g.seconds[n].at) >= cluster.SliceWindow+step {
		g.sum.Requests -= g.seconds[n].amount.Requests
		g.sum.Tokens -= g.seconds[n].amount.Tokens
		n++
	}
	g.seconds = append(g.seconds[:0], g.seconds[n:]...)
}

// back takes off what was given at a time that is not known, and not used. It goes from
// the oldest: what stays counts longer than it would have to, never shorter.
func (g *given) back(a cluster.Amount) {
	for i := range g.seconds {
		a = g.reduce(&g.seconds[i].amount, a)
	}
}

// retry is when the oldest amount leaves the window.
func (g *given) retry(now time.Time) time.Duration {
	for _, s := range g.seconds {
		if s.amount != (cluster.Amount{}) {
			return max(step, cluster.SliceWindow+step-now.Sub(s.at))
		}
	}
	return step
}

// sweep forgets the keys of which nothing was given lately.
func (r *rates) sweep(now time.Time) {
	for key, g := range r.keys {
		if g.expire(now); len(g.seconds) == 0 {
			delete(r.keys, key)
		}
	}
}
