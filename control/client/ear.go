package client

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/pulse"
)

// Times of an ear.
const (
	// silence is how long a control node may send nothing, if it is never late.
	silence = 750 * time.Millisecond
	earTick = 50 * time.Millisecond
	// mostLate bounds the lateness that is allowed for: silence + 2·mostLate is borne at most.
	mostLate = time.Second
)

// ear listens for the lines of one watch after another. What it has seen of lateness
// outlives a watch: on a busy machine a control node that was taken for silent may just
// have been late, and the next one is given more time.
type ear struct {
	mu    sync.Mutex
	pulse *pulse.Watch
	// slow is of a control node that does not say how often it speaks; nil for others.
	slow *pulse.Watch
}

func newEar(now time.Time) *ear {
	return &ear{pulse: pulse.New(pulse.Config{Every: BeatEvery, Tick: earTick, Limit: silence, Most: mostLate}, now)}
}

// begin starts anew with a control node that is asked now.
func (e *ear) begin(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pulse.Begin(now)
	e.slow = nil
}

// expectSlow says that a control node is of another build, which may speak each second only.
func (e *ear) expectSlow(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.slow = pulse.New(pulse.Config{Every: SlowBeat, Tick: earTick, Limit: 3 * SlowBeat}, now)
}

// heard notes a line.
func (e *ear) heard(now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.slow != nil {
		e.slow.Heard(now)
		return
	}
	e.pulse.Heard(now)
}

// silent says at a tick that the control node is, and why.
func (e *ear) silent(now time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pulse
	if e.slow != nil {
		p = e.slow
	}
	borne := p.Bears()
	if !p.Tick(now) {
		return nil
	}
	e.pulse.Heard(now) // it may have been late
	return fmt.Errorf("%w for %s", errSilent, borne.Round(time.Millisecond))
}

// listen ends a watch by cancel when the control node falls silent. It returns when ctx
// has ended.
func (e *ear) listen(ctx context.Context, cancel context.CancelCauseFunc) {
	ticker := time.NewTicker(earTick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := e.silent(time.Now()); err != nil {
			cancel(err)
			return
		}
	}
}
