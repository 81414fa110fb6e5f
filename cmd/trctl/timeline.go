package main

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/sim"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

type timelineCmd struct {
	Paths          string          `default:"SSSSS,SLSSS,SSLSS" help:"Requests: the model of every token, S the first one, M the second of three, L the last, or digits."`
	Step           []float64       `placeholder:"S" default:"1,3.5" help:"Time of a step of each model in seconds."`
	BatchThreshold []int           `placeholder:"B" default:"1,2" help:"Fewest ready requests that start a step of each model (delayed, adaptive)."`
	Schedule       []schedule.Rule `placeholder:"RULE" help:"Schedules to draw (step-sync, model-sync, eager, delayed)."`
	Output         string          `short:"o" placeholder:"FILE" help:"SVG file; - is standard output. Without it only the finish times are printed."`
}

// Run plays the example under every schedule, through the real scheduler in
// virtual time, and draws it.
func (c *timelineCmd) Run(p process) error {
	if len(c.Step) < 1 || len(c.Step) > sim.MaxModels || len(c.BatchThreshold) != len(c.Step) {
		return usagef("--step has %d models and --batch-threshold %d; both need the same, 1 to %d", len(c.Step), len(c.BatchThreshold), sim.MaxModels)
	}
	if c.Output != "-" {
		if err := checkSVG("--output", c.Output); err != nil {
			return err
		}
	}
	requests, err := sim.ParsePaths(c.Paths, len(c.Step))
	if err != nil {
		return &usageError{fmt.Errorf("--paths: %w; S is the first model and L the last", err)}
	}
	rules := c.Schedule
	if len(rules) == 0 {
		rules = []schedule.Rule{schedule.StepSync, schedule.ModelSync, schedule.Eager, schedule.Delayed}
	}
	var models []string
	var panels []sim.Panel
	for i := range c.Step {
		models = append(models, nameOfLane(i, len(c.Step)))
	}
	for _, rule := range rules {
		r, err := sim.Run(c.config(rule, models, requests))
		if err != nil {
			return &usageError{err}
		}
		panels = append(panels, sim.Panel{Title: rule.String(), Models: models, Result: r})
	}
	if c.Output == "-" {
		_, err := p.out.Write(sim.Timeline(panels))
		return err
	}
	for _, panel := range panels {
		fmt.Fprintf(p.out, "%-10s  mean %s s, finish", panel.Title, secondsOf(panel.Result.MeanEnd()))
		for _, t := range panel.Result.Ended {
			fmt.Fprintf(p.out, " %s", secondsOf(t))
		}
		fmt.Fprintln(p.out)
	}
	if c.Output == "" {
		return nil
	}
	if err := os.WriteFile(c.Output, sim.Timeline(panels), 0o644); err != nil {
		return &usageError{fmt.Errorf("write the timeline: %w", err)}
	}
	return nil
}

func (c *timelineCmd) config(rule schedule.Rule, models []string, requests []sim.Request) sim.Config {
	cfg := sim.Config{Schedule: rule, Requests: requests, Record: true, MaxEvents: 1 << 20}
	for i, s := range c.Step {
		cfg.Models = append(cfg.Models, sim.Model{
			Name: models[i], Step: []time.Duration{time.Duration(s * float64(time.Second))},
			// Thresholds alone decide; a longest wait would depend on step times that
			// are not known at the start.
			Threshold: c.BatchThreshold[i], LongestWait: 24 * time.Hour,
		})
	}
	return cfg
}

// nameOfLane is what ParsePaths calls a model.
func nameOfLane(i, n int) string {
	switch {
	case i == 0:
		return "S"
	case i == n-1:
		return "L"
	case n == 3:
		return "M"
	}
	return strconv.Itoa(i)
}

func secondsOf(t time.Duration) string {
	return strconv.FormatFloat(t.Seconds(), 'f', 2, 64)
}
