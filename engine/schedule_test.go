package engine

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// Whatever the schedule and the thresholds, answers have the same bytes, and each
// token the same model.
func TestSchedulesWriteTheSame(t *testing.T) {
	list := questions(few(6, 12), 60)
	list = append(list, seeded(list[:few(2, 4)])...)
	var want [][]said
	for _, name := range schedule.Names() {
		rule, err := schedule.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		e := start(t, func(c *Config) {
			c.Schedule = rule
			if rule == schedule.Delayed || rule == schedule.Adaptive {
				c.Models[1].Threshold = 3
			}
		})
		got := answers(t, e, list, 5, nil)
		if want == nil {
			want = got
		}
		for i := range want {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s, question %d: %s", name, i, d)
			}
		}
		if n := e.stats()["tiny-l-0"].Committed; n == 0 {
			t.Errorf("%s: the large model wrote nothing", name)
		}
		awaitIdle(t, e)
	}
}

// A schedule that waits for all models goes on when a replica dies.
func TestSchedulesSurviveDeath(t *testing.T) {
	list := questions(few(6, 8), few(40, 80))
	var want [][]said
	for _, rule := range []schedule.Rule{schedule.Eager, schedule.Lockstep, schedule.StepSync, schedule.ModelSync, schedule.Adaptive} {
		e := start(t, func(c *Config) { c.Schedule, c.Models[1].Replicas = rule, 2 })
		var mu sync.Mutex
		done := 0
		kill := func() {
			mu.Lock()
			defer mu.Unlock()
			if done++; done == 2 && rule != schedule.Eager {
				e.kill("tiny-l-0")
			}
		}
		got := answers(t, e, list, 4, kill)
		if want == nil {
			want = got
		}
		for i := range want {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s, question %d: %s", rule, i, d)
			}
		}
		awaitIdle(t, e)
	}
}

// Close does not wait for a barrier.
func TestSchedulesClose(t *testing.T) {
	for _, rule := range []schedule.Rule{schedule.Lockstep, schedule.StepSync, schedule.ModelSync} {
		cfg := Defaults()
		cfg.Schedule = rule
		e, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		n := 0
		for _, err := range e.Generate(ctx, questions(1, 400)[0]) {
			if n++; err != nil || n == 5 {
				break
			}
		}
		cancel()
		if err := e.Close(); err != nil {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// Three models write one answer, and a replica of the third dies while they do. Its
// turns are given anew, and no collaborator sends one again that has moved on.
func TestThirdModelDies(t *testing.T) {
	list := seeded(questions(10, 60)) // the draws of models are the seed's
	for i := range list {
		list[i].Model = "three"
	}
	three := func(c *Config) {
		one := c.Models[0]
		c.Models = nil
		for _, name := range []string{"tiny-s", "tiny-m", "tiny-l"} {
			m := one
			m.Name = name
			c.Models = append(c.Models, m)
		}
		c.Deployments = []Deployment{{Name: "three", Models: []string{"tiny-s", "tiny-m", "tiny-l"}, Policy: Policy{Name: "me"}}}
	}
	want := answers(t, start(t, three), list, 6, nil)
	for _, rule := range []schedule.Rule{schedule.Delayed, schedule.Lockstep} {
		e := start(t, func(c *Config) {
			three(c)
			c.Schedule, c.Models[2].Replicas = rule, 2
		})
		var mu sync.Mutex
		done := 0
		got := answers(t, e, list, 6, func() {
			mu.Lock()
			defer mu.Unlock()
			if done++; done == 2 {
				e.kill("tiny-l-1")
			}
		})
		for i := range want {
			if d := differs(got[i], want[i]); d != "" {
				t.Errorf("%s, question %d: %s", rule, i, d)
			}
		}
		awaitIdle(t, e)
	}
}
