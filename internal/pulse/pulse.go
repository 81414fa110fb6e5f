package pulse

import (
	"math"
	"time"
)

// forgetting is the time in which what was seen of lateness falls to a half.
const forgetting = 5 * time.Second

// Config says how often signs are expected and how much silence is borne.
type Config struct {
	// Every is the interval of the signs. Tick is that of the owner's calls of Tick.
	Every, Tick time.Duration
	// Limit is the silence that is borne of a process which is never late.
	Limit time.Duration
	// Most bounds the lateness that is remembered: the silence that is borne is at most
	// Limit + 2·Most.
	Most time.Duration
}

// Watch watches over one process. It is not safe for concurrent use.
type Watch struct {
	cfg    Config
	heard  time.Time // when the last sign came, moved on by the time in which we did not run
	ticked time.Time
	// late is the lateness seen lately.
	late time.Duration
}

// New returns a Watch that begins at now, as if a sign had just come.
func New(cfg Config, now time.Time) *Watch { return &Watch{cfg: cfg, heard: now, ticked: now} }

// Begin starts anew, with what was seen of lateness: nobody has ticked for a while.
func (w *Watch) Begin(now time.Time) { w.heard, w.ticked = now, now }

// Heard notes a sign of life. Signs may come more often than every interval.
func (w *Watch) Heard(now time.Time) {
	w.note(now.Sub(w.heard) - w.cfg.Every)
	w.heard = latest(w.heard, now)
}

// Excuse says that nothing is held against the other side up to now: nobody listened.
func (w *Watch) Excuse(now time.Time) { w.heard = latest(w.heard, now) }

// Tick is called at the interval Config.Tick, and reports whether the other side has been
// silent for longer than is borne.
func (w *Watch) Tick(now time.Time) (silent bool) {
	passed := now.Sub(w.ticked)
	if lost := passed - w.cfg.Tick; lost > w.cfg.Tick {
		w.note(lost / 2)
		if w.heard = w.heard.Add(lost); w.heard.After(now) {
			w.heard = now
		}
	}
	w.ticked = latest(w.ticked, now)
	w.forget(passed)
	return now.Sub(w.heard) > w.Bears()
}

// Bears is the silence that is borne at the moment.
func (w *Watch) Bears() time.Duration { return w.cfg.Limit + w.Slack() }

// Slack is by how much waits for the other side are to be longer than for one that is
// never late.
func (w *Watch) Slack() time.Duration { return 2 * w.late }

func (w *Watch) note(late time.Duration) {
	w.late = max(w.late, min(late, w.cfg.Most))
}

// forget lets what was seen of lateness fade.
func (w *Watch) forget(passed time.Duration) {
	w.late = time.Duration(float64(w.late) * math.Exp2(-float64(max(0, passed))/float64(forgetting)))
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
