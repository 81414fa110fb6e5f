package cudaexec

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sourcegraph/conc/pool"
)

func TestWatching(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, tc := range []struct {
		last [2]time.Duration
		want watches
	}{
		{[2]time.Duration{}, watches{first: 200 * us}},
		{[2]time.Duration{us, us}, watches{first: 200 * us}},
		{[2]time.Duration{ms, ms}, watches{first: 1500 * us}},
		{[2]time.Duration{40 * ms, ms}, watches{first: 1500 * us}}, // one long one between
		{[2]time.Duration{ms, 40 * ms}, watches{first: 1500 * us}},
		{[2]time.Duration{1900 * us, 1900 * us}, watches{first: 2 * ms}},
		{[2]time.Duration{2 * ms, 2 * ms}, watches{first: 2 * ms}},
		{[2]time.Duration{5 * ms, 6 * ms}, watches{200 * us, 4 * ms, 2250 * us}},
		{[2]time.Duration{12 * ms, 100 * ms}, watches{200 * us, 10500 * us, 4500 * us}},
		{[2]time.Duration{time.Second, time.Second}, watches{200 * us, 998 * ms, 252 * ms}},
	} {
		if got := watching(false, 0, tc.last); got != tc.want {
			t.Errorf("after waits of %v: %v, want %v", tc.last, got, tc.want)
		}
		long := tc.want.then > 0
		tc.want.then, tc.want.long = 0, 0
		if got := watching(false, anySize, tc.last); got != tc.want {
			t.Errorf("any size, after waits of %v: %v, want %v", tc.last, got, tc.want)
		}
		if long {
			tc.want.first = min(tc.last[0], tc.last[1]) * 3 / 2
		}
		if got := watching(true, anySize, tc.last); got != tc.want {
			t.Errorf("with cores in plenty, after waits of %v: %v, want %v", tc.last, got, tc.want)
		}
	}
}

func TestStepKinds(t *testing.T) {
	for tokens, want := range map[int]int{0: 0, 1: 0, 2: 1, 3: 2, 8: 3, 9: 4, 256: stepKinds - 2, 257: stepKinds - 1, 1 << 20: stepKinds - 1} {
		if got := stepKind(tokens); got != want {
			t.Errorf("%d tokens are of kind %d, want %d", tokens, got, want)
		}
	}
}

// waiting is a waiter whose time, alarms and events the test makes.
type waiting struct {
	waiter
	time   time.Time
	tick   time.Duration // by which each look at the clock is later
	alarms chan time.Time
	set    []time.Duration // alarms asked for
	events chan error
}

func newWaiting(t *testing.T, last time.Duration) *waiting {
	w := &waiting{time: time.Unix(1, 0), tick: 100 * time.Microsecond, alarms: make(chan time.Time, 1), events: make(chan error, 1)}
	w.waiter = *newWaiter(false)
	t.Cleanup(w.close)
	w.last[0] = [2]time.Duration{last, last}
	w.now = func() time.Time {
		w.time = w.time.Add(w.tick)
		return w.time
	}
	w.alarm = func(d time.Duration) <-chan time.Time {
		w.set = append(w.set, d)
		return w.alarms
	}
	return w
}

// event is that of the step under way.
func (w *waiting) event() error { return <-w.events }

func never() bool { return false }

// after is of a step that is done after n looks.
func after(n int) func() bool {
	return func() bool {
		n--
		return n < 0
	}
}

func TestShortWaitsAreWatched(t *testing.T) {
	w := newWaiting(t, time.Millisecond)
	if err := w.wait(t.Context(), 1, 0, after(200), w.event); err != nil {
		t.Fatal(err)
	}
	if w.waiter.asked != 0 || w.set != nil {
		t.Errorf("a thread sleeps for step %d, alarms %v; want neither", w.waiter.asked, w.set)
	}
	if last := w.last[0]; last[0] != time.Millisecond || last[1] < 300*time.Microsecond {
		t.Errorf("last waits %v", last)
	}
}

// A long step is slept for by the clock and seen to end by the watch: no thread sleeps for its event, whose interrupt would come
// just when the next step is launched.
func TestLongWaitsEndInAWatch(t *testing.T) {
	w := newWaiting(t, 16*time.Millisecond)
	w.alarms <- w.time
	looks := 0
	done := func() bool {
		looks++
		return len(w.set) == 1 && looks > 1000 // not before the alarm
	}
	if err := w.wait(t.Context(), 1, 0, done, w.event); err != nil {
		t.Fatal(err)
	}
	if len(w.set) != 1 || w.set[0] <= 13*time.Millisecond || w.set[0] >= 14*time.Millisecond {
		t.Errorf("alarms after %v, want one after 14 ms less what was watched", w.set)
	}
	if w.waiter.asked != 0 {
		t.Fatalf("a thread sleeps for step %d, want none", w.waiter.asked)
	}
}

