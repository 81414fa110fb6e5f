package subservice

import (
	"math"
	"testing"
	"time"
)

// Prompts are shared by the sequences of the steps around them, and those of long ago fade: a start at which every prompt is new says little
// about what comes after it.
func TestPromptTimeFades(t *testing.T) {
	var p promptTime
	if p.each() != 0 {
		t.Errorf("%v before any step", p.each())
	}
	for range 50 {
		p.add(1, 240*time.Millisecond)
	}
	if e := p.each(); e < 239*time.Millisecond || e > 241*time.Millisecond {
		t.Errorf("%v for each of 50 prompts alone", e)
	}
	for range 1000 {
		p.add(8, 0)
	}
	// 50 prompts, of which 8000 sequences later e^-4 is left, over a window of 2000.
	want := 50 * 240 * math.Exp(-4) / routedWindow
	if e := p.each().Seconds() * 1000; math.Abs(e/want-1) > 0.05 {
		t.Errorf("%.3f ms for a sequence 8000 sequences later, want %.3f", e, want)
	}
}
