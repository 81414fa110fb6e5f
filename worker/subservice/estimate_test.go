package subservice

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// planned is a step of so many decoding sequences beside chunks of prompts, of which the last so many end one.
func planned(decoding, chunks, ends int) *scheduler.Plan {
	var p scheduler.Plan
	for i := range decoding + chunks {
		kind, samples := scheduler.Decode, uint64(1)
		if i >= decoding {
			kind = scheduler.Prefill
			if i < decoding+chunks-ends {
				samples = 0
			}
		}
		p.IDs, p.Kinds = append(p.IDs, scheduler.ID(i)), append(p.Kinds, kind)
		p.Batch.Rows = append(p.Batch.Rows, step.Row{Sample: samples})
	}
	return &p
}

// Prompts' time counts for each sequence of the steps of late: what a start with new prompts took fades.
func TestPromptsFade(t *testing.T) {
	const usual, longer = 10 * time.Millisecond, 110 * time.Millisecond
	var e estimator
	e.measure(planned(0, 1, 0), longer, longer, 0)
	if each := e.prompts.each(); each != 0 {
		t.Fatalf("%v for each sequence before any was in a step, want 0", each)
	}
	e = estimator{}
	e.measure(planned(4, 0, 0), usual, usual, 0)
	for range 10 {
		e.measure(planned(4, 2, 0), longer, longer, 0)
		e.measure(planned(4, 2, 1), longer, longer, 0)
	}
	// 2 s in steps of 4 + 10 (4 + 5) sequences; the fading is small so far.
	if each, want := e.prompts.each(), 2*time.Second/94; each < want*95/100 || each > want*105/100 {
		t.Errorf("%v for each sequence at the start, want about %v", each, want)
	}
	if e.prefill.N != 10 || e.prefill.Total != 2*time.Second {
		t.Errorf("%d prompts took %v, want 10 and 2 s", e.prefill.N, e.prefill.Total)
	}
	var last time.Duration
	for range 2 * routedWindow {
		e.measure(planned(4, 0, 0), usual, usual, 0)
		last = e.prompts.each()
	}
	if all := 2 * time.Second / (94 + 8*routedWindow); last < 0 || last > all/4 {
		t.Errorf("%v for each sequence long after, want much less than the %v over all steps", last, all)
	}
}
