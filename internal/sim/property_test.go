package sim

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// drawConfig draws a system with hour-long waits: only the rules can start a step.
func drawConfig(t *rapid.T) Config {
	draw := func(low, high int, name string) int { return rapid.IntRange(low, high).Draw(t, name) }
	cfg := Config{Checked: true, MaxEvents: 200_000, Seed: uint64(draw(0, 1000, "seed")), PageSize: draw(1, 8, "page size")}
	cfg.Policy = rapid.SampledFrom([]string{"random", "r-stitch", "me", "request-level", "single"}).Draw(t, "policy")
	models := 2
	switch cfg.Policy {
	case "me":
		models = draw(2, 4, "models")
	case "single":
		models = draw(1, 3, "models")
	case "random", "r-stitch", "request-level":
		p := rapid.Float64Range(0, 1).Draw(t, "threshold")
		cfg.Settings = policies.Settings{Threshold: &p}
	}
	for i := range models {
		m := Model{
			Step: []time.Duration{time.Duration(draw(1, 40, "step")) * ms}, Threshold: draw(1, 12, "B"),
			LongestWait: time.Hour, MaxRows: draw(1, 8, "rows"),
		}
		if rapid.Bool().Draw(t, fmt.Sprintf("jitter %d", i)) {
			m.Jitter = 0.2
		}
		if rapid.Bool().Draw(t, fmt.Sprintf("shared %d", i)) {
			m.Slowed = 1.5
		}
		cfg.Models = append(cfg.Models, m)
	}
	if rapid.Bool().Draw(t, "closed") {
		cfg.Concurrency = draw(1, 8, "concurrency")
	}
	cfg.Transit = time.Duration(draw(0, 3, "transit")) * ms
	longest := 0
	for range draw(1, 14, "requests") {
		r := Request{
			At: time.Duration(draw(0, 300, "at")) * ms, Prompt: draw(1, 9, "prompt"), Tokens: draw(1, 25, "tokens"),
			Seed: uint64(draw(0, 1<<20, "seed")),
		}
		if draw(0, 3, "cancelled") == 0 {
			r.Cancel = time.Duration(draw(1, 400, "cancel")) * ms
		}
		longest = max(longest, r.Prompt+r.Tokens)
		cfg.Requests = append(cfg.Requests, r)
	}
	if rapid.Bool().Draw(t, "small pool") {
		cfg.Pages = longest/cfg.PageSize + 1 + draw(0, 8, "spare pages")
	}
	return cfg
}

// Whatever arrives, is cancelled, and whatever the policy and the thresholds: no
// request strands, under any schedule, and all schedules write the same.
func TestNoRequestStrands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t)
		var want []uint64
		for _, name := range schedule.Names() {
			rule, err := schedule.Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			cfg.Schedule = rule
			s, err := newSimulation(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.run(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if s.now > 10*time.Minute {
				t.Fatalf("%s: a step has waited for its longest wait: ended at %s", name, s.now)
			}
			if err := s.drain(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r := &s.result
			if r.Failed > 0 || r.Finished+r.Cancelled != len(cfg.Requests) {
				t.Fatalf("%s: of %d requests %d finished, %d failed, %d were cancelled", name, len(cfg.Requests), r.Finished, r.Failed, r.Cancelled)
			}
			got := slices.Clone(r.Digests)
			for i := range got {
				if cfg.Requests[i].Cancel > 0 {
					got[i] = 0 // how far it got depends on the schedule
				}
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Fatalf("%s writes other answers than %s", name, schedule.Names()[0])
			}
		}
	})
}

// drain plays what is left once all requests have ended, and checks that nothing
// of them is left.
func (s *Simulation) drain() error {
	for {
		if err := s.settle(); err != nil {
			return err
		}
		err := s.advance()
		if errors.Is(err, ErrStranded) {
			break // nothing will ever happen again
		}
		if err != nil {
			return err
		}
	}
	for _, h := range s.hosts {
		st := h.driver.Stats()
		if st.Queued+st.Running+st.Parked+st.Slots+st.PagesHeld != 0 {
			return fmt.Errorf("%s still has %+v", h.name, st)
		}
		h.driver.Stop()
	}
	return nil
}
