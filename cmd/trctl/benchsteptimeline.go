package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/internal/wholefile"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec/timeline"
	"github.com/tokenrouter/tokenrouter/worker/executor/stepbench"
)

const (
	// timelineSteps are the steps of each kind that tables add up; the trace has the one of median length.
	timelineSteps = 5
	// traceBlocks bounds the blocks in a trace, about 130 bytes each.
	traceBlocks = 80_000
)

// traced is an executor that can tell where the time of a step goes on its device.
type traced interface {
	StartTimeline() error
	Timeline() (*timeline.Step, error)
}

// stepTimelines collects timelines of the measured steps.
type stepTimelines struct {
	e      traced
	blocks int // of a trace's step
	tables []timeline.Table
	trace  []timeline.Named
}

// timelines prepares for --timeline; it is nil without. The file is written once here, so that one that cannot be is found
// before the measurement.
func (c *benchStepCmd) timelines(e executor.Executor) (*stepTimelines, error) {
	if c.Timeline == "" {
		return nil, nil
	}
	t, ok := e.(traced)
	if !ok {
		return nil, usagef("--timeline: %s has none; it needs a GPU", e.Info().Device)
	}
	out := &stepTimelines{e: t}
	if c.TimelineBlocks {
		out.blocks = traceBlocks / len(c.shapes())
	}
	return out, out.write(c.Timeline)
}

// checkTimeline refuses flags that do not go together.
func (c *benchStepCmd) checkTimeline() error {
	switch {
	case c.Timeline == "" && c.TimelineBlocks:
		return usagef("--timeline-blocks needs --timeline FILE")
	case c.Timeline != "" && c.Device == "cpu":
		return usagef("--timeline needs a GPU, not --device cpu")
	}
	return nil
}

// after runs some more steps of a shape, each after one that is not looked at, and notes their timelines.
func (t *stepTimelines) after(ctx context.Context, line *stepbench.Line, again func() error) error {
	var steps []*timeline.Step
	for range timelineSteps {
		if err := errors.Join(ctx.Err(), again()); err != nil {
			return err
		}
		if err := t.e.StartTimeline(); err != nil {
			return err
		}
		if err := again(); err != nil {
			return err
		}
		s, err := t.e.Timeline()
		if err != nil {
			return err
		}
		steps = append(steps, s)
	}
	title := titleOf(line)
	t.tables = append(t.tables, timeline.Summarize(title, steps))
	slices.SortStableFunc(steps, func(a, b *timeline.Step) int { return cmp.Compare(a.Length, b.Length) })
	shown := steps[len(steps)/2]
	if t.blocks == 0 { // the stamps of others need not be kept
		for i := range shown.Spans {
			shown.Spans[i].Stamps = nil
		}
	}
	t.trace = append(t.trace, timeline.Named{Name: title, Step: shown})
	return nil
}

// titleOf says what steps a line is of.
func titleOf(l *stepbench.Line) string {
	switch {
	case l.Kind == "prefill":
		return fmt.Sprintf("prefill, %d tokens", l.Tokens)
	case l.Tokens == 1:
		return fmt.Sprintf("decode, rows %d, context %d", l.Rows, l.Context)
	}
	return fmt.Sprintf("%s, rows %d of %d tokens, context %d", l.Kind, l.Rows, l.Tokens, l.Context)
}

// write replaces the trace's file.
func (t *stepTimelines) write(path string) error {
	var b bytes.Buffer
	if err := timeline.WriteTrace(&b, t.trace, t.blocks); err != nil {
		return err
	}
	if err := wholefile.Write(path, b.Bytes(), 0o644); err != nil {
		return fmt.Errorf("--timeline: %w", err)
	}
	return nil
}
