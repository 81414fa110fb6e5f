package subservice

import (
	"math"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
)

const (
	// routedWindow is the number of routed steps that the routing estimate spans:
	// enough to know a probability of 0.1 within a few percent, and what solver and
	// look-ahead rule were studied with.
	routedWindow = 2000
	// stepWindow is the number of steps that an estimate of a step's time spans.
	stepWindow = 64
	// estimateEvery is how often the estimates are copied for readers.
	estimateEvery = 100 * time.Millisecond
)

// Estimate is what a replica has measured of one deployment and about itself: the
// inputs of the threshold solver. Routed, To and Kept are the deployment's. All else is
// the replica's, whatever deployment its steps and hand-offs were for, and the same in
// the estimates of all of them.
type Estimate struct {
	// Deployment is one of those that the replica takes part in; Models are its models.
	Deployment string
	Models     []string
	Self       policies.ModelID
	// Routed counts the steps of single sequences that were routed. To[k] is the
	// share that went on to model k, Kept[k] the share of those whose token was kept.
	// Both weigh the last 2000 or so the most.
	Routed   uint64
	To, Kept []float64
	// All[b-1] is the time of a step of b sequences, with what the decode loop does
	// before and after it; Alone[b-1] while no other model of the process ran,
	// Busy[b-1] while one ran all the time. Steps with prefill chunks do not count.
	All, Alone, Busy []StepEstimate
	// Bare is All without what the decode loop does besides.
	Bare []StepEstimate
	// Slowdown is how many times as long a step takes while another model runs, by
	// all steps, whatever part of them was in company. It may be a little below 1: models
	// that take turns let each other's threads and caches go cold.
	Slowdown float64
	// Spread is the standard deviation of a step's time, relative to the mean of its
	// batch size; a step that took more than twice as long counts as twice.
	Spread float64
	// Prefill is what prompts took: N first passes, and how much longer steps with a
	// part of one were than steps of the other sequences alone.
	Prefill StepEstimate
	// PrefillEach is the same for each sequence that was in a step: prompts' time over sequences' steps, of which the last 2000 or
	// so weigh the most.
	PrefillEach time.Duration
	// Hop is what a hand-off takes, of those that found this replica waiting.
	Hop StepEstimate
	// Live is the number of live requests of the routing group, Threshold what
	// is in use, Step the usual time of a step.
	Live, Threshold int
	Step            time.Duration
}

// StepEstimate is the time of N steps: the sum of all, and a mean in which the last
// ones weigh most. Company is the share of their time in which another model ran.
type StepEstimate struct {
	N                     uint64
	Mean, Total           time.Duration
	Company, CompanyTotal float64
}

// settle lets the mean be that of all.
func (e *StepEstimate) settle() {
	if e.N > 0 {
		e.Mean = e.Total / time.Duration(e.N)
	}
}

// routing counts where the sequences of a deployment go.
type routing struct {
	n        uint64
	to, kept []float64 // shares; kept[k] of all, not of those that go to k
}

// add counts one decision.
func (r *routing) add(d policies.Decision) {
	r.n++
	a := max(1/float64(r.n), 1.0/routedWindow)
	for k := range r.to {
		hit, kept := 0.0, 0.0
		if policies.ModelID(k) == d.To {
			hit = 1
			if d.Keep {
				kept = 1
			}
		}
		r.to[k] += a * (hit - r.to[k])
		r.kept[k] += a * (kept - r.kept[k])
	}
}

// promptTime is how much time prompts took of late, and how many sequences were in steps.
type promptTime struct{ seconds, sequences float64 }

// add counts a step of so many sequences that prompts made so much longer. Older ones fade with each sequence.
func (p *promptTime) add(sequences int, longer time.Duration) {
	fade := math.Pow(1-1.0/routedWindow, float64(sequences))
	p.seconds = p.seconds*fade + longer.Seconds()
	p.sequences = p.sequences*fade + float64(sequences)
}

// each is the time of prompts for one sequence in a step.
func (p *promptTime) each() time.Duration {
	if p.sequences == 0 {
		return 0
	}
	return time.Duration(p.seconds / p.sequences * float64(time.Second))
}

// stepTimes are the times of steps by batch size.
type stepTimes []StepEstimate

func (t *stepTimes) add(batch int, took time.Duration, company float64) {
	e := t.at(batch)
	e.N++
	e.Total += took
	e.CompanyTotal += company
	n := min(e.N, stepWindow)
	e.Mean += (took - e.Mean) / time.Duration(n)
	e.Company += (company - e.Company) / float64(n)
}

// at is the estimate of one batch size.
func (t *stepTimes) at(batch int) *StepEstimate {
	for len(*t) < batch {
		*t = append(*t, StepEstimate{})
	}
	return &(*t)[batch-1]
}

// company relates the time of a step to the share of it that was in company: the
// regression of one on the other, each taken relative to the means of the step's
// batch size.
type company struct {
	n                    uint64
	mean, variance, with float64
	// spread is the variance of the time itself.
	spread float64
}

func (c *company) add(e *StepEstimate, took time.Duration, share float64) {
	if e.N < 2 || e.Mean <= 0 {
		return
	}
	c.n++
	a := max(1/float64(c.n), 1.0/routedWindow)
	dx, dy := share-e.Company, float64(took-e.Mean)/float64(e.Mean)
	c.mean += a * (share - c.mean)
	c.variance += a * (dx*dx - c.variance)
	c.with += a * (dx*max(-1, min(dy, 3)) - c.with)
	c.spread += a * (min(dy*dy, 1) - c.spread)
}

