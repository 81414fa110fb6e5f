package quota

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// said is what the leader said when it gave less than was wanted.
type said struct {
	// heard is when, and now the leader's clock then or a little before.
	heard time.Time
	now   time.Duration
	// counts is all that counts of the rates, the oldest first. Leaders of older builds
	// do not tell; then short is of which rates they gave less than was wanted.
	counts []cluster.CountedSlice
	owed   cluster.Amount
	short  shortage
	// refused is a need that it did not give, though by what counts there was enough: it
	// began lately, and gives little until retry.
	refused cluster.Amount
	retry   time.Time
}

// counted is for how long the leader counts what was given.
const counted = cluster.SliceWindow + cluster.SliceStep

// outlook is when the leader can have enough for a request as far as is known, 0 if it
// may have that already, and of which rates it has too little. mu is held.
func (a *Account) outlook(now time.Time, need cluster.Amount) (wait time.Duration, short shortage) {
	w := a.said
	if w == nil {
		return 0, shortage{}
	}
	later, refused := max(0, w.retry.Sub(now)), w.refused != (cluster.Amount{}) && covers(need, w.refused)
	if w.counts == nil {
		left := a.left()
		short.requests = w.short.requests && left.Requests < need.Requests
		short.tokens = w.short.tokens && left.Tokens < need.Tokens
		if !refused && short == (shortage{}) {
			return 0, short
		}
		return later, short
	}
	counts, owed := a.forecast()
	clock := w.now + now.Sub(w.heard)
	requests := enoughAfter(counts, clock, a.rates.Requests, need.Requests, owed.Requests, func(x cluster.Amount) int64 { return x.Requests })
	tokens := enoughAfter(counts, clock, a.rates.Tokens, need.Tokens, owed.Tokens, func(x cluster.Amount) int64 { return x.Tokens })
	wait = max(requests, tokens)
	if refused {
		wait = max(wait, later)
	}
	return wait, shortage{requests: requests > 0, tokens: tokens > 0}
}

// forecast is what counts and is owed once the leader knows what this gateway knows, and
// has back what this gateway has left. mu is held, said has counts.
func (a *Account) forecast() (counts []cluster.CountedSlice, owed cluster.Amount) {
	counts, owed = a.said.counts, a.said.owed
	if len(a.returns) > 0 || a.left() != (cluster.Amount{}) {
		counts = slices.Clone(counts)
	}
	for _, r := range a.returns {
		takeOff(counts, r.slice.stamp, r.amount)
	}
	for _, s := range a.slices {
		takeOff(counts, s.stamp, s.left)
		if s.own {
			owed = plus(owed, s.given)
		}
	}
	return counts, owed
}

// takeOff takes off what the leader noted under a time, as it does when that comes back.
func takeOff(counts []cluster.CountedSlice, stamp time.Duration, amount cluster.Amount) {
	if stamp == 0 {
		return // it does not know of it
	}
	i := len(counts)
	for i > 0 && counts[i-1].At > stamp {
		i--
	}
	if i > 0 && stamp-counts[i-1].At < cluster.SliceStep {
		counts[i-1].Amount = minus(counts[i-1].Amount, amount)
	}
}

// enoughAfter is when a rate has enough left for a need, on the leader's clock: what is
// owed goes first, and what pays for it counts in its turn.
func enoughAfter(counts []cluster.CountedSlice, clock time.Duration, rate, need, owed int64, of func(cluster.Amount) int64) time.Duration {
	if rate == 0 || need == 0 {
		return 0
	}
	var sum int64
	for _, c := range counts {
		if clock-c.At < counted {
			sum += of(c.Amount)
		}
	}
	missing := need + owed + sum - rate
	if missing <= 0 {
		return 0
	}
	var windows int64
	if more := need + owed - rate; more > 0 {
		windows = (more + rate - 1) / rate
		missing -= windows * rate
	}
	after := time.Duration(min(windows, maxWindows)) * counted
	for _, c := range counts {
		if missing <= 0 {
			break
		}
		if left := counted - (clock - c.At); left > 0 && of(c.Amount) > 0 {
			missing -= of(c.Amount)
			if missing <= 0 {
				after += left
			}
		}
	}
	return after
}

// maxWindows bounds how far an outlook goes.
const maxWindows = 24 * 60
