package sim

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// The real system in virtual time makes what the paper's model predicts for its
// threshold sweep (section 2.12 and 3.6; tokens a second).
func TestThresholdSweepOfThePaper(t *testing.T) {
	for _, c := range []struct {
		n, b int
		want float64
	}{
		{1, 1, 63.4}, {2, 1, 99.0}, {2, 2, 110.3}, {3, 1, 142.3}, {3, 2, 158.1}, {3, 3, 151.9},
		{4, 1, 187.2}, {4, 2, 195.4}, {4, 3, 208.0}, {4, 4, 190.7}, {8, 5, 399.0},
	} {
		t.Run(fmt.Sprintf("n=%d,b=%d", c.n, c.b), func(t *testing.T) {
			if testing.Short() && c.n > 2 {
				t.Skip("too long under the race detector")
			}
			length := 2000
			if testing.Short() {
				length = 700
			}
			cfg := r2r(c.n, 10*c.n, length, 0.35, c.b, schedule.Delayed)
			r, err := Run(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.Throughput(); math.Abs(got/c.want-1) > 0.015 {
				t.Errorf("%.1f tokens/s, the model says %.1f", got, c.want)
			}
		})
	}
}

// Among the schedules lockstep is the slowest and delayed the fastest, as in
// solver.md section 7: small steps that discard their token, one token a visit.
func TestOrderOfSchedules(t *testing.T) {
	length := 1000
	if testing.Short() {
		length = 300
	}
	got := map[schedule.Rule]float64{}
	for _, name := range schedule.Names() {
		rule, err := schedule.Parse(name)
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(r2r(4, 40, length, 0.35, 3, rule))
		if err != nil {
			t.Fatal(err)
		}
		got[rule] = r.Throughput()
	}
	t.Logf("%v", got)
	// One small step for all, then one large step for those diverted, if any.
	lockstep := 4 * 1000 / (6 + 27.9*(1-math.Pow(0.65, 4)))
	if math.Abs(got[schedule.Lockstep]/lockstep-1) > 0.02 {
		t.Errorf("lockstep makes %.1f tokens/s, the formula says %.1f", got[schedule.Lockstep], lockstep)
	}
	if got[schedule.Delayed] < got[schedule.Eager] || got[schedule.Adaptive] < got[schedule.Eager] || got[schedule.Eager] < got[schedule.Lockstep] {
		t.Errorf("the order is wrong: %v", got)
	}
}

// Adaptive with no floor makes what the exact evaluation of its rule says
// (look_theta of the reference cases r04, r06 and r25: steps a millisecond).
func TestLookAheadReference(t *testing.T) {
	p2, p1 := 0.2, 0.1
	for _, c := range []struct {
		name   string
		n      int
		times  []time.Duration
		policy string
		set    policies.Settings
		want   float64
	}{
		{"r04", 4, []time.Duration{6 * ms, 27 * ms}, "random", policies.Settings{Threshold: &p2}, 0.349674},
		{"r06", 8, []time.Duration{6 * ms, 27 * ms}, "random", policies.Settings{Threshold: &p1}, 0.87841},
		{"r25", 4, []time.Duration{1 * ms, 4 * ms, 14 * ms}, "me", policies.Settings{Weights: []float64{0.5, 0.3, 0.2}}, 0.710111},
	} {
		t.Run(c.name, func(t *testing.T) {
			// Under the race detector the long run is too long; a short one is less exact.
			length, bound := 4000, 0.01
			if testing.Short() {
				if c.name != "r04" {
					t.Skip("too long under the race detector")
				}
				length, bound = 2000, 0.015
			}
			cfg := Config{Policy: c.policy, Settings: c.set, Schedule: schedule.Adaptive, Requests: Closed(20*c.n, 1, length), Concurrency: c.n}
			for i, d := range c.times {
				cfg.Models = append(cfg.Models, Model{Name: fmt.Sprintf("m%d", i), Step: []time.Duration{d}, LongestWait: time.Hour})
			}
			r, err := Run(cfg)
			if err != nil {
				t.Fatal(err)
			}
			rows := 0
			for _, m := range r.Models {
				rows += m.Rows
			}
			got := float64(rows) / (r.Elapsed.Seconds() * 1000)
			t.Logf("%.5f steps a millisecond, the exact evaluation says %.5f", got, c.want)
			if math.Abs(got/c.want-1) > bound {
				t.Errorf("%.5f steps a millisecond, the exact evaluation says %.5f", got, c.want)
			}
		})
	}
}

// The first pass of a prompt takes its time at every model, whoever shares the step.
func TestPrefillTakesTime(t *testing.T) {
	model := func(step, prefill time.Duration) Model {
		return Model{Step: []time.Duration{step}, Prefill: prefill, LongestWait: time.Hour}
	}
	r, err := Run(Config{
		Models:   []Model{model(time.Second, 3*time.Second), model(2*time.Second, 5*time.Second)},
		Requests: []Request{{Prompt: 4, Path: []policies.ModelID{0, 0, 1, 1}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	// 3 s of the entry's prompt with the first token, a step, the other's first pass, a step.
	if want := 11 * time.Second; r.Elapsed != want {
		t.Errorf("took %s, want %s", r.Elapsed, want)
	}
}

// A share of tokens is kept if the routing says so.
func TestShareKept(t *testing.T) {
	r, err := Run(Config{
		Models: []Model{{Step: []time.Duration{time.Second}}, {Step: []time.Duration{time.Second}}},
		P:      [][]float64{{.5, .5}, {1, 0}}, Commit: [][]float64{{1, .25}, {1, 1}}, Visits: true,
		Requests: Closed(40, 1, 200), Concurrency: 4,
	})
	if err != nil {
		t.Fatal(err)
	}
	given, kept := 0, 0
	for _, visits := range r.Visits {
		for i := range visits[:len(visits)-1] {
			if visits[i].Model == 0 && visits[i+1].Model == 1 {
				given++
				if visits[i].Kept {
					kept++
				}
			}
		}
	}
	if share := float64(kept) / float64(given); share < .2 || share > .3 {
		t.Errorf("%d of %d tokens are kept, want a quarter", kept, given)
	}
}
