package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/floor"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
)

// writeJSONLine prints a value as one line.
func writeJSONLine(p process, value any) error { return json.NewEncoder(p.out).Encode(value) }

const (
	// leastRouted is how many routed steps must have been seen for a prediction.
	leastRouted = 100
	// virtualTokens is the length of a simulation that predicts a measurement.
	virtualTokens = 100_000
)

// measureAll runs the models under every setting. Predictions are made from what all
// runs with as many requests have measured together: routing, step times by batch
// size, alone and in company, and what prompts and hand-offs take.
func (c *sweepCmd) measureAll(ctx context.Context, p process) error {
	problems, err := parseProblems(models.Problems())
	if err != nil {
		return err
	}
	out := &sweepOutput{p: p, json: c.Output == "json", measured: true}
	for _, n := range c.N {
		points, err := c.measureRow(ctx, problems, n)
		if err != nil {
			return err
		}
		if err := c.expect(ctx, points, n); err != nil {
			return err
		}
		for _, point := range points {
			if err := out.add(point); err != nil {
				return err
			}
		}
	}
	return out.end()
}

// measureRow measures every setting with n requests in flight, in turns, so that what
// disturbs the machine for a while disturbs all of them. Of the repeats the one in the
// middle counts, for the throughput and for what else it measured.
func (c *sweepCmd) measureRow(ctx context.Context, problems []problem, n int) ([]*sweepPoint, error) {
	var points []*sweepPoint
	for _, rule := range c.Rules {
		for _, b := range c.settings(rule, n, max(2, len(c.Models))) {
			points = append(points, &sweepPoint{N: n, Schedule: rule.String(), B: b, rule: rule})
		}
	}
	runs := make([][]*sweepPoint, len(points))
	for range c.Repeat {
		for k, point := range points {
			run, err := c.measure(ctx, problems, n, point)
			if err != nil {
				return nil, err
			}
			runs[k] = append(runs[k], run)
		}
	}
	for k, point := range points {
		for _, run := range runs[k] {
			point.Runs = append(point.Runs, run.PerSecond)
		}
		slices.SortFunc(runs[k], func(a, b *sweepPoint) int { return cmp.Compare(a.PerSecond, b.PerSecond) })
		middle := runs[k][(len(runs[k])-1)/2]
		point.PerSecond, point.Batch, point.Busy, point.trace = middle.PerSecond, middle.Batch, middle.Busy, middle.trace
		point.group = middle.group
	}
	return points, nil
}

// expect adds to measured points what was to be expected. All of it is from what the
// runs have measured together, but for the way of a hand-off, which is that under the
// point's own setting: the busier the models keep the processor, the longer it takes.
func (c *sweepCmd) expect(ctx context.Context, points []*sweepPoint, n int) error {
	var runs []*engine.Group
	for _, point := range points {
		runs = append(runs, point.group)
	}
	seen := engine.Pool(runs)
	in, known := seen.Input(n, leastRouted)
	virtual, _ := seen.Virtual(n, leastRouted)
	bare, timed := seen.Floor(n)
	for _, point := range points {
		if timed && len(point.trace.Requests) > 0 {
			if err := point.setFloor(&point.trace, &bare); err != nil {
				return err
			}
		}
		if !known {
			continue
		}
		var err error
		if point.Solver, err = solverSays(ctx, in, point.rule, point.B); err != nil {
			return err
		}
		requests, cfg := max(4*n, virtualTokens/c.Tokens), *virtual
		if way, ok := point.group.Transit(); ok {
			cfg.Transit = way
		}
		v, err := engine.PredictVirtual(cfg, point.rule, point.B, c.Tokens, requests)
		if err != nil {
			return fmt.Errorf("predict n %d, %s %v: %w", n, point.rule, point.B, err)
		}
		point.Predicted = &v
	}
	return nil
}

// measure runs the models with n requests in flight for a while.
func (c *sweepCmd) measure(ctx context.Context, problems []problem, n int, point *sweepPoint) (*sweepPoint, error) {
	cfg := engine.Defaults()
	cfg.Logger = slog.New(slog.DiscardHandler)
	all := node.Config{Config: cfg}
	if err := c.apply(&all); err != nil {
		return nil, err
	}
	cfg = all.Config
	cfg.Schedule = point.rule
	for i := range cfg.Models {
		if i < len(point.B) {
			cfg.Models[i].Threshold = point.B[i]
		}
		// The longest wait is for surprises; here it would blur the thresholds.
		cfg.Models[i].LongestWait = time.Second
	}
	if len(cfg.Deployments) != 1 || len(cfg.Deployments[0].Models) < 2 {
		return nil, usagef("a sweep needs one deployment of several models")
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, err
	}
	run, err := c.load(ctx, e, problems, n)
	if closeErr := e.Close(); err == nil {
		err = closeErr
	}
	return run, err
}

// load keeps n requests in flight, warms up, and counts and measures for the duration.
// First answers are of all lengths, so that requests do not end together.
func (c *sweepCmd) load(ctx context.Context, e *engine.Engine, problems []problem, n int) (*sweepPoint, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asks := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	d, point := e.Deployments()[0], &sweepPoint{}
	var mu sync.Mutex // of point.trace
	for k := range n {
		asks.Go(func(ctx context.Context) error {
			for i := k; ctx.Err() == nil; i += n {
				seed, zero, length := uint64(i), 0.0, c.Tokens
				if i == k {
					length = max(1, c.Tokens*(k+1)/n)
				}
				r := engine.Request{
					Model: d.Name, MaxTokens: length, IgnoreEOS: true, Seed: &seed, Temperature: &zero,
					Messages: []engine.Message{{Role: "user", Content: problems[i%len(problems)].Question}},
				}
				var wrote []uint8
				for tok, err := range e.Generate(ctx, r) {
					if err != nil && ctx.Err() == nil {
						return fmt.Errorf("request: %w", err)
					}
					if err == nil && tok.ID != engine.NoID {
						wrote = append(wrote, uint8(max(0, slices.Index(d.Models, tok.Model))))
					}
				}
				if len(wrote) > 0 {
					drops, stays := d.Policy.Name == "random" || d.Policy.Name == "r-stitch", d.Policy.Name != "random"
					mu.Lock()
					point.trace.Requests = append(point.trace.Requests, floor.FromProvenance(wrote, drops, stays))
					mu.Unlock()
				}
			}
			return nil
		})
	}
	var before, after engine.Work
	var group, earlier engine.Group
	asks.Go(func(ctx context.Context) error {
		defer cancel()
		if !pause(ctx, c.Duration/3) {
			return nil
		}
		before, earlier = e.Work(), e.Groups()[0]
		if !pause(ctx, c.Duration) {
			return nil
		}
		after, group = e.Work(), e.Groups()[0]
		return nil
	})
	if err := asks.Wait(); err != nil {
		return nil, err
	}
	if after.At <= before.At {
		return nil, context.Canceled
	}
	took := (after.At - before.At).Seconds()
	for i := range after.Models {
		a, z := before.Models[i], after.Models[i]
		point.PerSecond += float64(z.Committed-a.Committed) / took
		mean := 0.0
		if z.Steps > a.Steps {
			mean = float64(z.Rows-a.Rows) / float64(z.Steps-a.Steps)
		}
		point.Batch = append(point.Batch, mean)
		point.Busy = append(point.Busy, (z.StepTime-a.StepTime).Seconds()/took)
	}
	point.group = group.Since(&earlier)
	return point, nil
}

// pause waits; it reports false if ctx ended before.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
