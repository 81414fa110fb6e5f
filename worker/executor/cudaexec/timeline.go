package cudaexec

import (
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec/timeline"
)

// ErrNoTimeline says that a timeline was asked of an executor without Config.Timeline, or at a wrong time.
var ErrNoTimeline = errors.New("cudaexec: no timeline")

// tracer knows the launches of steps by operation, in their order, while the kernels note when their blocks run. Graphs are
// remembered as they are captured. A nil tracer notes nothing.
type tracer struct {
	stamps *kernels.Timeline
	// on says that launches are noted; then list has those with a name, pending those of the operation that is being enqueued.
	on            bool
	pending, list []timeline.Launch
	graphs        map[*driver.GraphExec][]timeline.Launch
}

// newTracer makes a tracer, if the configuration wants one.
func newTracer(c *Config, d *Device) *tracer {
	if !c.Timeline {
		return nil
	}
	t := &tracer{graphs: map[*driver.GraphExec][]timeline.Launch{}}
	t.stamps = kernels.NewTimeline(d.ctx, t.launched)
	return t
}

// timed is the kernels' side of the tracer.
func (t *tracer) timed() *kernels.Timeline {
	if t == nil {
		return nil
	}
	return t.stamps
}

// launched notes a kernel, whose name comes later.
func (t *tracer) launched(module, blocks int) {
	if t.on {
		t.pending = append(t.pending, timeline.Launch{Module: module, Kernel: t.stamps.Kernel(module), Blocks: blocks})
	}
}

// library notes kernels that leave no stamps.
func (t *tracer) library() {
	if t != nil && t.on {
		t.pending = append(t.pending, timeline.Launch{Module: timeline.Library})
	}
}

// named says what the operation was that has just been enqueued.
func (t *tracer) named(op string, layer int) {
	if t == nil {
		return
	}
	for _, l := range t.pending {
		l.Op, l.Layer = op, layer
		t.list = append(t.list, l)
	}
	t.pending = t.pending[:0]
}

// capture notes the launches that f captures, apart from those of steps.
func (t *tracer) capture(f func() error) (list []timeline.Launch, err error) {
	if t == nil {
		return nil, f()
	}
	on, before := t.on, t.list
	t.on, t.list = true, nil
	err = f()
	list = t.list
	t.on, t.list, t.pending = on, before, t.pending[:0]
	return list, err
}

// remember keeps the launches of a graph.
func (t *tracer) remember(x *driver.GraphExec, list []timeline.Launch) {
	if t != nil {
		t.graphs[x] = list
	}
}

// replayed notes the launches of a graph.
func (t *tracer) replayed(x *driver.GraphExec) {
	if t != nil && t.on {
		t.list = append(t.list, t.graphs[x]...)
	}
}

// StartTimeline forgets what blocks have noted. The steps from here to Timeline are those that it tells of. No step may be in
// flight. The error is ErrNoTimeline without Config.Timeline, or the device's.
func (e *Executor) StartTimeline() error {
	t, err := e.timelined()
	if err != nil {
		return err
	}
	if err := errors.Join(t.stamps.Reset(e.stream), e.stream.Synchronize()); err != nil {
		return e.fail(fmt.Errorf("start timeline: %w", err))
	}
	t.on, t.list, t.pending = true, nil, nil
	return nil
}

// Timeline tells where the time of the steps since StartTimeline went. No step may be in flight. The error is ErrNoTimeline,
// timeline.ErrStamps or the device's.
func (e *Executor) Timeline() (*timeline.Step, error) {
	t, err := e.timelined()
	if err != nil {
		return nil, err
	}
	if !t.on || len(t.list) == 0 {
		return nil, fmt.Errorf("%w: no step since its start", ErrNoTimeline)
	}
	t.on = false
	// Results are published before the last kernel ends.
	if err := e.stream.Synchronize(); err != nil {
		return nil, e.fail(fmt.Errorf("timeline: %w", err))
	}
	var modules []timeline.Module
	for _, l := range t.list {
		for l.Module >= len(modules) {
			modules = append(modules, timeline.Module{})
		}
		if l.Module == timeline.Library || modules[l.Module].Stamps != nil {
			continue
		}
		m := &modules[l.Module]
		if m.Stamps, m.Blocks, err = t.stamps.Read(l.Module); err != nil {
			return nil, e.fail(fmt.Errorf("timeline: %w", err))
		}
	}
	return timeline.Cut(t.list, modules)
}

// timelined returns the tracer if it can be used now.
func (e *Executor) timelined() (*tracer, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	if e.tracer == nil {
		return nil, fmt.Errorf("%w: the kernels were not compiled for it", ErrNoTimeline)
	}
	if e.inFlight > 0 {
		return nil, fmt.Errorf("%w: %d steps are in flight", ErrNoTimeline, e.inFlight)
	}
	return e.tracer, nil
}
