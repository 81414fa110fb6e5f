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
type rates struct {
	mu   sync.Mutex
	from time.Time
	keys map[string]*given
}

// given is what was given of one key.
type given struct {
	// seconds has an entry for each second in which something was given, oldest first.
	seconds []second
	sum     cluster.Amount
	// early is what was given before grace had passed.
	early cluster.Amount
	// told are the gateways that have told what they hold.
	told map[string]bool
}

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
func (r *rates) reset(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.from = now
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
		g = &given{told: map[string]bool{}}
		r.keys[a.Key] = g
	}
	g.expire(now)
	if !g.told[a.Gateway] && len(g.told) < maxTold {
		g.told[a.Gateway] = true
		for _, h := range a.Held {
			if h.Age >= 0 && h.Age < cluster.SliceWindow {
				g.add(now.Add(-h.Age), h.Amount)
			}
		}
	} else {
		g.back(a.Back) // what is held has it taken off already
	}
	early := now.Sub(r.from) < grace
	out := cluster.Slice{Life: cluster.SliceLife}
	out.Given.Requests = g.left(limit.Requests, g.sum.Requests, g.early.Requests, a.Want.Requests, early)
	out.Given.Tokens = g.left(limit.Tokens, g.sum.Tokens, g.early.Tokens, a.Want.Tokens, early)
	g.add(now, out.Given)
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

// add notes what was given at a time that is not in the future.
func (g *given) add(at time.Time, a cluster.Amount) {
	if a.Requests <= 0 && a.Tokens <= 0 {
		return
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
		return
	}
	g.seconds = append(g.seconds, second{})
	copy(g.seconds[i+1:], g.seconds[i:])
	g.seconds[i] = second{at, a}
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

// back takes off what was given and not used. It goes from the oldest: what stays
// counts longer than it would have to, never shorter.
func (g *given) back(a cluster.Amount) {
	for i := range g.seconds {
		s := &g.seconds[i].amount
		requests, tokens := min(a.Requests, s.Requests), min(a.Tokens, s.Tokens)
		s.Requests, s.Tokens = s.Requests-requests, s.Tokens-tokens
		g.sum.Requests, g.sum.Tokens = g.sum.Requests-requests, g.sum.Tokens-tokens
		a.Requests, a.Tokens = a.Requests-requests, a.Tokens-tokens
	}
}

// retry is when the oldest amount leaves the window.
func (g *given) retry(now time.Time) time.Duration {
	if len(g.seconds) == 0 {
		return step
	}
	return max(step, cluster.SliceWindow+step-now.Sub(g.seconds[0].at))
}

// sweep forgets the keys of which nothing was given lately.
func (r *rates) sweep(now time.Time) {
	for key, g := range r.keys {
		if g.expire(now); len(g.seconds) == 0 {
			delete(r.keys, key)
		}
	}
}
