package cudaexec

import (
	"context"
	"errors"
	"time"

	"github.com/sourcegraph/conc/pool"
)

// Bounds of watching. Sleeping and waking costs tens to hundreds of microseconds, and as much again until the processor's
// caches are warm for the next launch; watching costs a core.
const (
	minWatch = 200 * time.Microsecond
	maxWatch = 2 * time.Millisecond
)

// errStopped says that the caller's context ended the wait. The step goes on.
var errStopped = errors.New("cudaexec: the wait was given up")

// watching is how long a step's end is watched for at once, and after what time, counted from the beginning, it is watched
// for again, 0 for never; last are the times that the last two waits took. Between them a thread sleeps until the step's
// event.
//
// A wait is expected to take as long as the shorter of the last two, so that one long step between short ones, such as a
// prefill, changes nothing. A short one is watched for half as long again. Of a long one only the last eighth is watched, a
// millisecond at least, by which Go's timers may be late, and maxWatch at most: a large model's steps end before open eyes
// and cost an eighth of a core.
func watching(last [2]time.Duration) (first, again time.Duration) {
	expected := min(last[0], last[1])
	if expected > maxWatch {
		return minWatch, expected - min(max(expected/8, time.Millisecond), maxWatch)
	}
	return min(max(expected+expected/2, minWatch), maxWatch), 0
}

// waiter waits for steps, one after the other. One goroutine uses it.
type waiter struct {
	last [2]time.Duration // how long the last two waits took

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

// newWaiter starts the sleeper's thread. close ends it.
func newWaiter() *waiter {
	timer := time.NewTimer(0)
	timer.Stop()
	w := &waiter{
		ask: make(chan func() error, 1), answer: make(chan error, 1), sleeper: pool.New(), now: time.Now,
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
func (w *waiter) wait(ctx context.Context, step uint64, done func() bool, event func() error) error {
	from := w.now()
	first, again := watching(w.last)
	if w.asked == step || !w.watch(done, first) {
		if err := w.doze(ctx, step, done, event, again-w.now().Sub(from)); err != nil {
			return err
		}
	}
	w.last = [2]time.Duration{w.last[1], w.now().Sub(from)}
	return nil
}

// watch spins for so long and returns whether the step is done.
func (w *waiter) watch(done func() bool, long time.Duration) bool {
	for start := w.now(); ; {
		for range 64 {
			if done() {
				return true
			}
		}
		if w.now().Sub(start) > long {
			return false
		}
	}
}

// doze sleeps until the step's event. After the time early, if that is above 0, it watches for a while.
func (w *waiter) doze(ctx context.Context, step uint64, done func() bool, event func() error, early time.Duration) error {
	if w.asked != 0 && w.asked != step {
		// That step was seen to end, so its event has come or is about to.
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
	var alarm <-chan time.Time
	if early > 0 {
		alarm = w.alarm(early)
	}
	for {
		select {
		case err := <-w.answer:
			w.asked = 0
			return err
		case <-alarm:
			if w.watch(done, maxWatch) {
				return nil
			}
			alarm = nil
		case <-ctx.Done():
			// A step that has just ended counts, so that a late caller gets its result.
			if done() {
				return nil
			}
			return errStopped
		}
	}
}