// leastSlowdown is the least that is believed. Less is taken for chance, and nothing
// for known: a step that chance makes longer is in company for a smaller share of it,
// as the others run out of work, and that looks as if company made steps shorter.
const leastSlowdown = 0.95

// slowdown is how many times as long a step takes in company; 1 where company
// hardly varies, so that nothing can be known.
func (c *company) slowdown() float64 {
	if c.n < 100 || c.variance < 0.003 {
		return 1
	}
	slope := c.with / c.variance
	s := 1 + slope/max(0.1, 1-slope*c.mean)
	if s < leastSlowdown {
		return 1
	}
	return min(s, 5)
}

// of returns the time of a step of this size, or of the nearest known one; 0 if
// none is known.
func (t stepTimes) of(batch int) time.Duration {
	if batch < 1 {
		return 0
	}
	for away := range max(len(t), batch) {
		if i := batch - 1 - away; i >= 0 && i < len(t) && t[i].N > 0 {
			return t[i].Mean
		}
		if i := batch - 1 + away; i < len(t) && t[i].N > 0 {
			return t[i].Mean
		}
	}
	return 0
}

// estimator measures a replica.
type estimator struct {
	// entered is when the loop began what led to the present step. A step's time here
	// is that of the whole turn of the loop, so that what it does besides counts.
	entered time.Duration
	// all are the times of all steps, alone and busy those of steps whose company
	// was the same from begin to end.
	all, alone, busy, bare stepTimes
	company                company
	prefill                StepEstimate
	prompts                promptTime
	published              time.Duration
}

// measure takes the time of a step and the share of it in which other models ran.
// bare is the part of it that the executor took.
func (e *estimator) measure(plan *scheduler.Plan, took, bare time.Duration, others float64) {
	n := len(plan.IDs)
	if slices.Contains(plan.Kinds, scheduler.Prefill) {
		e.addPrefill(plan, took)
		return
	}
	e.prompts.add(n, 0)
	e.company.add(e.all.at(n), took, others)
	e.all.add(n, took, others)
	e.bare.add(n, bare, others)
	const same = 0.1
	switch {
	case others <= same:
		e.alone.add(n, took, others)
	case others >= 1-same:
		e.busy.add(n, took, others)
	}
}

// addPrefill counts a step with chunks of prompts.
func (e *estimator) addPrefill(plan *scheduler.Plan, took time.Duration) {
	others, first := 0, 0
	for i, k := range plan.Kinds {
		switch {
		case k != scheduler.Prefill:
			others++
		case plan.Batch.Rows[i].Sample > 0:
			first++ // its last chunk
		}
	}
	longer := max(0, took-e.all.of(others))
	e.prefill.N += uint64(first)
	e.prefill.Total += longer
	e.prompts.add(others+first, longer)
}

// Estimate returns what was measured of the deployment whose thresholds count, as of a
// tenth of a second ago or less. Any goroutine may call it.
func (s *Subservice) Estimate() Estimate {
	if list := s.Estimates(); len(list) > 0 {
		return list[0]
	}
	return Estimate{}
}

// Estimates returns what was measured of that deployment, first, and of each other one of
// several models. The caller must not change what they point to. Any goroutine may call it.
func (s *Subservice) Estimates() []Estimate {
	if list := s.estimates.Load(); list != nil {
		return *list
	}
	return nil
}

// publishEstimates copies the estimates for readers, now and then.
func (s *Subservice) publishEstimates(now time.Duration) {
	main := s.group.main
	if main == nil || now-s.measured.published < estimateEvery && s.measured.published > 0 {
		return
	}
	s.measured.published = now
	own := Estimate{
		All: append([]StepEstimate(nil), s.measured.all...), Slowdown: s.measured.company.slowdown(), Spread: math.Sqrt(s.measured.company.spread),
		Alone: append([]StepEstimate(nil), s.measured.alone...), Busy: append([]StepEstimate(nil), s.measured.busy...),
		Bare: append([]StepEstimate(nil), s.measured.bare...), Prefill: s.measured.prefill, PrefillEach: s.measured.prompts.each(),
		Live: s.group.live, Threshold: s.sched.Threshold(), Step: s.sched.StepTime(),
	}
	own.Prefill.settle()
	if s.member != nil {
		own.Hop.N, own.Hop.Total = s.member.Transit()
		own.Hop.settle()
	}
	list := []Estimate{own.of(main)}
	for _, name := range s.present.names {
		if d := s.present.newest(name); d != main && len(d.Models) > 1 {
			list = append(list, own.of(d))
		}
	}
	s.estimates.Store(&list)
}

// of is the replica's estimate with what was measured of a deployment.
func (e Estimate) of(d *deployment) Estimate {
	e.Deployment, e.Models, e.Self, e.Routed = d.Name, d.Models, d.Self, d.routing.n
	e.To, e.Kept = slices.Clone(d.routing.to), slices.Clone(d.routing.kept)
	for k := range e.Kept {
		if e.To[k] > 0 {
			e.Kept[k] = min(1, e.Kept[k]/e.To[k])
		}
	}
	return e
}
