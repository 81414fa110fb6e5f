package schedule

import (
	"slices"
	"sync"
	"time"
)

// TransitWait is how long a hand-off that was sent is waited for. It is far more
// than one takes within a process; one that takes longer was lost with its link.
const TransitWait = 20 * time.Millisecond

// Coordinator lets the decode loops of one process start steps by one rule. It is
// safe for concurrent use.
type Coordinator struct {
	rule Rule
	// open says that there are models that are no members.
	open bool

	mu      sync.Mutex
	members []*Member // by model, then in order of joining
	// transit are the hand-offs on their way, by request.
	transit map[uint64]transit
	// round counts rounds of Lockstep from 1; phase is the model whose turn it is
	// in it. last is the model that ran last under ModelSync.
	round       uint64
	phase, last int
}

// transit is a hand-off between two members.
type transit struct {
	since time.Duration
	from  int // the sender's model
	// kept says that the sender has committed a token since it had the turn, in
	// the round with this number.
	kept  bool
	round uint64
}

// New returns a coordinator without members.
func New(rule Rule) *Coordinator {
	return &Coordinator{rule: rule, transit: map[uint64]transit{}, round: 1, last: -1}
}

// NewOpen is New for a process that has not all models: others run elsewhere, and
// hand-offs come from there and go there. That all members are idle then says nothing.
// The rule must be one that overlaps.
func NewOpen(rule Rule) *Coordinator {
	c := New(rule)
	c.open = true
	return c
}

// Rule is the coordinator's rule.
func (c *Coordinator) Rule() Rule { return c.rule }

// Offer is what a member could start now, and what its rule needs to know.
type Offer struct {
	// Round is what Member.Round said when the sequences were last let in.
	Round uint64
	// Ready sequences could be in the step; Deferred ones in the next round.
	Ready, Deferred int
	// Since is when the one that has waited longest became ready. Urgent says that
	// one of them must not wait for others.
	Since  time.Duration
	Urgent bool
	// Threshold and LongestWait are those of delayed batching.
	Threshold   int
	LongestWait time.Duration
	// Step is the expected time of a step with the ready sequences, 0 if unknown.
	Step time.Duration
	// To[k] is the share of sequences that go to the model named Models[k] after a
	// step. Needed by Adaptive alone.
	To     []float64
	Models []string
}

// Answer says what a member does now.
type Answer struct {
	// Start says that it runs a step at once. Everything else is then empty.
	Start bool
	// Stale says that a round has begun since the offer was made: make a new one.
	Stale bool
	// Again says that the member asks again at Wake if nothing happens before.
	Again bool
	Wake  time.Duration
}

// state is what a member does, see the package's diagram.
type state uint8

const (
	deciding state = iota
	waiting
	running
)

// Member is one decode loop. Its methods are called by that loop alone.
type Member struct {
	c     *Coordinator
	name  string // of the model
	model int
	wake  func()

	// Guarded by c.mu from here on.
	state   state
	offer   Offer
	to      []float64 // a copy of the last Offer.To, which is its owner's
	granted bool      // by a barrier; not started yet
	ran     uint64    // the last Lockstep round with a step
	// ended says that a step has ended since the last offer.
	ended bool
	// Of the running step: batch, when it began, when it ought to end.
	batch      int
	began, due time.Duration
	// busy is the time spent in steps that have ended, others what Coordinator.busy
	// said of the other members when the step began.
	busy, others time.Duration
	// hops counts the hand-offs that found the member waiting; transit is how long
	// they were on their way together.
	hops    uint64
	transit time.Duration
}

// Join adds a decode loop. model is its place in the order of models, 0 for the
// first and smallest; replicas of one model share it. wake must not block, and
// must not call the coordinator. The caller calls Leave when its loop ends.
func (c *Coordinator) Join(model int, name string, wake func()) *Member {
	m := &Member{c: c, name: name, model: model, wake: wake}
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.members, model, func(m *Member, model int) int { return m.model - model - 1 })
	c.members = slices.Insert(c.members, max(0, min(i, len(c.members))), m)
	return m
}

// Leave takes the member out: nobody waits for it any more.
func (m *Member) Leave(now time.Duration) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = slices.DeleteFunc(c.members, func(x *Member) bool { return x == m })
	c.decide(now)
	c.wakeWaiting()
}

// Rule is the coordinator's rule.
func (m *Member) Rule() Rule { return m.c.rule }

