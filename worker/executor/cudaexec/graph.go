package cudaexec

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// graphs are a step's kernels, captured once and replayed with a few calls. The layers have a body for each of bodySizes and
// variant of attention, the head one for each of headSizes and kinds. A step takes the smallest that hold it: kernels read
// the real counts on the device, and blocks beyond them do nothing. Addresses and grids are fixed; all that changes from
// step to step is in the descriptor.
type graphs struct {
	bodies [kernels.AttnForms][len(bodySizes)]*body     // nil where no step is
	heads  [headKinds][len(headSizes)]*driver.GraphExec // nil where no step is of the kind
	// nodes counts their kernels, bytes is the device memory that they took.
	nodes int
	bytes int64
}

// body is all layers, in one graph or in two: the device works on the first layers while the host launches the others.
type body struct{ first, rest *driver.GraphExec }

// headStart is how many layers the first graph of a body has. Launching a graph takes the host a third of a microsecond a
// kernel, in which the device has nothing to do; of a large model one layer takes longer than that. Of a small one it does
// not, and the border between two graphs, over which no kernel begins early, costs as much as it saves.
func (e *Executor) headStart() int {
	switch {
	case e.cfg.HeadStart > 0:
		return min(e.cfg.HeadStart, e.model.Layers)
	case e.inOrder():
		return 1
	}
	return e.model.Layers
}

// body returns the graphs for a variant of attention and a number of tokens, or nil.
func (g *graphs) body(form kernels.AttnForm, tokens int) *body {
	for i, size := range bodySizes {
		if tokens <= size {
			return g.bodies[form][i]
		}
	}
	return nil
}

// head returns the graph for a number of sampled positions, or nil.
func (g *graphs) head(samples int, kind headKind) *driver.GraphExec {
	if samples == 0 {
		return nil
	}
	for i, size := range headSizes {
		if samples <= size {
			return g.heads[kind][i]
		}
	}
	return nil
}

// close destroys the graphs. Their runs have ended.
func (g *graphs) close() error {
	var errs []error
	end := func(x *driver.GraphExec) {
		if x != nil {
			errs = append(errs, x.Close())
		}
	}
	for _, form := range g.bodies {
		for _, b := range form {
			if b != nil {
				end(b.first)
				end(b.rest)
			}
		}
	}
	for _, kind := range g.heads {
		for _, x := range kind {
			end(x)
		}
	}
	*g = graphs{}
	return errors.Join(errs...)
}

// attentionBlocks is the number of blocks of attention for each key head, for which steps are planned and which graphs have:
// as many as run at once.
func (e *Executor) attentionBlocks(form kernels.AttnForm) int {
	return min(e.set.Dims.AttnSlots(form), e.desc.layout.maxItems)
}

// capture records all graphs and moves them to the device, largest first, so that memory that one leaves serves the next.
func (e *Executor) capture(ctx context.Context) error {
	for i := len(bodySizes) - 1; i >= 0; i-- {
		size := bodySizes[i]
		if i > 0 && bodySizes[i-1] >= e.cfg.MaxTokens {
			continue // no step needs it
		}
		for form := range kernels.AttnForms {
			if form == kernels.AttnWide && size <= kernels.NarrowTokens {
				continue
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			e.graphs.bodies[form][i] = new(body)
			if err := e.captureBody(e.graphs.bodies[form][i], form, size); err != nil {
				return fmt.Errorf("graph of %d tokens: %w", size, err)
			}
		}
	}
	for i := len(headSizes) - 1; i >= 0; i-- {
		size := headSizes[i]
		if i > 0 && headSizes[i-1] >= e.cfg.MaxTokens {
			continue
		}
		for kind := range e.graphs.heads {
			if headKind(kind)&scoredHead != 0 && len(e.w.nets) == 0 {
				continue
			}
			var err error
			if e.graphs.heads[kind][i], err = e.record(func(q *queue) { q.headBlock(0, size, headKind(kind), true) }); err != nil {
				return fmt.Errorf("graph of %d sampled positions: %w", size, err)
			}
		}
	}
	return e.stream.Synchronize()
}

// captureBody records the layers for a number of tokens.
func (e *Executor) captureBody(b *body, form kernels.AttnForm, size int) (err error) {
	layers, start := len(e.w.layers), e.headStart()
	sized := func(q *queue) { q.tokens, q.form, q.items = size, form, e.attentionBlocks(form) }
	if b.first, err = e.record(func(q *queue) {
		sized(q)
		q.begin()
		q.layers(0, start)
	}); err != nil || start == layers {
		return err
	}
	b.rest, err = e.record(func(q *queue) {
		sized(q)
		q.layers(start, layers)
	})
	return err
}

// record captures what f enqueues. Products run once before, on a step of no tokens, because libraries load their kernels
// at the first call.
func (e *Executor) record(f func(*queue)) (_ *driver.GraphExec, err error) {
	warm := queue{e: e, only: partProducts | partHeadProduct}
	f(&warm)
	if warm.err != nil {
		return nil, warm.err
	}
	var graph *driver.Graph
	launches, err := e.tracer.capture(func() (err error) {
		graph, err = e.stream.Record(driver.CaptureRelaxed, func() error {
			q := queue{e: e}
			f(&q)
			if q.err != nil {
				return q.err
			}
			return nil
		})
		return err
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = joinClose(err, graph.Close) }()
	nodes, err := graph.Nodes()
	if err != nil {
		return nil, err
	}
	x, err := graph.Instantiate()
	if err != nil {
		return nil, err
	}
	if err = x.Upload(e.stream); err != nil { // else the first launch does it, and takes memory then
		return nil, joinClose(err, x.Close)
	}
	e.graphs.nodes += nodes
	e.tracer.remember(x, launches)
	return x, nil
}
