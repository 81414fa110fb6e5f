package subservice

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// A row whose logits are not finite has no outputs. The rows beside it are judged by
// their own, wherever it stands in the step.
func TestBrokenRowJudgesNobody(t *testing.T) {
	tau := 0.3
	for _, name := range []string{"r-stitch", "request-level", "entropy"} {
		set, err := policies.New(name, 2, policies.Settings{Threshold: &tau})
		if err != nil {
			t.Fatal(err)
		}
		for broken := range 3 {
			r := &route{policy: set.For(policies.Entry)}
			r.spec = r.policy.Spec()
			for i := range 3 {
				out := &step.Out{Entropy: 0.2, LogV: 2}
				if i == broken {
					out = &step.Out{Flags: step.FlagNaN}
				}
				r.add(&sequence{}, out, policies.Decode)
			}
			if err := r.decide(); err != nil {
				t.Fatal(err)
			}
			for i, d := range r.choices {
				if i != broken && !d.Keep {
					t.Errorf("%s: row %d is dropped beside a broken row %d", name, i, broken)
				}
			}
		}
	}
}

// A policy that panics about one row is asked about the others again.
func TestPanicIsOneRows(t *testing.T) {
	calls := 0
	own := policies.Named("own", policies.Binary(func(row policies.Row) bool {
		calls++
		if row.Token == 2 {
			panic("here")
		}
		return row.Entropy > 0.5
	}))
	r := &route{policy: own.For(policies.Entry)}
	r.spec = r.policy.Spec()
	for i := range int32(4) {
		r.add(&sequence{}, &step.Out{Token: i, Entropy: float32(i) * 0.5, LogV: 2}, policies.Decode)
	}
	if err := r.decide(); err == nil {
		t.Error("no error")
	}
	for i, want := range []policies.Decision{{To: 0, Keep: true}, {To: 0, Keep: true}, {To: 0}, {To: 1}} {
		if d := r.choices[i]; d.To != want.To || d.Keep != want.Keep {
			t.Errorf("row %d: %+v, want %+v", i, d, want)
		}
	}
	if calls != 7 {
		t.Errorf("asked %d times, want 3 and 4", calls)
	}
}
