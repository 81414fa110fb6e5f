package sim

import (
	"math"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/schedule"
)

// What sub-services measure about themselves is what they were given: routing,
// step times, how much company slows them down, what prompts and hand-offs take.
func TestEstimates(t *testing.T) {
	cfg := r2r(4, 40, 1000, 0.35, 2, schedule.Delayed)
	for i := range cfg.Models {
		cfg.Models[i].Slowed, cfg.Models[i].Jitter, cfg.Models[i].Prefill = 1.4, 0.1, 40*time.Millisecond
	}
	cfg.Transit = 2 * time.Millisecond
	s, err := newSimulation(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run(); err != nil {
		t.Fatal(err)
	}
	near := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got/want-1) > within {
			t.Errorf("%s is %.4f, want %.4f", what, got, want)
		}
	}
	for i, h := range s.hosts {
		e := h.sub.Estimate()
		near("slowdown", e.Slowdown, 1.4, 0.05)
		// Company comes and goes within a step, so times spread by more than the jitter.
		if e.Spread < 0.05 || e.Spread > 0.2 {
			t.Errorf("spread %.3f of a jitter of 0.1", e.Spread)
		}
		near("hand-off", e.Hop.Mean.Seconds(), 0.002, 0.001)
		// In company prompts take longer too.
		if p := e.Prefill; p.N < 35 || p.Mean < 38*time.Millisecond || p.Mean > 62*time.Millisecond {
			t.Errorf("%d prompts of %s, want 40 ms to 56 ms", p.N, p.Mean)
		}
		want := cfg.Models[i].Step[0].Seconds()
		for b, st := range e.All {
			if st.N >= 50 {
				near("step alone", st.Mean.Seconds()/(1+(e.Slowdown-1)*st.Company), want, 0.06)
			}
			if st.N > 0 && (st.Company < 0 || st.Company > 1.001) {
				t.Errorf("model %d, batch %d: company %.3f", i, b+1, st.Company)
			}
		}
		h.driver.Stop()
	}
	small, large := s.hosts[0].sub.Estimate(), s.hosts[1].sub.Estimate()
	near("hand-overs", small.To[1], 0.35, 0.12)
	near("kept", small.Kept[0], 1, 0.001)
	if small.Kept[1] != 0 || large.To[0] < 0.999 {
		t.Errorf("kept at hand-over %g, back %g", small.Kept[1], large.To[0])
	}
}
