package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec/timeline"
	"github.com/tokenrouter/tokenrouter/worker/executor/fakeexec"
	"github.com/tokenrouter/tokenrouter/worker/executor/stepbench"
)

// timedFake is an executor whose steps took 10, 20, … microseconds on its device.
type timedFake struct {
	*fakeexec.Executor
	started bool
	steps   uint64
	n       int
	err     error
}

func (f *timedFake) StartTimeline() error {
	f.started, f.steps = true, f.Stats().Steps
	return f.err
}

func (f *timedFake) Timeline() (*timeline.Step, error) {
	if ran := f.Stats().Steps - f.steps; !f.started || ran != 1 {
		return nil, errors.New("not one step since the start")
	}
	f.started = false
	f.n++
	long := uint64(f.n) * 10_000
	stamp := kernels.BlockStamp{Began: 5000, Ended: 5000 + long, Waited: 1000, Blocks: 1}
	return timeline.Cut([]timeline.Launch{{Op: "embed", Layer: -1, Kernel: "embed", Blocks: 1}}, []timeline.Module{{Stamps: []kernels.BlockStamp{stamp}, Blocks: 1}})
}

func newTimedFake(t *testing.T) *timedFake {
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
	return &timedFake{Executor: e}
}

// measureTimed is a bench-step with --timeline of two kinds of steps.
func measureTimed(t *testing.T, e *timedFake, file string, blocks bool) ([]timeline.Table, error) {
	t.Helper()
	c := &benchStepCmd{Model: "tiny-s", B: []int{2}, Extend: []int{3}, Ctx: 20, Rounds: 5, Timeline: file, TimelineBlocks: blocks}
	m, err := c.open()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	}()
	_, tables, err := c.measure(t.Context(), e, m, stepbench.Config{Context: c.Ctx, Rounds: c.Rounds, Shapes: c.shapes()})
	return tables, err
}

func TestTimelineOfSteps(t *testing.T) {
	for _, blocks := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "t.json")
		tables, err := measureTimed(t, newTimedFake(t), file, blocks)
		if err != nil {
			t.Fatal(err)
		}
		if len(tables) != 2 || tables[0].Steps != 5 || tables[0].StepUS != 30 || tables[1].StepUS != 80 || tables[0].GapUS != 1 {
			t.Errorf("tables %+v", tables)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var trace struct {
			TraceEvents []struct {
				Name string
				Ph   string
				Dur  float64
				Pid  int
				Args map[string]any
			}
		}
		if err := json.Unmarshal(text, &trace); err != nil {
			t.Fatal(err)
		}
		var names []string
		var work []float64
		rows := 0
		for _, e := range trace.TraceEvents {
			switch {
			case e.Name == "process_name":
				names = append(names, e.Args["name"].(string))
			case e.Name == "embed" && e.Pid%2 == 0:
				work = append(work, e.Dur)
			case e.Name == "embed":
				rows++
			}
		}
		want, wantRows := "decode, rows 2, context 20|extend, rows 2 of 3 tokens, context 20", 0
		if blocks {
			want = "decode, rows 2, context 20|decode, rows 2, context 20, multiprocessors|extend, rows 2 of 3 tokens, context 20|" +
				"extend, rows 2 of 3 tokens, context 20, multiprocessors"
			wantRows = 2
		}
		if got := strings.Join(names, "|"); got != want || rows != wantRows {
			t.Errorf("processes %s, %d blocks", got, rows)
		}
		if len(work) != 2 || work[0] != 29 || work[1] != 79 { // of the steps of median length
			t.Errorf("work %v", work)
		}
		var out bytes.Buffer
		r := stepReport{Model: "tiny-s", Timelines: tables}
		if err := r.write(&out); err != nil || strings.Count(out.String(), "timeline of ") != 2 {
			t.Errorf("%v\n%s", err, out.String())
		}
	}
}

func TestTimelineFailures(t *testing.T) {
	dir := t.TempDir()
	e := newTimedFake(t)
	before := e.Stats().Steps
	if _, err := measureTimed(t, e, filepath.Join(dir, "none", "t.json"), false); err == nil || !strings.Contains(err.Error(), "--timeline") || e.Stats().Steps != before {
		t.Errorf("a file in no directory: error %v after %d steps", err, e.Stats().Steps-before)
	}
	if _, err := measureTimed(t, e, dir, false); err == nil {
		t.Error("a directory was replaced")
	}
	e.err = errors.New("device gone")
	if _, err := measureTimed(t, e, filepath.Join(dir, "t.json"), false); !errors.Is(err, e.err) {
		t.Errorf("error %v", err)
	}
	c := &benchStepCmd{Timeline: "t.json"}
	var usage *usageError
	if _, err := c.timelines(e.Executor); !errors.As(err, &usage) {
		t.Errorf("an executor without timelines: error %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	late := &stepTimelines{e: e}
	if err := late.after(ctx, &stepbench.Line{}, func() error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after a cancelled context", err)
	}
}
