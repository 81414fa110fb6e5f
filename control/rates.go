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
// What a request has used beyond what it had reserved is counted too. If that is more
// than the rate has left, the rest is owed: what leaves the window goes to it first, so
// that the rate holds in the long run, at all gateways alike. A new leader knows of it
// what is in the last minute.
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

// heard is what is known of a gateway: the last Seq of its returns, and of what it gave
// itself, when it asked last, and what it waits for.
type heard struct {
	returned, alone uint64
	asked           time.Time
	waits           waiting
}

// Bounds of rates.
const (
	// grace is how long a new leader gives little.
	grace = 3 * time.Second
	// counted is for how long an entry of a given counts: until its end has left the
	// window.
	counted = cluster.SliceWindow + cluster.SliceStep
	// maxCounts bounds the entries that are told, maxOwed what is owed of one rate.
	maxCounts, maxOwed = 256, 1 << 50
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
	g.limit = limit
	g.expire(now)
	out := cluster.Slice{Life: cluster.SliceLife, Leader: r.leader, Term: r.term, Now: r.clock(now)}
	out.Noted = r.hear(g, now, a)
	g.pay(now)
	early := now.Sub(r.from) < grace
	kept := g.kept(now, a)
	out.Given.Requests = g.left(limit.Requests, g.sum.Requests+kept.Requests, g.early.Requests, a.Want.Requests, early)
	out.Given.Tokens = g.left(limit.Tokens, g.sum.Tokens+kept.Tokens, g.early.Tokens, a.Want.Tokens, early)
	short := out.Given
	refused := short.Requests < min(a.Need.Requests, a.Want.Requests) || short.Tokens < min(a.Need.Tokens, a.Want.Tokens)
	if refused {
		out.Given = cluster.Amount{}
	}
	out.At = r.clock(g.add(now, out.Given))
	if early {
		g.early.Requests += out.Given.Requests
		g.early.Tokens += out.Given.Tokens
	}
	if out.Given != a.Want {
		out.Retry = g.retry(now, short.Requests < a.Want.Requests, short.Tokens < a.Want.Tokens)
		if early {
			out.Retry = max(cluster.SliceStep, grace-now.Sub(r.from)) // then more is known
		}
		out.Counts = g.counts(r.clock)
		out.Owed = cluster.Amount{Requests: g.owed.Requests + kept.Requests, Tokens: g.owed.Tokens + kept.Tokens}
	}
	var atLeast time.Duration
	if early {
		atLeast = out.Retry
	}
	g.wait(now, a, refused, kept, atLeast)
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
	last.asked = now
	if !known {
		for _, h := range a.Held {
			g.past(now, h.Age, h.Amount) // what comes back was taken off it
		}
		for _, h := range a.Alone {
			last.alone = max(last.alone, h.Seq)
			if h.Over && h.Age >= 0 && h.Age < cluster.SliceWindow {
				at := now.Add(-h.Age) // it is held too, and was noted with that
				g.takeOff(at, h.Amount)
				g.charge(at, h.Amount)
			}
		}
		g.told[a.Gateway] = last
		return true
	}
	for _, h := range a.Alone {
		if h.Seq > last.alone {
			last.alone = h.Seq
			if h.Over && h.Age >= 0 && h.Age < cluster.SliceWindow {
				g.charge(now.Add(-h.Age), h.Amount)
			} else {
				g.past(now, h.Age, h.Amount)
			}
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

// sweep forgets the keys of which nothing was given lately.
func (r *rates) sweep(now time.Time) {
	for key, g := range r.keys {
		if g.expire(now); len(g.seconds) == 0 {
			delete(r.keys, key)
		}
	}
}
