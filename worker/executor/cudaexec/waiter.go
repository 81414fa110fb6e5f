package cudaexec

import (
	"context"
	"errors"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// Bounds of watching. A launch that follows a sleep of the processor takes tens of microseconds longer, and whoever sleeps for an event
// wakes late. Watching costs a core while a step runs.
const (
	minWatch = 200 * time.Microsecond
	maxWatch = 2 * time.Millisecond
	// watchingCores is how many processors a machine has for each of its GPUs where ends of steps are watched for all the time.
	watchingCores = 8
)

// errStopped says that the caller's context ended the wait. The step goes on.
var errStopped = errors.New("cudaexec: the wait was given up")

// watches is how a step's end is awaited: it is watched for at once and, if then is not 0, from the time then on, counted from the
// beginning, for so long. Between the two the waiter sleeps by the clock; after them a thread sleeps until the step's event.
type watches struct{ first, then, long time.Duration }

// watching is how the end of a step of a kind is awaited that follows two which took so long, 0 for none. It is expected to take as
// long as the shorter one. A short step is watched for half as long again, and so is a long one where always says that cores are
// plentiful. Elsewhere the last eighth of a long one is watched, a millisecond at least, by which Go's timers may be late, and
// maxWatch at most, and then a quarter; but steps of anySize, which may end at any time, are slept for.
func watching(always bool, kind int, last [2]time.Duration) watches {
	expected := min(last[0], last[1])
	half := expected + expected/2
	switch {
	case expected <= maxWatch:
		return watches{first: min(max(half, minWatch), maxWatch)}
	case always:
		return watches{first: half}
	case kind == anySize:
		return watches{first: minWatch}
	}
	early := min(max(expected/8, time.Millisecond), maxWatch)
	return watches{minWatch, expected - early, early + expected/4}
}

// waiter waits for steps, one after the other. One goroutine uses it.
type waiter struct {
	always bool                        // cores are plentiful
	last   [stepKinds][2]time.Duration // how long the last two waits for a kind of step took

	// ask has the sleeper wait for a step's event; capacity 1 and one question at a time, so the send never blocks.
	// answer, of the same capacity, has the outcome.
	ask     chan func() error
	answer  chan error
	sleeper *pool.Pool
	// asked is the step whose event the sleeper was asked to wait for and whose answer has not been taken, 0 for none. It may
	// be a step that was seen to end meanwhile.
	asked uint64

	now   func() time.Time
	alarm func(time.Duration) <-chan time.Time
}

// Kinds of steps take about as long as one another: those of a graph, by the place of its size, and anySize, which all larger ones are.
const (
	anySize   = len(bodySizes)
	stepKinds = anySize + 1
)

// stepKind is the kind of a step of so many tokens.
func stepKind(tokens int) int {
	for i, size := range bodySizes {
		if tokens <= size {
			return i
		}
	}
	return anySize
}

// newWaiter starts the sleeper's thread. close ends it.
func newWaiter(always bool) *waiter {
	timer := time.NewTimer(0)
	timer.Stop()
	w := &waiter{
		always: always, ask: make(chan func() error, 1), answer: make(chan error, 1), sleeper: pool.New(), now: time.Now,
		alarm: func(d time.Duration) <-chan time.Time {
			timer.Reset(d)
			return timer.C
		},
	}
	w.sleeper.Go(func() {
		for event := range w.ask {
			w.answer <- event()
		}
	})
	return w
}

// close ends the sleeper. The events that it waits for must come.
func (w *waiter) close() {
	close(w.ask)
	w.sleeper.Wait()
}

// wait returns when done reports true, or when the event, which is behind the step, has come. The error is the event's, or
// errStopped once ctx has ended; then wait may be called again for the same step. Steps have ascending numbers above 0.
func (w *waiter) wait(ctx context.Context, step uint64, kind int, done func() bool, event func() error) error {
	from := w.now()
	seen, missed := false, false
	if w.asked != step {
		seen, missed = w.look(ctx, watching(w.always, kind, w.last[kind]), from, done)
	}
	if !seen {
		if err := w.doze(ctx, step, done, event); err != nil {
			return err
		}
	}
	took := w.now().Sub(from)
	if missed {
		took = 0
	}
	w.last[kind] = [2]time.Duration{w.last[kind][1], took}
	return nil
}

// look watches, sleeps and watches. It returns whether the step is done, and whether it ended while the waiter slept: nobody knows when
// then, so the next steps of its kind are slept for until their events, which tell how long they take.
func (w *waiter) look(ctx context.Context, plan watches, from time.Time, done func() bool) (seen, missed bool) {
	if w.watch(ctx, done, plan.first) {
		return true, false
	}
	left := plan.then - w.now().Sub(from)
	if plan.then == 0 || left <= 0 {
		return false, false
	}
	select {
	case <-w.alarm(left):
		if done() {
			return true, true
		}
		return w.watch(ctx, done, plan.long), false
	case <-ctx.Done():
		return false, false
	}
}

// watch spins for so long, or until ctx ends, and returns whether the step is done.
func (w *waiter) watch(ctx context.Context, done func() bool, long time.Duration) bool {
	for start := w.now(); ; {
		for range 64 {
			if done() {
				return true
			}
		}
		if w.now().Sub(start) > long || ctx.Err() != nil {
			return false
		}
	}
}

// doze sleeps until the step's event.
func (w *waiter) doze(ctx context.Context, step uint64, done func() bool, event func() error) error {
	if w.asked != 0 && w.asked != step {
		// That step was seen to end by a later call, so its event has come or is about to.
		err := <-w.answer
		w.asked = 0
		if err != nil {
			return err
		}
	}
	if w.asked == 0 {
		w.ask <- event
		w.asked = step
	}
	select {
	case err := <-w.answer:
		w.asked = 0
		return err
	case <-ctx.Done():
		// A step that has just ended counts, so that a late caller gets its result.
		if done() {
			return nil
		}
		return errStopped
	}
}