// Round is the number of the round. When it changes, sequences that were deferred
// take part again, and the next offer carries the new number.
func (m *Member) Round() uint64 {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.c.round
}

// Offer asks whether to start a step.
func (m *Member) Offer(now time.Duration, o Offer) Answer {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.Round != c.round {
		return Answer{Stale: true}
	}
	m.to = append(m.to[:0], o.To...)
	m.offer, m.state = o, waiting
	m.offer.To = m.to
	m.granted = m.granted && o.Ready > 0
	changed := m.ended
	m.ended = false
	c.expire(now)
	own := !c.rule.barrier() && o.Ready > 0
	m.granted = m.granted || own && m.wants(now)
	wake := c.decide(now)
	again := wake > 0
	if own {
		wake, again = o.Since+o.LongestWait, true
	}
	if m.granted {
		m.begin(now)
		changed = true
	}
	if changed && c.rule == Adaptive {
		c.wakeWaiting()
	}
	if m.state == running {
		return Answer{Start: true}
	}
	return Answer{Again: again, Wake: wake}
}

// begin notes that the member's step runs.
func (m *Member) begin(now time.Duration) {
	m.granted, m.state, m.ran = false, running, m.c.round
	m.batch, m.began, m.due = m.offer.Ready, now, now+m.offer.Step
	m.others = m.c.busy(now, m)
}

// Began says, after Ended, that a step runs which was launched ahead, with so many
// sequences and for as long as step says.
func (m *Member) Began(now time.Duration, batch int, step time.Duration) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.state, m.granted, m.ran = running, false, m.c.round
	m.batch, m.began, m.due = batch, now, now+step
	m.others = m.c.busy(now, m)
}

// Ended says that the step is over and its hand-offs are sent. It returns the
// part of the step's time during which another member ran, 0 to 1.
func (m *Member) Ended(now time.Duration) float64 {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.state != running {
		return 0
	}
	took := now - m.began
	m.state, m.ended = deciding, true
	m.busy += took
	if took <= 0 {
		return 0
	}
	return min(1, float64(c.busy(now, m)-m.others)/float64(took))
}

// Pass says that nothing could start after all, until the member offers again. What
// is deferred may still need the next round: it may hold what the others wait for.
func (m *Member) Pass(now time.Duration) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	m.state, m.offer.Ready = waiting, 0
	c.decide(now)
}

// busy is the time that members other than m have spent in steps.
func (c *Coordinator) busy(now time.Duration, m *Member) time.Duration {
	var sum time.Duration
	for _, x := range c.members {
		if x == m {
			continue
		}
		sum += x.busy
		if x.state == running {
			sum += max(0, now-x.began)
		}
	}
	return sum
}

// Sent says that the member has handed a request to another one. kept says that
// it has committed a token of it.
func (m *Member) Sent(now time.Duration, request uint64, kept bool) {
	if m.c.rule == Eager || m.c.open {
		return
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	m.c.transit[request] = transit{since: now, from: m.model, kept: kept, round: m.c.round}
}

// Arrived says that a hand-off has come in by now, whatever becomes of it. It reports
// the round, and whether the request has made its token in it and is deferred to
// the next.
func (m *Member) Arrived(now time.Duration, request uint64) (round uint64, deferred bool) {
	c := m.c
	if c.rule == Eager {
		return 1, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t, ok := c.transit[request]
	delete(c.transit, request)
	if m.state == waiting {
		m.state = deciding
		if ok {
			m.hops++
			m.transit += max(0, now-t.since)
		}
	}
	return c.round, ok && c.rule == Lockstep && t.kept && t.round == c.round && t.from < m.model
}

// Transit returns the number of hand-offs that found the member waiting, and the
// time from Sent to Arrived of all of them: what a hand-off itself takes, as nothing
// else had to be waited for. Under Eager nothing is counted.
func (m *Member) Transit() (hops uint64, total time.Duration) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.hops, m.transit
}

// expire gives up hand-offs that were sent too long ago.
func (c *Coordinator) expire(now time.Duration) {
	for request, t := range c.transit {
		if now-t.since >= TransitWait {
			delete(c.transit, request)
		}
	}
}

// wakeWaiting lets all waiting members ask again.
func (c *Coordinator) wakeWaiting() {
	for _, m := range c.members {
		if m.state == waiting && m.offer.Ready > 0 {
			m.wake()
		}
	}
}
