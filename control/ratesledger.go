package control

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// given is what was given of one key.
type given struct {
	// limit is the rate, as of the last ask.
	limit cluster.Amount
	// seconds has an entry for each second in which something was given, oldest first.
	seconds []second
	sum     cluster.Amount
	// owed is what was used beyond what was reserved, and is more than the rate had left:
	// it takes what leaves the window, as if it were given then.
	owed cluster.Amount
	// early is what was given before grace had passed.
	early cluster.Amount
	// told are the gateways that have told what they hold.
	told map[string]heard
}

type second struct {
	at     time.Time
	amount cluster.Amount
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
	if i > 0 && at.Sub(g.seconds[i-1].at) < cluster.SliceStep {
		g.seconds[i-1].amount.Requests += a.Requests
		g.seconds[i-1].amount.Tokens += a.Tokens
		return g.seconds[i-1].at
	}
	g.seconds = append(g.seconds, second{})
	copy(g.seconds[i+1:], g.seconds[i:])
	g.seconds[i] = second{at, a}
	return at
}

// charge notes what was used at a time that is not in the future without being given.
func (g *given) charge(at time.Time, a cluster.Amount) {
	g.owed.Requests = min(maxOwed, g.owed.Requests+min(maxOwed, max(0, a.Requests)))
	g.owed.Tokens = min(maxOwed, g.owed.Tokens+min(maxOwed, max(0, a.Tokens)))
	g.pay(at)
}

// pay gives what is left at a time to what is owed.
func (g *given) pay(at time.Time) {
	if g.owed == (cluster.Amount{}) {
		return
	}
	part := func(limit, sum int64, owed *int64) int64 {
		if limit <= 0 {
			*owed = 0
			return 0
		}
		paid := min(*owed, max(0, limit-sum))
		*owed -= paid
		return paid
	}
	g.add(at, cluster.Amount{
		Requests: part(g.limit.Requests, g.sum.Requests, &g.owed.Requests),
		Tokens:   part(g.limit.Tokens, g.sum.Tokens, &g.owed.Tokens),
	})
}

// takeOff takes off what was added at a time and not used. The entry that has it is the
// last one that does not begin later, whatever was added since: an entry is not begun
// within another one's step. Without it the amount has left the window.
func (g *given) takeOff(at time.Time, a cluster.Amount) {
	i := len(g.seconds)
	for i > 0 && g.seconds[i-1].at.After(at) {
		i--
	}
	if i == 0 || at.Sub(g.seconds[i-1].at) >= cluster.SliceStep || a.Requests < 0 || a.Tokens < 0 {
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

// expire forgets what has left the window, and pays from it.
func (g *given) expire(now time.Time) {
	for len(g.seconds) > 0 && now.Sub(g.seconds[0].at) >= counted {
		first := g.seconds[0]
		g.seconds = slices.Delete(g.seconds, 0, 1)
		g.sum.Requests -= first.amount.Requests
		g.sum.Tokens -= first.amount.Tokens
		g.pay(first.at.Add(counted))
	}
}

// back takes off what was given at a time that is not known, and not used. It goes from
// the oldest: what stays counts longer than it would have to, never shorter.
func (g *given) back(a cluster.Amount) {
	for i := range g.seconds {
		a = g.reduce(&g.seconds[i].amount, a)
	}
}

// retry is when more can be given of the rates that had too little.
func (g *given) retry(now time.Time, requests, tokens bool) time.Duration {
	after := cluster.SliceStep
	for _, s := range g.seconds {
		gone := counted - now.Sub(s.at)
		if requests && s.amount.Requests > 0 {
			after, requests = max(after, gone), false
		}
		if tokens && s.amount.Tokens > 0 {
			after, tokens = max(after, gone), false
		}
	}
	return after
}

// counts tells what is in the ledger. What is too much to tell is told as if it were
// given with the last that is told.
func (g *given) counts(clock func(time.Time) time.Duration) []cluster.CountedSlice {
	var all []cluster.CountedSlice
	for _, s := range g.seconds {
		one := cluster.CountedSlice{At: clock(s.at), Amount: s.amount}
		switch n := len(all); {
		case s.amount == (cluster.Amount{}):
		case n < maxCounts:
			all = append(all, one)
		default:
			last := &all[n-1]
			last.At = one.At
			last.Amount.Requests += one.Amount.Requests
			last.Amount.Tokens += one.Amount.Tokens
		}
	}
	return all
}
