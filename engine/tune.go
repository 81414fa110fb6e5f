package engine

import (
	"context"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/policies/threshold"
	"github.com/tokenrouter/tokenrouter/policies/threshold/measured"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

const (
	// tuneEvery is how often throughput is sampled; a drift is looked for every
	// driftEvery samples, and must be seen twice.
	tuneEvery  = 500 * time.Millisecond
	driftEvery = 4
	// predictEvery bounds the work for predictions, which takes up to a tenth of a
	// second each.
	predictEvery = 10 * time.Second
	// observedWindow is how many samples the observed throughput spans.
	observedWindow = 20
)

// tuning is the tuner's state of one deployment. Only Engine.tune uses it, but
// for status.
type tuning struct {
	deployment string
	models     []string
	configured []int

	committed uint64
	sampled   time.Duration
	observed  float64 // tokens a second, smoothed
	live      float64 // smoothed
	samples   int
	drifts    int
	// predicted is when a prediction was made last, since how many samples there were.
	predicted time.Duration
	since     int

	input *threshold.Input // of the table in use
	table *subservice.Thresholds

	status atomic.Pointer[GroupStatus]
}

// GroupStatus is what is known of a deployment's thresholds: what they were
// solved from, what they promise and what is seen.
type GroupStatus struct {
	Deployment string   `json:"deployment"`
	Models     []string `json:"models"`
	Schedule   string   `json:"schedule"`
	// Auto says that the thresholds follow the measurements, Solved that they have
	// been solved, with inputs as they were SolvedAgo before.
	Auto      bool     `json:"auto"`
	Solved    bool     `json:"solved"`
	SolvedAgo *float64 `json:"solved_ago_s,omitempty"`
	SolveTime float64  `json:"solve_time_s,omitempty"`
	// Live is the number of live requests, smoothed; B are the thresholds for it.
	Live float64 `json:"live"`
	B    []int   `json:"b"`
	// Table has the thresholds that were solved last, by number of live requests from
	// 1 on. It is in use if it promised more than what was used before, for the number
	// then or for half as many and so on.
	Table      [][]int `json:"table,omitempty"`
	TableInUse bool    `json:"table_in_use,omitempty"`
	// Inputs are the present measurements, for the present number of requests; nil
	// until enough is known. Routed counts routed steps by model.
	Inputs *threshold.Input `json:"inputs,omitempty"`
	Routed []uint64         `json:"routed"`
	// Predicted and Observed are tokens a second, Difference is observed over
	// predicted, less 1.
	Predicted  *float64 `json:"predicted_tokens_per_s,omitempty"`
	Observed   float64  `json:"observed_tokens_per_s"`
	Difference *float64 `json:"difference,omitempty"`

	solved time.Duration
}

// newTunings are those of the deployments of several models.
func (e *Engine) newTunings() []*tuning {
	var list []*tuning
	for _, d := range e.cfg.Deployments {
		if len(d.Models) < 2 || len(d.Models) > threshold.MaxModels {
			continue
		}
		t := &tuning{deployment: d.Name, models: d.Models}
		for _, m := range d.Models {
			t.configured = append(t.configured, e.model(m).cfg.Threshold)
		}
		t.status.Store(&GroupStatus{Deployment: d.Name, Models: d.Models, Schedule: e.cfg.Schedule.String(), Auto: e.tunes(), B: t.configured})
		list = append(list, t)
	}
	return list
}

// tunes says that thresholds follow the measurements.
func (e *Engine) tunes() bool {
	return e.cfg.AutoThresholds && (e.cfg.Schedule == schedule.Delayed || e.cfg.Schedule == schedule.Adaptive)
}

// ThresholdStatus tells of the thresholds of every deployment of several models.
func (e *Engine) ThresholdStatus() []GroupStatus {
	var list []GroupStatus
	for _, t := range e.tunings {
		s := *t.status.Load()
		if s.Solved {
			ago := (e.clock() - s.solved).Seconds()
			s.SolvedAgo = &ago
		}
		list = append(list, s)
	}
	return list
}

// tune samples throughput and, where thresholds are automatic, solves them again
// when what they depend on has moved. It is one goroutine beside those of requests.
func (e *Engine) tune(ctx context.Context) error {
	tick := time.NewTicker(tuneEvery)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		for _, t := range e.tunings {
			e.sample(t)
			if n%driftEvery != 0 {
				continue
			}
			if err := e.follow(ctx, t); err != nil && ctx.Err() == nil {
				e.log.Warn("thresholds", "deployment", t.deployment, "err", err)
			}
		}
	}
}

