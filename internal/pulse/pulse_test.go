package pulse_test

import (
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/pulse"
)

var cfg = pulse.Config{Every: 100 * time.Millisecond, Tick: 50 * time.Millisecond, Limit: 450 * time.Millisecond, Most: time.Second}

// clock drives a Watch by a script: signs and ticks at times in milliseconds.
type clock struct {
	w     *pulse.Watch
	start time.Time
}

func begin() *clock {
	c := &clock{start: time.Unix(1000, 0)}
	c.w = pulse.New(cfg, c.start)
	return c
}

func (c *clock) at(ms int) time.Time { return c.start.Add(time.Duration(ms) * time.Millisecond) }

// run ticks every 50 ms from one time to another, with a sign every 100 ms up to heard,
// and returns when the other side was first found silent, or 0.
func (c *clock) run(from, to, heard int) int {
	for ms := from; ms <= to; ms += 50 {
		if ms%100 == 0 && ms <= heard {
			c.w.Heard(c.at(ms))
		}
		if c.w.Tick(c.at(ms)) {
			return ms
		}
	}
	return 0
}

// A process that dies is found out at the first tick after the limit.
func TestSilence(t *testing.T) {
	c := begin()
	if ms := c.run(50, 10000, 5000); ms != 5500 {
		t.Errorf("found silent at %d ms, want 5500", ms)
	}
}

// A pause that is shorter than the limit is no silence, again and again, and makes the
// next one be borne longer.
func TestPause(t *testing.T) {
	c := begin()
	for round := range 100 {
		from := round * 1000
		if ms := c.run(from+50, from+1000, from+600); ms != 0 {
			t.Fatalf("found silent at %d ms, round %d", ms, round)
		}
	}
	if b := c.w.Bears(); b < cfg.Limit+400*time.Millisecond || b > cfg.Limit+2*cfg.Most {
		t.Errorf("after pauses of 400 ms %v are borne", b)
	}
	// They are forgotten.
	if ms := c.run(100050, 200000, 160000); ms < 160450 || ms > 160550 {
		t.Errorf("found silent at %d ms", ms)
	}
}

// The time in which the owner does not run counts for nobody.
func TestOwnPause(t *testing.T) {
	for _, pause := range []int{300, 1000, 30000} {
		c := begin()
		if c.run(50, 1000, 1000) != 0 {
			t.Fatal("silent from the start")
		}
		// The other side's signs are there, but the tick comes first.
		if c.w.Tick(c.at(1000 + pause)) {
			t.Errorf("found silent after an own pause of %d ms", pause)
		}
		c.w.Heard(c.at(1001 + pause))
		if ms := c.run(1050+pause, 3000+pause, 3000+pause); ms != 0 {
			t.Errorf("found silent at %d ms", ms)
		}
	}
}

// The owner that is late itself bears more, up to a bound.
func TestBusyOwner(t *testing.T) {
	c := begin()
	for ms := 0; ms < 60000; ms += 400 {
		c.w.Heard(c.at(ms))
		c.w.Tick(c.at(ms))
	}
	if b := c.w.Bears(); b < cfg.Limit+250*time.Millisecond {
		t.Errorf("%v are borne", b)
	}
	c.w.Tick(c.at(1000000))
	if b := c.w.Bears(); b > cfg.Limit+2*cfg.Most {
		t.Errorf("%v are borne", b)
	}
}

// Time that goes back does no harm.
func TestBackwards(t *testing.T) {
	c := begin()
	c.w.Heard(c.at(1000))
	if c.w.Tick(c.at(500)) || c.w.Tick(c.at(1100)) {
		t.Error("found silent")
	}
	c.w.Excuse(c.at(2000))
	c.w.Excuse(c.at(1500))
	if c.w.Tick(c.at(2050)) {
		t.Error("found silent after an excuse")
	}
}
