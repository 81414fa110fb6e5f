package main

import (
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
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// writeJSONLine prints a value as one line.
func writeJSONLine(p process, value any) error { return json.NewEncoder(p.out).Encode(value) }

// measureAll runs the models under every setting. The prediction for a setting is
// made from what all runs with as many requests have measured together: routing,
// and step times by batch size, alone and in company.
func (c *sweepCmd) measureAll(ctx context.Context, p process) error {
	problems, err := parseProblems(models.Problems())
	if err != nil {
		return err
	}
	out := newSweepOutput(p, c.Output)
	for _, n := range c.N {
		var points []*sweepPoint
		var rules []schedule.Rule
		var seen *engine.Group
		for _, rule := range c.Rules {
			for _, b := range c.settings(rule, n, max(2, len(c.Models))) {
				point, group, err := c.measure(ctx, problems, n, rule, b)
				if err != nil {
					return err
				}
				points, rules = append(points, point), append(rules, rule)
				seen = seen.Merge(group.Lifetime())
			}
		}
		in, known := seen.Input(n, 100)
		bare, timed := seen.Floor(n)
		for i, point := range points {
			if timed && len(point.trace.Requests) > 0 {
				if err := point.setFloor(&point.trace, &bare); err != nil {
					return err
				}
			}
			if known {
				if err := predict(ctx, in, rules[i], point); err != nil {
					return err
				}
			}
			if err := out.add(point); err != nil {
				return err
			}
		}
	}
	return out.end()
}

// measure runs the models with n requests in flight for a while.
func (c *sweepCmd) measure(ctx context.Context, problems []problem, n int, rule schedule.Rule, b []int) (*sweepPoint, *engine.Group, error) {
	cfg := engine.Defaults()
	cfg.Logger = slog.New(slog.DiscardHandler)
	all := node.Config{Config: cfg}
	if err := c.apply(&all); err != nil {
		return nil, nil, err
	}
	cfg = all.Config
	cfg.Schedule = rule
	for i := range cfg.Models {
		if b != nil && i < len(b) {
			cfg.Models[i].Threshold = b[i]
		}
		// The longest wait is for surprises; here it would blur the thresholds.
		cfg.Models[i].LongestWait = time.Second
	}
	if len(cfg.Deployments) != 1 {
		return nil, nil, usagef("a sweep needs one deployment of several models")
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, nil, err
	}
	point, err := c.load(ctx, e, problems, n)
	if err == nil {
		point.N, point.Schedule, point.B = n, rule.String(), b
	}
	group := &e.Groups()[0]
	if closeErr := e.Close(); err == nil {
		err = closeErr
	}
	return point, group, err
}

// load keeps n requests in flight, warms up, and counts for the duration.
func (c *sweepCmd) load(ctx context.Context, e *engine.Engine, problems []problem, n int) (*sweepPoint, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	asks := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	d, point := e.Deployments()[0], &sweepPoint{}
	var mu sync.Mutex // of point.trace
	for k := range n {
		asks.Go(func(ctx context.Context) error {
			for i := k; ctx.Err() == nil; i += n {
				seed, zero := uint64(i), 0.0
				r := engine.Request{
					Model: d.Name, MaxTokens: c.Tokens, IgnoreEOS: true, Seed: &seed, Temperature: &zero,
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
	asks.Go(func(ctx context.Context) error {
		defer cancel()
		if !pause(ctx, c.Duration/3) {
			return nil
		}
		before = e.Work()
		if !pause(ctx, c.Duration) {
			return nil
		}
		after = e.Work()
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