// sample updates the observed throughput. Idle times do not count.
func (e *Engine) sample(t *tuning) {
	now, committed, live := e.clock(), uint64(0), 0
	for i, name := range t.models {
		for _, r := range e.list() {
			if sub := r.current.Load(); sub != nil && r.model.cfg.Name == name {
				committed += sub.Stats().Committed
				if i == 0 {
					live += sub.Estimate().Live
				}
			}
		}
	}
	before, since := t.committed, now-t.sampled
	t.committed, t.sampled = committed, now
	if live == 0 || committed <= before || since <= 0 {
		return
	}
	t.samples++
	a := 1 / float64(min(t.samples, observedWindow))
	t.observed += a * (float64(committed-before)/since.Seconds() - t.observed)
	t.live += a * (float64(live) - t.live)
}

// follow looks for a drift, solves, and publishes the status.
func (e *Engine) follow(ctx context.Context, t *tuning) error {
	g := Group{Deployment: t.deployment}
	for _, name := range t.models {
		g.Models = append(g.Models, e.measured(t.deployment, name))
	}
	s := *t.status.Load()
	defer func() { t.status.Store(&s) }()
	s.Live, s.Observed = t.live, t.observed
	s.Routed = nil
	for i := range g.Models {
		s.Routed = append(s.Routed, g.Models[i].Routed)
	}
	if e.tunes() {
		if err := e.retune(ctx, t, &g, &s); err != nil {
			return err
		}
	}
	e.apply(t)
	n := max(1, int(math.Round(t.live)))
	s.B = threshold.Clamp(t.at(n), n)
	if t.since == t.samples || s.Predicted != nil && e.clock()-t.predicted < predictEvery {
		s.compare(t)
		return nil
	}
	t.since, t.predicted = t.samples, e.clock()
	s.Predicted, s.Difference, s.Inputs = nil, nil, nil
	in, ok := g.Input(min(n, measured.TableSize(len(t.models))), 200)
	if !ok {
		return nil
	}
	s.Inputs = in
	if n > in.N || e.cfg.Schedule != schedule.Delayed && e.cfg.Schedule != schedule.Eager {
		return nil // the model of thresholds says nothing about it
	}
	b := s.B
	if e.cfg.Schedule == schedule.Eager {
		b = slices.Repeat([]int{1}, len(t.models))
		s.B = b
	}
	predicted, err := Predict(ctx, in, b)
	if err != nil {
		return err
	}
	s.Predicted = &predicted
	s.compare(t)
	return nil
}

// compare says how far what is seen is from what was predicted.
func (s *GroupStatus) compare(t *tuning) {
	if s.Predicted != nil && *s.Predicted > 0 && t.samples > 0 {
		d := t.observed/(*s.Predicted) - 1
		s.Difference = &d
	}
}

// at are the thresholds in use for n live requests, not clamped.
func (t *tuning) at(n int) []int {
	if t.table == nil {
		return t.configured
	}
	return t.table.B[min(n, len(t.table.B))-1]
}

// retune solves the table again if the inputs have moved, and puts it to use if it
// promises more than the one in use, for the present number of requests or for fewer.
func (e *Engine) retune(ctx context.Context, t *tuning, g *Group, s *GroupStatus) error {
	in, ok := g.Input(measured.TableSize(len(t.models)), measured.LeastRouted)
	if !ok || !measured.Moved(t.input, in) {
		t.drifts = 0
		return nil
	}
	if t.drifts++; t.drifts < 2 && t.input != nil {
		return nil // once may be chance
	}
	t.drifts = 0
	began := e.clock()
	system, err := in.System()
	if err != nil {
		return err
	}
	t.input = in // also if this fails: it would fail again
	entries, err := threshold.Table(ctx, system.Case)
	if err != nil {
		return err
	}
	table := &subservice.Thresholds{Deployment: t.deployment}
	for _, entry := range entries {
		table.B = append(table.B, entry.B)
	}
	s.Table, s.TableInUse = table.B, false
	s.Solved, s.solved, s.SolveTime = true, e.clock(), (e.clock() - began).Seconds()
	n := min(in.N, max(1, int(math.Round(t.live))))
	_, better, err := measured.Better(ctx, in, n, table.B, t.at)
	if err != nil {
		return err
	}
	e.log.Info("thresholds solved", "deployment", t.deployment, "live", n, "in_use", t.at(n), "best", table.B[n-1],
		"swapped", better, "after", e.clock()-began)
	if !better {
		return nil
	}
	t.table, s.TableInUse = table, true
	return nil
}

// apply gives the table to all replicas, also to those that have started since.
func (e *Engine) apply(t *tuning) {
	if t.table == nil {
		return
	}
	for _, r := range e.list() {
		if sub := r.current.Load(); sub != nil && slices.Contains(t.models, r.model.cfg.Name) {
			sub.SetThresholds(t.table)
		}
	}
}
