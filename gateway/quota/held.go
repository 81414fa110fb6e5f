package quota

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

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
	// over says that a request used it beyond what it had reserved.
	over bool
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

// release ends the slices before their time: others may have use for them. mu is held.
func (a *Account) release(now time.Time) {
	for _, s := range a.slices {
		s.until = s.at
	}
	a.lapse(now)
}

// left is what can be spent. mu is held, lapse was called.
func (a *Account) left() (sum cluster.Amount) {
	for _, s := range a.slices {
		sum = plus(sum, s.left)
	}
	return sum
}

// spend takes an amount from the oldest slices, as far as it goes. mu is held.
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

// unspend puts back an amount of what spend took. mu is held.
func (a *Account) unspend(now time.Time, parts []part, amount cluster.Amount) {
	a.lapse(now)
	// From the newest, which has the longest time before it.
	for _, p := range slices.Backward(parts) {
		back := least(amount, p.amount)
		amount = minus(amount, back)
		switch {
		case now.Before(p.slice.until):
			p.slice.left = plus(p.slice.left, back)
		case slices.Contains(a.slices, p.slice):
			a.giveBack(p.slice, back)
		} // what is older has left the ledger
	}
}

// add notes what was given, with what it can be kept as one. mu is held.
func (a *Account) add(s *slice) {
	if s.given == (cluster.Amount{}) {
		return
	}
	for _, x := range slices.Backward(a.slices) {
		if s.at.Sub(x.at) >= 2*bucket {
			break
		}
		spent := x.left == (cluster.Amount{})
		one := x.stamp == s.stamp && x.own == s.own && x.over == s.over && x.asked == 0
		if s.stamp == 0 {
			one = one && spent && s.at.Sub(x.from) < bucket
		}
		if one {
			if spent {
				x.until = s.until // else what is left of the older ends it
			}
			x.at, x.given, x.left = s.at, plus(x.given, s.given), plus(x.left, s.left)
			return
		}
	}
	a.slices = append(a.slices, s)
}

// join keeps what was used beyond reservations as one, where the leader knows of it, so
// that not each of them is told to the next one. mu is held.
func (a *Account) join() {
	var last *slice
	a.slices = slices.DeleteFunc(a.slices, func(s *slice) bool {
		if !s.over || s.own {
			return false
		}
		if last != nil && s.at.Sub(last.from) < bucket {
			last.at, last.given = s.at, plus(last.given, s.given)
			return true
		}
		last = s
		return false
	})
}

// charge notes what a request used beyond what it had reserved. The leader is told of it
// as of what a gateway gave itself. mu is held.
func (a *Account) charge(now time.Time, amount cluster.Amount) {
	a.add(&slice{from: now, at: now, until: now, given: amount, own: true, over: true, seq: a.next()})
}
