package subservice

import (
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// ErrHung means that a step does not end: the driver or the device does not come back. Run has then given up the replica as if
// its executor had failed, but the executor still has the step, and perhaps a goroutine that never ends. It must not be
// called again, not even to be shut down, and its memory must not be freed. Only a new process helps.
var ErrHung = errors.New("a step does not end")

// HungError is the step. It wraps ErrHung.
type HungError struct {
	Step         uint64
	Rows, Tokens int
	// Call is what does not come back: "launch" or "wait". With a step launched ahead, the launch may be of that one.
	Call string
	// Waited is how long the step has been in progress, from the last pause of the process on if there was one, Limit what it was
	// given. Expected is how long it would take if it were as slow as the slow ones of its size, 0 if too few were measured.
	Waited, Limit, Expected time.Duration
}

func (e *HungError) Error() string {
	return fmt.Sprintf("step %d of %d rows and %d tokens: %v after %s (%s)", e.Step, e.Rows, e.Tokens, ErrHung, e.Waited.Round(time.Millisecond), e.Call)
}

func (e *HungError) Unwrap() error { return ErrHung }

func (e *HungError) attrs(model string) []any {
	expected := "unknown"
	if e.Expected > 0 {
		expected = e.Expected.Round(10 * time.Microsecond).String()
	}
	return []any{
		"model", model, "step", e.Step, "rows", e.Rows, "tokens", e.Tokens, "call", e.Call,
		"waited", e.Waited.Round(time.Millisecond), "limit", e.Limit.Round(time.Millisecond), "expected", expected,
	}
}

const (
	// lookEvery is how often a step in progress is looked at.
	lookEvery = 500 * time.Millisecond
	// lateLook is the time between two looks from which on the process, and not only the step, must have stood still: it was
	// stopped, or its machine slept or has far too much to do.
	lateLook = 2 * lookEvery
)

// watchdog tells steps that hang. The decode loop calls enter before and leave after each call of the executor that may hang, on
// its own goroutine; Run's looks. A loop that is inside such a call cannot do anything else, so that Run can take its state
// over.
type watchdog struct {
	model string
	info  *executor.Info
	patience
	heldUp func() time.Duration // as Config.HeldUp, never nil

	mu sync.Mutex
	// inside says that the loop is in a call, taken that its state was taken over meanwhile; asleep that nobody looks.
	inside, taken, asleep bool
	// wake has room for one value: enter sends without blocking, Run receives.
	wake chan struct{}

	// The loop's, which writes it outside of calls only. With mu locked and inside set, Run may read it.
	call    string
	running bool // there is a step in progress
	step    uint64
	work    work
	began   time.Duration
	past    history

	// Run's: when it looked last, and when the process last went on after it had stood still. excused is the most that heldUp
	// has said while it looked at the step of the number seen.
	looked, resumed time.Duration
	seen            uint64
	excused         time.Duration
}

func newWatchdog(info *executor.Info, p patience, heldUp func() time.Duration) *watchdog {
	if heldUp == nil {
		heldUp = func() time.Duration { return 0 }
	}
	return &watchdog{model: info.Model, info: info, patience: p, heldUp: heldUp, asleep: true, wake: make(chan struct{}, 1)}
}

// begin notes a step that is about to be launched, unless one is in progress: then that comes first.
func (w *watchdog) begin(b *step.Batch, now time.Duration) {
	if !w.running {
		w.running, w.step, w.work, w.began = true, b.Step, workOf(b), now
	}
}

// ended notes that the step in progress has, after so long; next is the one that goes on, or nil.
func (w *watchdog) ended(now, took time.Duration, next *flight) {
	w.past.add(w.work, took)
	w.running = false
	if next != nil {
		w.begin(&next.plan.Batch, now)
	}
}

// enter notes that a call begins.
func (w *watchdog) enter(call string) {
	w.call = call
	w.mu.Lock()
	w.inside = true
	wake := w.asleep
	w.asleep = false
	w.mu.Unlock()
	if wake {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// leave notes that the call has ended. If it reports an error, the loop's state belongs to another goroutine by now: the loop
// must end at once, and touch nothing.
func (w *watchdog) leave() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.inside = false
	if w.taken {
		return ErrHung
	}
	return nil
}

// look reports a step that has hung, whose loop's state is the caller's from then on, and otherwise whether to look again after
// lookEvery. If not, wake tells when.
func (w *watchdog) look(now time.Duration) (hung *HungError, again bool) {
	heldUp := w.heldUp() // another watchdog may ask this one meanwhile, so w.mu is not locked
	if now-w.looked > lateLook {
		w.resumed = now // a step gets all its time anew
	}
	w.looked = now
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.inside {
		w.asleep = true
		return nil, false
	}
	if w.seen != w.step {
		w.seen, w.excused = w.step, 0
	}
	w.excused = max(w.excused, heldUp)
	waited := now - max(w.began, w.resumed)
	if waited <= max(w.least, w.excused) {
		return nil, true
	}
	limit, expected := w.past.limit(w.patience, w.info, w.work)
	limit = max(limit, w.excused)
	if waited <= limit {
		return nil, true
	}
	w.taken = true
	return &HungError{
		Step: w.step, Rows: w.work.rows, Tokens: w.work.tokens, Call: w.call,
		Waited: waited, Limit: limit, Expected: expected,
	}, false
}

// allowed is what the step in progress is given by its own size, 0 if the loop is in no call. Any goroutine may ask.
func (w *watchdog) allowed() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.inside {
		return 0
	}
	limit, _ := w.past.limit(w.patience, w.info, w.work)
	return limit
}

// watch looks until a step has hung, or until the loop has ended.
func (w *watchdog) watch(now func() time.Duration, ended <-chan struct{}, log *slog.Logger) *HungError {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		select {
		case <-ended:
			return nil
		case <-w.wake:
			w.looked = now()
			w.resumed = w.looked // the process may have stood still since the call began
			timer.Reset(lookEvery)
		case <-timer.C:
			// A timer's goroutine overtakes all others. Behind those that can run, the look is as late as the loop may be.
			runtime.Gosched()
			hung, again := w.look(now())
			if hung != nil {
				log.Error("a step does not end; the replica is given up, and a new process must take this one's place", hung.attrs(w.model)...)
				return hung
			}
			if again {
				timer.Reset(lookEvery)
			}
		}
	}
}

// unreachable stands for an executor that must not be called any more.
type unreachable struct{ executor.Executor }

// Close does nothing: whatever the slot had stays as it is.
func (unreachable) Close(step.Slot) {}
