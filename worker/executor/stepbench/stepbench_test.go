package stepbench

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// shapeOf returns a model of the catalogue.
func shapeOf(t *testing.T, name string) model.Config {
	t.Helper()
	all, err := catalogue.Default()
	if err != nil {
		t.Fatal(err)
	}
	entry, err := all.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.ParseConfig(entry.Config)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// The floors of the design's table for one H200 at a context of 1k.
func TestFloor(t *testing.T) {
	for _, c := range []struct {
		model string
		rows  int
		ms    float64
	}{
		{"qwen3-0.6b", 1, 0.30}, {"qwen3-0.6b", 8, 0.50}, {"qwen3-0.6b", 64, 2.03}, {"qwen3-8b", 1, 3.56}, {"qwen3-8b", 64, 5.77},
		{"qwen3-32b", 1, 14.94}, {"qwen3-32b", 16, 15.88},
	} {
		m := shapeOf(t, c.model)
		floor, memory := StepWork(&m, c.rows, 1, 1024).Floor(H200())
		if got := ms(floor); math.Abs(got-c.ms) > 0.01*c.ms+0.005 || !memory {
			t.Errorf("%s at %d rows: floor %.3f ms (memory %v), want %.2f", c.model, c.rows, got, memory, c.ms)
		}
	}
	m := shapeOf(t, "qwen3-8b")
	if floor, memory := StepWork(&m, 1, 4096, 0).Floor(H200()); memory || ms(floor) < 78 || ms(floor) > 90 {
		t.Errorf("a prefill of 4,096 tokens has a floor of %v (memory %v)", floor, memory)
	}
}

func TestRun(t *testing.T) {
	m := shapeOf(t, "qwen3-0.6b")
	e := fakeExecutor(t)
	cfg := Config{Shapes: []Shape{{2, 1}, {1, 3}, {0, 30}, {3, 1}}, Context: 20, Rounds: 5, Machine: H200(), Phases: true}
	lines, err := Run(t.Context(), e, &m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct {
		kind         string
		rows, tokens int
	}{{"decode", 2, 1}, {"extend", 1, 3}, {"prefill", 1, 30}, {"decode", 3, 1}} {
		l := lines[i]
		if l.Kind != want.kind || l.Rows != want.rows || l.Tokens != want.tokens || l.Fastest > l.Median || l.Median > l.Slowest || l.Floor <= 0 {
			t.Errorf("line %d is %+v", i, l)
		}
	}
	if n := e.Stats().OpenSlots; n != 0 {
		t.Errorf("%d slots stayed open", n)
	}
	for _, l := range lines {
		if host := l.Gap > 0 && l.GapP99 >= l.Gap; host != (l.Kind != "prefill") {
			t.Errorf("a %s with a gap of %v us, p99 %v us", l.Kind, l.Gap, l.GapP99)
		}
	}
}

// After each shape one more step of it can be run.
func TestAfter(t *testing.T) {
	m := shapeOf(t, "qwen3-0.6b")
	e := fakeExecutor(t)
	cfg := Config{Shapes: []Shape{{2, 1}, {1, 3}, {0, 30}, {3, 1}}, Context: 20, Rounds: 5}
	steps := map[string]uint64{}
	cfg.After = func(_ context.Context, l *Line, again func() error) error {
		before := e.Stats()
		if err := again(); err != nil {
			return err
		}
		after := e.Stats()
		if after.Tokens-before.Tokens != uint64(l.Rows*l.Tokens) {
			t.Errorf("again a %s ran %d tokens", l.Kind, after.Tokens-before.Tokens)
		}
		steps[l.Kind] += after.Steps - before.Steps
		return nil
	}
	if again, err := Run(t.Context(), e, &m, cfg); err != nil || len(again) != len(cfg.Shapes) {
		t.Errorf("%d lines, %v", len(again), err)
	}
	if steps["decode"] != 2 || steps["extend"] != 1 || steps["prefill"] != 1 {
		t.Errorf("steps once more: %v", steps)
	}
	refused := errors.New("refused")
	cfg.After = func(context.Context, *Line, func() error) error { return refused }
	if _, err := Run(t.Context(), fakeExecutor(t), &m, cfg); !errors.Is(err, refused) {
		t.Errorf("error %v, want that of After", err)
	}
}

// With steps launched ahead the gap is what a launch comes too late.
func TestGap(t *testing.T) {
	b := &bench{}
	at := time.Unix(9, 0)
	b.gap(at, at.Add(7*time.Microsecond))
	b.gap(at, at.Add(-time.Millisecond))
	if want := []time.Duration{7 * time.Microsecond, 0}; !slices.Equal(b.gaps, want) {
		t.Errorf("gaps %v, want %v", b.gaps, want)
	}
}

func TestRunRefuses(t *testing.T) {
	m := shapeOf(t, "qwen3-0.6b")
	e := fakeExecutor(t)
	good := Config{Shapes: []Shape{{1, 1}}, Context: 20, Rounds: 5}
	for name, change := range map[string]func(*Config){
		"rounds": func(c *Config) { c.Rounds = 4 }, "context": func(c *Config) { c.Context = 0 }, "shapes": func(c *Config) { c.Shapes = nil },
		"rows": func(c *Config) { c.Shapes = []Shape{{1000, 1}} }, "tokens": func(c *Config) { c.Shapes = []Shape{{1, 0}} },
		"positions": func(c *Config) { c.Context = 1 << 30 }, "ahead": func(c *Config) { c.Ahead = true },
	} {
		c := good
		change(&c)
		if _, err := Run(t.Context(), e, &m, c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: error %v, want ErrConfig", name, err)
		}
	}
}

func fakeExecutor(t *testing.T) *fakeexec.Executor {
	t.Helper()
	e, err := fakeexec.New(fakeexec.Default())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return e
}
