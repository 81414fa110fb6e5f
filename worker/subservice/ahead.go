package subservice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Lookahead says whether a step is launched before the results of the one before it
// are known, for the sequences that may go on. It never changes a token.
type Lookahead uint8

const (
	// LookaheadAuto does so where it is expected to pay (see aheadGain).
	LookaheadAuto Lookahead = iota
	// LookaheadOn does so wherever the executor and the schedule can.
	LookaheadOn
	// LookaheadOff never does.
	LookaheadOff
)

// ErrLookahead says that no setting has the name.
var ErrLookahead = errors.New("unknown lookahead")

// Lookaheads lists the names of all settings, the default first.
func Lookaheads() []string { return []string{"auto", "on", "off"} }

// String returns the setting's name.
func (l Lookahead) String() string {
	if int(l) < len(Lookaheads()) {
		return Lookaheads()[l]
	}
	return fmt.Sprintf("lookahead(%d)", uint8(l))
}

// ParseLookahead returns the setting of a name; the empty one means auto.
func ParseLookahead(name string) (Lookahead, error) {
	if name == "" {
		return LookaheadAuto, nil
	}
	i := slices.Index(Lookaheads(), name)
	if i < 0 {
		return 0, fmt.Errorf("%w %q; there are %s", ErrLookahead, name, strings.Join(Lookaheads(), ", "))
	}
	return Lookahead(i), nil
}

// MarshalText implements encoding.TextMarshaler.
func (l Lookahead) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *Lookahead) UnmarshalText(text []byte) (err error) {
	*l, err = ParseLookahead(string(text))
	return err
}

// flight is a step that was launched and whose results were not taken yet.
type flight struct {
	plan   *scheduler.Plan
	ticket executor.Ticket
	began  time.Duration
}

// ahead decides whether steps are launched ahead, and counts what became of them.
type ahead struct {
	setting Lookahead
	// can says that the executor is able to.
	can bool
	// stay is the share of sampled rows that went on here, host the time between two
	// steps that the loop itself takes, in seconds; both of late.
	stay, host float64
	judged     uint64 // rows that stay is of
	// ended is when the last step ended, ready when all was launched after it.
	ended, ready time.Duration
	// steps counts steps launched ahead, used their rows that went on, wasted those
	// that did not count.
	steps, used, wasted uint64
}

// newAhead looks at what an executor can do.
func newAhead(setting Lookahead, info *executor.Info) ahead {
	return ahead{setting: setting, can: info.Depth > 1 && info.Features&step.FContinue != 0}
}

// Weights of the newest value in the running means.
const (
	stayWeight = 1.0 / 256 // of a row
	hostWeight = 1.0 / 64  // of a step
)

// settled is the number of rows after which the mean is believed.
const settled = 64

// note takes the decision about one sampled row.
func (a *ahead) note(stays bool) {
	a.judged++
	x := 0.0
	if stays {
		x = 1
	}
	a.stay += max(stayWeight, 1/float64(a.judged)) * (x - a.stay)
}

// worked takes the host's time between two steps.
func (a *ahead) worked(took time.Duration) {
	if a.host == 0 {
		a.host = took.Seconds()
	}
	a.host += hostWeight * (took.Seconds() - a.host)
}

// pays says whether looking ahead is expected to gain time, when a step takes t.
//
// Looking ahead saves the host's time between two steps, h, for the rows that go
// on: n·s·h with n rows of which the share s stays. It costs those that join: who
// arrives during a step finds the next one launched and waits for one step more. In
// the long run as many join as leave, n·(1-s), each at the price of a step, t. So it
// pays if s·h > (1-s)·t. Void rows themselves cost next to nothing: a step's time is
// that of reading the weights.
func (a *ahead) pays(t time.Duration) bool {
	return a.judged >= settled && a.stay*a.host > (1-a.stay)*t.Seconds()
}

// lookAhead launches the step after the one in flight, if it should be.
func (s *Subservice) lookAhead() (next *flight, err error) {
	if plan := s.planAhead(); plan != nil {
		if next, err = s.launch(plan); err != nil {
			return nil, err
		}
		s.ahead.steps++
	}
	s.ahead.ready = s.now()
	return next, nil
}

// planAhead plans the step after the one in flight, nil if none should be launched yet.
func (s *Subservice) planAhead() *scheduler.Plan {
	a := &s.ahead
	switch {
	case !a.can || a.setting == LookaheadOff:
		return nil
	case s.member != nil && !s.member.Rule().Overlaps():
		return nil
	case a.setting == LookaheadAuto && !a.pays(s.sched.StepTime()):
		return nil
	case slices.ContainsFunc(s.flying.plan.IDs, s.needsIDs):
		return nil // it would miss every other step
	}
	return s.sched.Ahead(s.flying.plan, s.goesOn)
}

// goesOn says that a sequence whose token is being sampled may feed it at once: the
// answer can have one more.
func (s *Subservice) goesOn(id scheduler.ID) bool {
	q := s.seqs[uint64(id)]
	return q != nil && len(q.q.Out)+1 < int(q.params.MaxTokens)
}

// needsIDs says that an executor must know a sequence's ids to sample for it.
func (s *Subservice) needsIDs(id scheduler.ID) bool {
	q := s.seqs[uint64(id)]
	return q != nil && q.params.Penalizes()
}

// land takes the results of the step in flight. next is the step that was launched
// ahead, or nil; it is the one in flight then.
func (s *Subservice) land(ctx context.Context, next *flight) error {
	f := s.flying
	host := s.ahead.ready - s.measured.entered
	exec := s.exec // inside the call nothing of s may be looked at
	s.watch.enter("wait")
	err := exec.Wait(ctx, f.ticket, &s.result)
	if hung := s.watch.leave(); hung != nil {
		return hung
	}
	if err != nil {
		return fmt.Errorf("step %d: %w", f.plan.Batch.Step, err)
	}
	ended := s.now()
	// A step that was launched ahead began when the one before it had ended.
	took := ended - max(f.began, s.ahead.ended)
	s.ahead.ended = ended
	s.watch.ended(ended, took, next)
	s.rows.observe(float64(len(f.plan.IDs)), FirstRows)
	s.seconds.observe(took.Seconds(), FirstSeconds)
	s.sched.Complete(ended, f.plan, took)
	rows, void := f.plan.AheadRows()
	s.ahead.used += uint64(rows - void)
	s.ahead.wasted += uint64(void)
	s.route(f.plan)
	s.flying = next
	now, others := s.now(), 0.0
	if s.member != nil {
		others = s.member.Ended(now)
		if next != nil {
			s.member.Began(now, len(next.plan.IDs), s.measured.all.of(len(next.plan.IDs)))
		}
	}
	s.measured.measure(f.plan, now-s.measured.entered, took, others)
	s.publishEstimates(now)
	s.ahead.worked(host + s.now() - ended)
	return nil
}
