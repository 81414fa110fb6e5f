package sim

import (
	"math"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

const ms = time.Millisecond

// figure4 is the example of the paper's Fig. 4 (section 1.6): a small step takes
// 1, a large one 3.5; three requests of five tokens, all tokens kept.
func figure4(rule schedule.Rule) Config {
	const S, L = 0, 1
	return Config{
		Models: []Model{
			{Name: "small", Step: []time.Duration{1000 * ms}},
			{Name: "large", Step: []time.Duration{3500 * ms}, Threshold: 2, LongestWait: time.Hour},
		},
		Schedule: rule,
		Requests: []Request{
			{Path: []policies.ModelID{S, S, S, S, S}},
			{Path: []policies.ModelID{S, L, S, S, S}},
			{Path: []policies.ModelID{S, S, L, S, S}},
		},
		Record: true, Checked: true, MaxEvents: 1000,
	}
}

func testFigure4(t *testing.T, rule schedule.Rule, mean float64, ends ...float64) *Result {
	t.Helper()
	r, err := Run(figure4(rule))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.MeanEnd().Seconds(); math.Abs(got-mean) > 0.005 {
		t.Errorf("mean finish time %.3f, want %.2f", got, mean)
	}
	for i, want := range ends {
		if got := r.Ended[i].Seconds(); got != want {
			t.Errorf("request %d ends at %g, want %g", i+1, got, want)
		}
	}
	if r.Tokens != 15 || r.Finished != 3 {
		t.Errorf("%d tokens, %d requests", r.Tokens, r.Finished)
	}
	return r
}

func TestFigure4StepSync(t *testing.T)  { testFigure4(t, schedule.StepSync, 10, 10, 10, 10) }
func TestFigure4ModelSync(t *testing.T) { testFigure4(t, schedule.ModelSync, 11.33, 12, 11, 11) }
func TestFigure4Eager(t *testing.T)     { testFigure4(t, schedule.Eager, 7.67, 5, 8, 10) }
func TestFigure4Delayed(t *testing.T)   { testFigure4(t, schedule.Delayed, 7, 5, 8.5, 7.5) }
func TestFigure4Lockstep(t *testing.T)  { testFigure4(t, schedule.Lockstep, 12, 12, 12, 12) }

// The look-ahead rule needs no threshold to see that request 3 comes soon.
func TestFigure4Adaptive(t *testing.T) {
	r, err := Run(figure4(schedule.Adaptive))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.MeanEnd().Seconds(); got > 7.67 {
		t.Errorf("mean finish time %.3f, eager's is 7.67", got)
	}
}
