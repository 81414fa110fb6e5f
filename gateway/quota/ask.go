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

// claim is what a request needs, and what comes of it.
type claim struct {
	need, want cluster.Amount
	// parts are what it has, has is their sum. They are all that it needs if ok.
	parts []part
	has   cluster.Amount
	ok    bool
	// wait is when there may be enough, short of what there is too little.
	wait  time.Duration
	short shortage
}

// insist asks again, once, when there was no answer for the first time: one lost answer is no lost leader, and who takes it for
// one gives itself what others may have been given. Both together take no longer than one ask may. asking is held.
func (a *Account) insist(ctx context.Context, c *claim) error {
	a.mu.Lock()
	alone := !a.aloneUntil.IsZero()
	a.mu.Unlock()
	if alone {
		return a.ask(ctx, c, a.book.cfg.Timeout)
	}
	err := a.ask(ctx, c, a.book.cfg.Timeout/2)
	if err == nil || errors.Is(err, ErrRefused) {
		return err
	}
	return a.ask(ctx, c, a.book.cfg.Timeout/2)
}

// ask sends one question: for a claim, or to tell what the leader is to know if there is none. asking is held.
func (a *Account) ask(ctx context.Context, c *claim, timeout time.Duration) error {
	var want, need cluster.Amount
	if c != nil {
		want, need = c.want, minus(c.need, c.has)
	}
	q := a.question(want, need)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s, err := a.book.cfg.Lessor.Slice(ctx, q.ask)
	if err != nil {
		return err
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
	if c != nil {
		a.grant(c, &s)
	}
	return nil
}

// grant takes what a claim needs, now that the leader has answered, or notes why it cannot. mu is held.
func (a *Account) grant(c *claim, s *cluster.Slice) {
	now := a.book.cfg.Now()
	a.unspend(now, c.parts, c.has)
	a.said = nil
	if s.Given != c.want {
		a.said = &said{heard: now, now: s.Now, counts: s.Counts, owed: s.Owed, retry: now.Add(max(s.Retry, minRetry))}
		if s.Now == 0 { // it tells no times, so nothing of what counts
			a.said.counts = nil
			a.said.short = shortage{requests: s.Given.Requests < c.want.Requests, tokens: s.Given.Tokens < c.want.Tokens}
		}
	}
	if c.parts, c.ok = a.takeAt(now, c.need); c.ok {
		a.pause, a.notBefore = 0, time.Time{}
		return
	}
	if now.Sub(a.notBefore) > maxPause {
		a.pause = 0 // that was long ago
	}
	a.pause = min(max(2*a.pause, minRetry), maxPause)
	a.notBefore = now.Add(a.pause)
	c.wait, c.short = a.outlook(now, c.need)
	if c.wait == 0 && a.said != nil {
		a.said.refused = c.need
		c.wait, c.short = a.outlook(now, c.need)
	}
	a.release(now)
}

// question puts into an ask what the leader is to know.
func (a *Account) question(want, need cluster.Amount) question {
	a.mu.Lock()
	defer a.mu.Unlock()
	q := question{began: a.book.cfg.Now()}
	a.lapse(q.began)
	q.ask = cluster.SliceAsk{
		Gateway: a.book.cfg.Gateway, Key: a.key, Want: want, Need: need, Leader: a.reign.leader, Term: a.reign.term,
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
				q.ask.Alone = append(q.ask.Alone, cluster.AloneSlice{Seq: s.seq, Age: age, Amount: s.given, Over: s.over})
				s.asked++
			}
		}
	}
	return q
}

// heard notes what a leader knows now. mu is held.
func (a *Account) heard(q *question, s *cluster.Slice) {
	a.returns = slices.DeleteFunc(a.returns, func(r returned) bool {
		if r.seq <= q.last && a.said != nil {
			takeOff(a.said.counts, r.slice.stamp, r.amount)
		}
		return r.seq <= q.last
	})
	a.stamps = s.Now != 0
	now := reign{s.Leader, s.Term}
	if now != a.reign {
		a.reign, a.said = now, nil
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
		if told.own && a.said != nil {
			a.said.owed = plus(a.said.owed, told.given)
		}
		told.own = false
	}
	a.join()
}