// A step that ends while the waiter sleeps by the clock is seen late, and nobody knows how late: the next two are slept for by
// their events, and so on until it is known how long such steps take now.
func TestStepsThatBecomeShorter(t *testing.T) {
	w := newWaiting(t, 16*time.Millisecond)
	w.alarms <- w.time
	if err := w.wait(t.Context(), 1, 0, func() bool { return len(w.set) == 1 }, w.event); err != nil {
		t.Fatal(err)
	}
	for step := uint64(2); step < 4; step++ {
		w.events <- nil
		if err := w.wait(t.Context(), step, 0, never, w.event); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.set) != 1 {
		t.Errorf("alarms after %v, want none but the first", w.set)
	}
	if last := w.last[0]; min(last[0], last[1]) == 0 {
		t.Errorf("last waits %v, want those of the events", last)
	}
}

// Where ends are watched for all the time a caller that gives up does not wait for the end of a long watch.
func TestWatchesEndWithTheContext(t *testing.T) {
	w := newWaiting(t, time.Hour)
	w.always = true
	ctx, cancel := context.WithCancel(t.Context())
	looks := 0
	done := func() bool {
		if looks++; looks == 1000 {
			cancel()
		}
		return false
	}
	if err := w.wait(ctx, 1, 0, done, w.event); !errors.Is(err, errStopped) {
		t.Errorf("wait: %v, want %v", err, errStopped)
	}
	if looks > 1200 {
		t.Errorf("%d looks, want none soon after the context's end", looks)
	}
	w.events <- nil // of the step, which goes on
}

// Steps of one size say nothing about those of another.
func TestKindsAreExpectedApart(t *testing.T) {
	w := newWaiting(t, 16*time.Millisecond)
	w.events <- nil
	if err := w.wait(t.Context(), 1, 1, never, w.event); err != nil {
		t.Fatal(err)
	}
	if w.set != nil || w.last[0] != [2]time.Duration{16 * time.Millisecond, 16 * time.Millisecond} || w.last[1][1] == 0 {
		t.Errorf("alarms %v, last waits %v and %v", w.set, w.last[0], w.last[1])
	}
}

func TestEventsEndWaits(t *testing.T) {
	lost := errors.New("the device is lost")
	for name, tc := range map[string]struct {
		last  time.Duration
		alarm bool
		err   error
	}{
		"after a watch in vain":   {16 * time.Millisecond, true, nil},
		"of a short step":         {time.Millisecond, false, nil},
		"with an error":           {time.Millisecond, false, lost},
		"with an error, watching": {16 * time.Millisecond, true, lost},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaiting(t, tc.last)
			if tc.alarm {
				w.alarms <- w.time
			}
			w.events <- tc.err
			if err := w.wait(t.Context(), 7, 0, never, w.event); !errors.Is(err, tc.err) {
				t.Errorf("wait: %v, want %v", err, tc.err)
			}
		})
	}
}

// A wait that was given up is taken up again, without a second question to the sleeper.
func TestWaitsAreTakenUpAgain(t *testing.T) {
	w := newWaiting(t, 16*time.Millisecond) // no alarm comes
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		if err := w.wait(ctx, 3, 0, never, w.event); !errors.Is(err, errStopped) {
			t.Fatalf("wait with an ended context: %v", err)
		}
	}
	if w.waiter.asked != 3 {
		t.Fatalf("a thread sleeps for step %d, want 3", w.waiter.asked)
	}
	w.events <- nil
	if err := w.wait(t.Context(), 3, 0, never, w.event); err != nil {
		t.Fatal(err)
	}
	if err := w.wait(ctx, 4, 0, after(0), w.event); err != nil {
		t.Errorf("a step that has ended, with an ended context: %v", err)
	}
}

// An error that comes behind a step seen to end is the next wait's: nothing is lost.
func TestOwedErrorsAreReported(t *testing.T) {
	w := newWaiting(t, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.wait(ctx, 1, 0, func() bool { return w.asked == 1 }, w.event); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("the device is lost")
	w.events <- lost
	if err := w.wait(t.Context(), 2, 0, never, w.event); !errors.Is(err, lost) {
		t.Errorf("wait: %v, want %v", err, lost)
	}
}

// Threads that watch and that end events at the same time, for the race detector.
func TestWaitsRace(t *testing.T) {
	w := newWaiter(false)
	defer w.close()
	w.alarm = func(time.Duration) <-chan time.Time {
		c := make(chan time.Time, 1)
		c <- time.Time{}
		return c
	}
	var work pool.Pool
	defer work.Wait()
	for i := range uint64(200) {
		w.last[0] = [2]time.Duration{time.Duration(i%3) * 2 * time.Millisecond, time.Hour}
		end := make(chan struct{})
		done := func() bool {
			select {
			case <-end:
				return i%2 == 0 // of the others the event alone tells
			default:
				return false
			}
		}
		work.Go(func() { close(end) })
		if err := w.wait(t.Context(), i+1, 0, done, func() error { <-end; return nil }); err != nil {
			t.Fatal(err)
		}
	}
}
