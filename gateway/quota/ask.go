package quota

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// question is an ask that is on its way.
type question struct {
	ask   cluster.SliceAsk
	began time.Time
	// held are the slices of ask.Held; last is the newest of the returns, all of which
	// are in the ask, or taken off what is held.
	held []*slice
	last uint64
}

// insist asks again, once, when there was no answer for the first time: one lost answer is no lost leader, and who takes it for
// one gives itself what others may have been given. Both together take no longer than one ask may. asking is held.
func (a *Account) insist(ctx context.Context, want cluster.Amount) (cluster.Slice, error) {
	a.mu.Lock()
	alone := !a.aloneUntil.IsZero()
	a.mu.Unlock()
	if alone {
		return a.ask(ctx, want, a.book.cfg.Timeout)
	}
	s, err := a.ask(ctx, want, a.book.cfg.Timeout/2)
	if err == nil || errors.Is(err, ErrRefused) {
		return s, err
	}
	return a.ask(ctx, want, a.book.cfg.Timeout/2)
}

// ask sends one question. asking is held.
func (a *Account) ask(ctx context.Context, want cluster.Amount, timeout time.Duration) (cluster.Slice, error) {
	q := a.question(want)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := a.book.cfg.Lessor.Slice(ctx, q.ask)
	if err != nil {
		return s, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.heard(&q, &s)
	a.aloneUntil = time.Time{}
	stamp := s.At
	if s.Now == 0 {
		stamp = 0
	}
	a.add(&slice{
		from: q.began, at: q.began, until: q.began.Add(min(s.Life, cluster.SliceLife)), given: s.Given, left: s.Given, stamp: stamp,
	})
	a.notBefore = time.Time{}
	a.scarce = scarcity{requests: s.Given.Requests < want.Requests, tokens: s.Given.Tokens < want.Tokens}
	if a.scarce != (scarcity{}) {
		a.notBefore = a.book.cfg.Now().Add(min(s.Retry, maxPause))
	}
	return s, nil
}

// question puts into an ask what the leader is to know.
func (a *Account) question(want cluster.Amount) question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := question{began: a.book.cfg.Now()}
	a.lapse(q.began)
	q.ask = cluster.SliceAsk{
		Gateway: a.book.cfg.Gateway, Key: a.key, Want: want, Leader: a.reign.leader, Term: a.reign.term,
	}
	for i := range a.returns {
		r := &a.returns[i]
		if !r.sent && !a.stamps {
			// Not again: such a leader does not know a repetition.
			q.ask.Back = plus(q.ask.Back, r.amount)
		}
		if r.slice.stamp != 0 {
			q.ask.Returned = append(q.ask.Returned, cluster.ReturnedSlice{Seq: r.seq, At: r.slice.stamp, Amount: r.amount})
		}
		r.sent, q.last = true, r.seq
	}
	for _, s := range a.slices {
		if s.given != (cluster.Amount{}) {
			q.held = append(q.held, s)
			age := max(0, q.began.Sub(s.at))
			q.ask.Held = append(q.ask.Held, cluster.HeldSlice{Age: age, Amount: s.given})
			if s.own {
				q.ask.Alone = append(q.ask.Alone, cluster.AloneSlice{Seq: s.seq, Age: age, Amount: s.given})
				s.asked++
			}
		}
	}
	return q
}

// heard notes what a leader knows now. mu is held.
func (a *Account) heard(q *question, s *cluster.Slice) {
	a.returns = slices.DeleteFunc(a.returns, func(r returned) bool { return r.seq <= q.last })
	a.stamps = s.Now != 0
	now := reign{s.Leader, s.Term}
	if now != a.reign {
		a.reign = now
		for _, old := range a.slices {
			old.stamp = 0 // it was another leader's
		}
	}
	if !a.stamps {
		return
	}
	for i, told := range q.held {
		// If an answer was lost, the leader may have it under the time of that ask, and
		// it counts there until that is over.
		if s.Noted || told.own && told.asked == 1 {
			told.stamp = s.Now - q.ask.Held[i].Age
		}
		told.own = false
	}
}
