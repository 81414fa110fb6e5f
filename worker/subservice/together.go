package subservice

import (
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
)

// join makes the decode loop a member of the configured coordinator.
// wake must not block.
func (s *Subservice) join(wake func()) {
	if s.cfg.Coordinator != nil {
		s.member = s.cfg.Coordinator.Join(s.cfg.Order, s.cfg.Model, wake)
	}
}

// offer asks the coordinator for a step and plans it.
func (s *Subservice) offer() (plan *scheduler.Plan, wake time.Duration, waiting bool) {
	for {
		s.enterRound(s.member.Round())
		now := s.now()
		w := s.sched.Waiting()
		o := schedule.Offer{
			Round: s.round, Ready: w.Ready, Deferred: w.Deferred, Since: w.Since, Urgent: w.Urgent,
			Threshold: s.sched.Threshold(), LongestWait: s.sched.LongestWait(),
		}
		if d := s.group.main; d != nil && s.member.Rule() == schedule.Adaptive {
			o.Step, o.To, o.Models = s.measured.all.of(w.Ready), d.routing.to, d.Models
		}
		answer := s.member.Offer(now, o)
		switch {
		case answer.Stale:
			continue
		case !answer.Start:
			return nil, answer.Wake, answer.Again
		}
		if plan = s.sched.Start(); plan == nil {
			s.member.Pass(now) // those that are ready wait for pages
			return nil, 0, false
		}
		return plan, 0, true
	}
}

// enterRound lets sequences take part that were deferred to this round.
func (s *Subservice) enterRound(round uint64) {
	if round != s.round {
		s.round = round
		s.sched.Undefer(s.now())
	}
}

// arrived tells the coordinator that a hand-off has been applied, or dropped, and
// defers the sequence if it has made its token of this round elsewhere.
func (s *Subservice) arrived(request uint64) {
	round, deferred := s.member.Arrived(s.measured.entered, request)
	s.enterRound(round)
	if !deferred {
		return
	}
	if q := s.seqs[request]; q != nil {
		if err := s.sched.Defer(q.sid()); err != nil {
			s.broken(q, "defer", err)
		}
	}
}

// neighbours are the links in the order of the replicas' names, so that what is
// sent to all of them is sent in the same order every time.
func (s *Subservice) neighbours() []string {
	names := make([]string, 0, len(s.links))
	for name := range s.links {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
