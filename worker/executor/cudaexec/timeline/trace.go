package timeline

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// Named is a step with the name that a trace gives it.
type Named struct {
	Name string
	*Step
}

// event is one of the Chrome trace format; times are microseconds.
type event struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"`
	At       float64        `json:"ts"`
	Duration *float64       `json:"dur,omitempty"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Args     map[string]any `json:"args,omitempty"`
}

// trace writes events. The first error sticks.
type trace struct {
	w    *bufio.Writer
	some bool
	err  error
}

// WriteTrace writes steps as a Chrome trace, which Perfetto reads too: a process for each step, all from the time 0, with a row for each
// operation; and for each of the first blocks blocks of a step, a part of another process with rows for each multiprocessor.
func WriteTrace(w io.Writer, steps []Named, blocks int) error {
	t := &trace{w: bufio.NewWriter(w)}
	t.text("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n")
	for i, s := range steps {
		t.step(2*i, s)
		if blocks > 0 {
			t.multiprocessors(2*i+1, s, blocks)
		}
	}
	t.text("\n]}\n")
	if t.err == nil {
		t.err = t.w.Flush()
	}
	return t.err
}

func (t *trace) text(s string) {
	if t.err == nil {
		_, t.err = t.w.WriteString(s)
	}
}

func (t *trace) put(e event) {
	b, err := json.Marshal(e)
	if t.err == nil {
		t.err = err
	}
	if t.some {
		t.text(",\n")
	}
	t.some = true
	t.text(string(b))
}

// name names a process, or one of its rows.
func (t *trace) name(what string, process, thread int, name string) {
	t.put(event{Name: what, Phase: "M", Process: process, Thread: thread, Args: map[string]any{"name": name}})
}

// slice is something that lasts.
func (t *trace) slice(name string, process, thread int, from, to time.Duration, args map[string]any) {
	long := us(to - from)
	t.put(event{Name: name, Phase: "X", At: us(from), Duration: &long, Process: process, Thread: thread, Args: args})
}

// step writes the launches of a step.
func (t *trace) step(process int, s Named) {
	t.name("process_name", process, 0, s.Name)
	rows := map[string]int{}
	until := map[int]time.Duration{} // what is on a row may not overlap
	for i := range s.Spans {
		sp := &s.Spans[i]
		name := sp.name()
		row, ok := rows[name]
		if !ok {
			row = len(rows)
			rows[name] = row
			t.name("thread_name", process, row, name)
		}
		args := map[string]any{"gap_us": us(sp.Gap), "number": i}
		if sp.Layer >= 0 {
			args["layer"] = sp.Layer
		}
		if sp.Module != Library {
			args["kernel"], args["blocks"], args["sms"] = sp.Kernel, sp.Blocks, sp.SMs
		}
		if from := max(sp.Began, until[row]); from < sp.Ready {
			t.slice("waits", process, row, from, sp.Ready, nil)
		}
		until[row] = sp.Ended
		t.slice(name, process, row, sp.Ready, sp.Ended, args)
	}
}

// lanes is how many rows a multiprocessor has: as many as blocks that it can hold.
const lanes = 32

// multiprocessors writes the first blocks of a step by where they ran. Blocks that are on a multiprocessor at a time have rows of their
// own.
func (t *trace) multiprocessors(process int, s Named, blocks int) {
	type part struct {
		kernels.BlockStamp
		span *Span
	}
	var all []part
	for i := range s.Spans {
		for _, b := range s.Spans[i].Stamps {
			all = append(all, part{b, &s.Spans[i]})
		}
	}
	slices.SortStableFunc(all, func(a, b part) int { return cmp.Or(cmp.Compare(a.Began, b.Began), cmp.Compare(a.SM, b.SM)) })
	name := s.Name + ", multiprocessors"
	if len(all) > blocks {
		name += fmt.Sprintf(", the first %d of %d blocks", blocks, len(all))
		all = all[:blocks]
	}
	t.name("process_name", process, 0, name)
	busy := map[int]uint64{} // until when a row is
	for _, b := range all {
		row := int(b.SM) * lanes
		for ; busy[row] > b.Began && row%lanes < lanes-1; row++ {
		}
		if _, ok := busy[row]; !ok {
			t.name("thread_name", process, row, fmt.Sprintf("SM %d", b.SM))
		}
		busy[row] = max(busy[row], b.Ended)
		from := time.Duration(b.Began - s.Began)
		args := map[string]any{"block": b.Block, "waited_us": float64(b.Waited) / 1e3, "layer": b.span.Layer}
		t.slice(b.span.Op, process, row, from, time.Duration(b.Ended-s.Began), args)
	}
}
