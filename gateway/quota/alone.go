package quota

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// takeOwnPart gives what a claim is missing from this gateway's part of the rates, for
// want of a leader. lonely says that this was so before. asking is held.
func (a *Account) takeOwnPart(c *claim, lonely bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.book.cfg.Now()
	if !lonely {
		a.aloneUntil = now.Add(alone)
	}
	a.said = nil
	a.unspend(now, c.parts, c.has)
	a.lapse(now)
	n := int64(max(1, a.book.cfg.Gateways()))
	due := minus(c.need, a.left())
	requests := a.partAfter(now, n, a.rates.Requests, due.Requests, func(x cluster.Amount) int64 { return x.Requests })
	tokens := a.partAfter(now, n, a.rates.Tokens, due.Tokens, func(x cluster.Amount) int64 { return x.Tokens })
	c.parts, c.wait, c.short = nil, max(requests, tokens), shortage{requests: requests > 0, tokens: tokens > 0}
	if c.wait > 0 {
		return
	}
	a.add(&slice{from: now, at: now, until: now.Add(cluster.SliceLife), given: due, left: due, own: true, seq: a.next()})
	c.parts, c.ok = a.takeAt(now, c.need)
}

// partAfter is when a gateway may give itself an amount of a rate: when it stays within
// its part, or has got nothing in the window. mu is held, lapse was called.
func (a *Account) partAfter(now time.Time, gateways, rate, due int64, of func(cluster.Amount) int64) time.Duration {
	var given int64
	for _, s := range a.slices {
		given += of(s.given)
	}
	fits := func() bool { return rate == 0 || due <= 0 || given == 0 || given+due <= max(1, rate/gateways) }
	if fits() {
		return 0
	}
	byAge := slices.SortedStableFunc(slices.Values(a.slices), func(x, y *slice) int { return x.at.Compare(y.at) })
	for _, s := range byAge {
		if given -= of(s.given); fits() {
			return cluster.SliceWindow - now.Sub(s.at)
		}
	}
	return cluster.SliceWindow // does not happen: without slices nothing is given
}
