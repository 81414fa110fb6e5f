package cudaexec

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// phaseNames are the parts of a step as Phases reports them.
var phaseNames = []struct {
	part part
	name string
}{
	{partProducts, "products"}, {partAttention, "attention"}, {partRest, "rest"}, {partHeadProduct, "head product"}, {partHead, "head rest"},
}

// Phases times the parts of the last step on the device, each repeated alone in a graph: the matrix products of the layers,
// attention with rotation, norms and the rest, the head's product, and sampling. The parts overlap a little less than in
// a real step. No step may be in flight, and the last step must have sampled; what it published stays as it was.
func (e *Executor) Phases(ctx context.Context) (map[string]time.Duration, error) {
	if err := e.usable(); err != nil {
		return nil, err
	}
	if e.inFlight > 0 || e.ticket == 0 {
		return nil, fmt.Errorf("cudaexec: phases: %d steps are in flight after %d", e.inFlight, e.ticket)
	}
	f := &e.flights[int(e.ticket-1)%len(e.flights)]
	out := map[string]time.Duration{}
	for _, p := range phaseNames {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		d, err := e.timePart(f, p.part)
		if err != nil {
			return nil, e.fail(fmt.Errorf("phase %s: %w", p.name, err))
		}
		out[p.name] = d
	}
	return out, nil
}

// timePart is the median of several runs of a part.
func (e *Executor) timePart(f *flight, p part) (_ time.Duration, err error) {
	tokens, samples, items := int(f.entry.head.Tokens), len(f.picks), len(e.attn.Items)
	if tokens <= bodySizes[len(bodySizes)-1] {
		tokens = paddedTokens(tokens)
		items = e.attentionBlocks(e.attn.Form)
	}
	graph, err := e.stream.Capture(driver.CaptureRelaxed, func() error {
		q := queue{e: e, tokens: tokens, form: e.attn.Form, items: items, only: p}
		q.body()
		q.output(samples, f.kind())
		if q.err != nil {
			return q.err
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = joinClose(err, graph.Close) }()
	var marks [2]*driver.Event
	for i := range marks {
		if marks[i], err = e.device.ctx.NewEvent(driver.EventOptions{Timing: true}); err != nil {
			return 0, err
		}
		defer func() { err = joinClose(err, marks[i].Close) }()
	}
	var times []time.Duration
	for range 9 {
		for _, do := range []func() error{
			func() error { return marks[0].Record(e.stream) }, func() error { return graph.Launch(e.stream) },
			func() error { return marks[1].Record(e.stream) }, marks[1].Wait,
		} {
			if err := do(); err != nil {
				return 0, err
			}
		}
		d, err := marks[1].Since(marks[0])
		if err != nil {
			return 0, err
		}
		times = append(times, d)
	}
	slices.Sort(times)
	return times[len(times)/2], nil
}
