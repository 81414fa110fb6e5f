package subservice

import (
	"math/bits"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// work is how much a step computes.
type work struct {
	rows, tokens int
	// pairs counts, for each token, the positions that it attends to.
	pairs int64
}

func workOf(b *step.Batch) work {
	w := work{rows: len(b.Rows)}
	for i := range b.Rows {
		n := len(b.Rows[i].Tokens)
		w.tokens += n
		w.pairs += int64(n) * (int64(b.Rows[i].Start) + int64(n))
	}
	return w
}

// over is how many times as long as a step of other work one of w takes at most, if a step's time is a sum of parts that
// grow with nothing, with the tokens and with the pairs, whatever the parts are.
func (w work) over(other work) float64 {
	return max(1, float64(w.tokens)/float64(max(other.tokens, 1)), float64(w.pairs)/float64(max(other.pairs, 1)))
}

// patience says how long a step may take.
type patience struct {
	// least is what every step is given, unknown what one is given at least of whose size few were measured.
	least, unknown time.Duration
	// times is how many times as long as the slow ones of late a step may take.
	times float64
	// slowest is the speed, in operations a second, that a step reaches at least, if nothing was measured.
	slowest float64
}

// unknownOnGPU is what a step on a GPU is given before steps of its size were measured: kernels may be compiled, or read from a slow disk.
const unknownOnGPU = 30 * time.Second

// patienceWith is the patience with a device; least is what the configuration says, 0 for the device's own. To give up a healthy
// server is worse than to find a hang late.
//
// A GPU computes at a steady speed, but too much heat or too little power may slow its clock down to a sixth, and other programs
// may share it. A CPU's steps share their cores with whatever else the machine does, by whose priority they may be a
// hundred times slower, and read weights anew from a disk where memory is short; little but a mistake of our own can make one hang.
func patienceWith(info *executor.Info, least time.Duration) patience {
	p := patience{least: 2 * time.Second, unknown: unknownOnGPU, times: 10, slowest: 1e12}
	if info.Device == "cpu" {
		p = patience{least: 5 * time.Minute, times: 100, slowest: 1e9}
	}
	if least > 0 {
		p.least = least
	}
	p.unknown = max(p.unknown, p.least)
	return p
}

// operations is a generous estimate of what a step computes. A layer has up to 20 times the square of its width in weights, and its
// heads may be twice as wide together as the layer.
func operations(info *executor.Info, w work) float64 {
	width, layers := float64(info.Hidden), float64(info.Layers)
	weights := 20*layers*width*width + float64(info.Vocab)*width
	return 2*weights*float64(w.tokens) + 8*layers*width*float64(w.pairs)
}

const (
	// sizes is the number of classes of steps: those of up to 1, 3, 7, 15 tokens and so on.
	sizes = 20
	// remembered is how many steps of each class are, and enough how many make the class known.
	remembered, enough = 128, 32
	// longestLimit bounds what comes of scaling.
	longestLimit = 24 * time.Hour
)

// measuredStep is a step that has ended.
type measuredStep struct {
	work
	took time.Duration
}

// history is how long the last steps of each class took.
type history struct {
	classes [sizes]struct {
		n    int // steps seen
		last [remembered]measuredStep
	}
}

func sizeOf(w work) int { return min(bits.Len(uint(w.tokens)), sizes-1) }

func (h *history) add(w work, took time.Duration) {
	c := &h.classes[sizeOf(w)]
	c.last[c.n%remembered] = measuredStep{w, took}
	c.n++
}

// slow is how long a step of w takes, by the slow ones of a class: longer than 99 of 100, or than all but one if there are
// fewer, as one may have been in progress while the process stood still. It is 0 for a class without steps.
func (h *history) slow(class int, w work) time.Duration {
	c := &h.classes[class]
	scaled := make([]float64, min(c.n, remembered))
	if len(scaled) == 0 {
		return 0
	}
	for i := range scaled {
		scaled[i] = w.over(c.last[i].work) * float64(c.last[i].took)
	}
	slices.Sort(scaled)
	return time.Duration(min(scaled[max(len(scaled)-2, 0)], float64(longestLimit)))
}

// limit is the time after which a step of w has hung, and how long it would take if it were as slow as the slow ones of late,
// 0 where too little is known.
func (h *history) limit(p patience, info *executor.Info, w work) (limit, expected time.Duration) {
	own := sizeOf(w)
	if h.classes[own].n >= enough {
		expected = h.slow(own, w)
		return max(p.least, p.stretch(expected)), expected
	}
	limit = max(p.unknown, time.Duration(min(operations(info, w)/p.slowest*float64(time.Second), float64(longestLimit))))
	for class := range h.classes {
		limit = max(limit, p.stretch(h.slow(class, w)))
	}
	return limit, 0
}

func (p *patience) stretch(d time.Duration) time.Duration {
	return time.Duration(min(p.times*float64(d), float64(longestLimit)))
}
