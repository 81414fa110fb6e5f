package schedule

import "time"

// Caution is how much the gain of holding on must exceed the loss, under Adaptive.
// It did best over many systems (policies/threshold.DefaultLookAhead).
const Caution = 1.25

// decide grants steps that depend on all members: those of a barrier's next
// round, or under the other rules that of the longest queue of an idle process.
// If it has to wait for a hand-off it returns when it gives it up, else 0.
func (c *Coordinator) decide(now time.Duration) (again time.Duration) {
	if c.open {
		return 0
	}
	for _, m := range c.members {
		if m.state != waiting || m.granted {
			return 0
		}
	}
	if len(c.transit) > 0 {
		for _, t := range c.transit {
			if again == 0 || t.since+TransitWait < again {
				again = t.since + TransitWait
			}
		}
		return max(again, now+1)
	}
	switch c.rule {
	case StepSync:
		c.grant(func(m *Member) bool { return true })
	case ModelSync:
		c.grantNext()
	case Lockstep:
		c.grantPhase()
	default:
		c.grantLongest()
	}
	return 0
}

// grant lets the members that have something ready, and are chosen, start.
func (c *Coordinator) grant(chosen func(*Member) bool) {
	for _, m := range c.members {
		if m.offer.Ready > 0 && chosen(m) {
			m.granted = true
			m.wake()
		}
	}
}

// grantNext chooses the next model in turn that has something ready.
func (c *Coordinator) grantNext() {
	next, wrapped := -1, -1 // the first after the last one, the first of all
	for _, m := range c.members {
		switch {
		case m.offer.Ready == 0:
		case m.model > c.last && next < 0:
			next = m.model
		case wrapped < 0:
			wrapped = m.model
		}
	}
	if next < 0 {
		next = wrapped
	}
	if next < 0 {
		return
	}
	c.last = next
	c.grant(func(m *Member) bool { return m.model == next })
}

// grantPhase chooses the first model of the round that has something ready and
// has not run in it, or begins the next round.
func (c *Coordinator) grantPhase() {
	for range 2 {
		model, left := -1, false
		for _, m := range c.members {
			left = left || m.offer.Ready+m.offer.Deferred > 0
			if model < 0 && m.offer.Ready > 0 && m.ran != c.round && m.model >= c.phase {
				model = m.model
			}
		}
		if model >= 0 {
			c.phase = model
			c.grant(func(m *Member) bool { return m.model == model && m.ran != c.round })
			return
		}
		if !left {
			return
		}
		c.round++
		c.phase = 0
		for _, m := range c.members {
			if m.offer.Deferred > 0 {
				m.offer.Ready, m.offer.Deferred = m.offer.Ready+m.offer.Deferred, 0
			}
			m.wake() // its deferred sequences take part again
		}
	}
}

// grantLongest starts the longest queue of a process in which nothing else would.
func (c *Coordinator) grantLongest() {
	var longest *Member
	for _, m := range c.members {
		if m.offer.Ready > 0 && (longest == nil || m.offer.Ready > longest.offer.Ready) {
			longest = m
		}
	}
	if longest != nil {
		longest.granted = true
		longest.wake()
	}
}

// wants says that a member with something ready starts by its own rule.
func (m *Member) wants(now time.Duration) bool {
	o := &m.offer
	switch {
	case m.c.rule == Eager, o.Urgent, now >= o.Since+o.LongestWait:
		return true
	case o.Ready < o.Threshold:
		return false
	}
	return m.c.rule != Adaptive || !m.holds(now)
}

// holds is the look-ahead rule: while some running step ends within d, and the
// sequences expected from steps that end by then gain more from sharing m's step
// than its ready ones lose by waiting d, the step is held.
func (m *Member) holds(now time.Duration) bool {
	for _, j := range m.c.members {
		if j == m || j.state != running {
			continue
		}
		d := max(0, j.due-now)
		expected := 0.0
		for _, k := range m.c.members {
			if k != m && k.state == running && max(0, k.due-now) <= d {
				expected += float64(k.batch) * k.share(m.name)
			}
		}
		if expected*float64(m.offer.Step-d) > Caution*float64(m.offer.Ready)*float64(d) {
			return true
		}
	}
	return false
}

// share is the share of m's sequences that go to the named model.
func (m *Member) share(name string) float64 {
	for k, n := range m.offer.Models {
		if n == name && k < len(m.offer.To) {
			return m.offer.To[k]
		}
	}
	return 0
}
