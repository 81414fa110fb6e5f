package control

import (
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// waiting is a need that a gateway was refused, until it should have asked again. Without
// it a gateway whose clients come when they are told would never find anything, because
// others ask all the time and take each bit that leaves the window.
//
// What is needed is kept for the gateway if it has no more than half of its fair share
// with it: the rate by the gateways that ask. So nothing is kept where gateways have
// about the same, or where requests are so large that fairness is chance; and a need that
// nobody comes back for, or at another gateway, holds up little, and not for long.
type waiting struct {
	since, until time.Time
	// keep is what is needed, or nothing.
	keep cluster.Amount
}

// waitSlack is for how long a need is kept beyond the time that its client is told: that
// is rounded up to seconds.
const waitSlack = 2 * time.Second

// kept is what is to be left for the other gateways that wait, or for those that wait
// longer if the gateway that asks is poor.
func (g *given) kept(now time.Time, a *cluster.SliceAsk) (sum cluster.Amount) {
	own := g.told[a.Gateway].waits
	first := now.Before(own.until) && g.poor(now, a)
	for name, h := range g.told {
		if name == a.Gateway || !now.Before(h.waits.until) || first && !h.waits.since.Before(own.since) {
			continue
		}
		sum.Requests, sum.Tokens = sum.Requests+h.waits.keep.Requests, sum.Tokens+h.waits.keep.Tokens
	}
	return cluster.Amount{Requests: min(sum.Requests, g.limit.Requests/2), Tokens: min(sum.Tokens, g.limit.Tokens/2)}
}

// wait notes what a gateway was refused, or that it waits no more if it was not.
func (g *given) wait(now time.Time, a *cluster.SliceAsk, refused bool, kept cluster.Amount, atLeast time.Duration) {
	h, known := g.told[a.Gateway]
	if !known || a.Want == (cluster.Amount{}) {
		return
	}
	defer func() { g.told[a.Gateway] = h }()
	if !refused {
		h.waits = waiting{}
		return
	}
	if !now.Before(h.waits.until) {
		h.waits = waiting{since: now}
	}
	missing := cluster.Amount{
		Requests: a.Need.Requests + kept.Requests + g.owed.Requests + g.sum.Requests - g.limit.Requests,
		Tokens:   a.Need.Tokens + kept.Tokens + g.owed.Tokens + g.sum.Tokens - g.limit.Tokens,
	}
	h.waits.keep = cluster.Amount{}
	if g.poor(now, a) {
		h.waits.keep = a.Need
	}
	h.waits.until = now.Add(max(atLeast, g.after(now, missing)) + waitSlack)
}

// poor says that a gateway has little of the rates, also with what it needs.
func (g *given) poor(now time.Time, a *cluster.SliceAsk) bool {
	var active int64
	for _, h := range g.told {
		if now.Sub(h.asked) < cluster.SliceWindow {
			active++
		}
	}
	has := a.Need
	for _, x := range a.Held {
		has.Requests, has.Tokens = has.Requests+max(0, x.Amount.Requests), has.Tokens+max(0, x.Amount.Tokens)
	}
	fits := func(rate, has int64) bool { return rate <= 0 || has <= rate/max(1, 2*active) }
	return fits(g.limit.Requests, has.Requests) && fits(g.limit.Tokens, has.Tokens)
}

// after is when an amount has left the window, or all.
func (g *given) after(now time.Time, missing cluster.Amount) (after time.Duration) {
	for _, s := range g.seconds {
		if (g.limit.Requests <= 0 || missing.Requests <= 0) && (g.limit.Tokens <= 0 || missing.Tokens <= 0) {
			break
		}
		after = counted - now.Sub(s.at)
		missing.Requests -= s.amount.Requests
		missing.Tokens -= s.amount.Tokens
	}
	return after
}
