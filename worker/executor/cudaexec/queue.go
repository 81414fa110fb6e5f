package cudaexec

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// queue enqueues one step's operations. The first error sticks and names its operation; nothing is enqueued after it.
type queue struct {
	e *Executor
	// tokens and items are what the grids are made for; kernels find the real numbers on the device.
	tokens, items int
	form          kernels.AttnForm
	block         bool // wait after each operation, so that its errors are its own
	only          part // 0 for all parts
	// late is set for a product whose successor uses, before its own wait, what kernels before the product wrote.
	late bool
	// claims is the counter that the next product takes: they take turns, since a product may claim tiles before the ones ahead have ended.
	claims int
	err    *StepError
}

// has reports whether operations of a part are enqueued.
func (q *queue) has(p part) bool { return q.err == nil && (q.only == 0 || q.only&p != 0) }

// op notes the outcome of an operation, and waits for it when errors must name their operation.
func (q *queue) op(name string, layer int, err error) {
	if q.err == nil && err == nil && q.block {
		err = q.e.stream.Synchronize()
	}
	if q.err == nil && err != nil {
		q.err = &StepError{Op: name, Layer: layer, Err: err}
	}
	q.e.tracer.named(name, layer)
}

// replay launches a graph. Which of its operations has failed is not known.
func (q *queue) replay(x *driver.GraphExec) {
	q.op("", -1, x.Launch(q.e.stream))
	q.e.tracer.replayed(x)
}

// flag is a condition as kernels read it.
func flag(on bool) int32 {
	if on {
		return 1
	}
	return 0
}

func ptr(v tensor.View) driver.Ptr { return driver.Ptr(v.Ptr) }

// poison fills the activations with NaN, if that is asked for.
func (q *queue) poison() {
	if !q.e.cfg.Poison {
		return
	}
	for _, v := range q.e.b.activations() {
		n, err := v.Bytes()
		q.op("poison", -1, errors.Join(err, q.e.stream.Set8(ptr(v), 0xff, n)))
	}
}

// begin enqueues what comes before the layers.
func (q *queue) begin() {
	e, l := q.e, &q.e.desc.layout
	if q.only == 0 {
		q.op("prep", -1, e.launch.Prep(e.stream, &kernels.PrepParams{
			In: e.desc.mem.Device(), Out: ptr(e.b.desc), Table: ptr(e.b.table), Slots: ptr(e.b.slots), Turn: ptr(e.b.arrived) + 4,
			Last: ptr(e.b.last), IDsAt: int32(l.ids), SourceAt: int32(l.source), PosAt: int32(l.pos), OwnerAt: int32(l.owner),
			PatchesAt: int32(l.patches), ItemsAt: int32(l.items), SamplesAt: int32(l.samples),
			MaxPages: int32(e.b.table.Shape.Dim(1)), PageSize: int32(e.cfg.PageSize), EntryBytes: int32(l.bytes), Ring: int32(e.cfg.Depth),
		}))
	}
	if q.has(partRest) {
		q.op("embed", -1, e.launch.Embed(e.stream, &kernels.EmbedParams{
			Head: e.head(), Table: ptr(e.w.embed), IDs: e.at(l.ids), X: ptr(e.b.x),
		}, q.tokens))
	}
}

// claimCounters is the number of counters of claimed tiles, as many as a layer has products.
const claimCounters = 4

// operands are those of out[T] = x[T] · wᵀ, where count is where in the step's head the kernels find T.
func (q *queue) operands(out, x, w tensor.View, count driver.Ptr) kernels.MatmulParams {
	e, claims := q.e, driver.Ptr(4*q.claims)
	q.claims = (q.claims + 1) % claimCounters
	return kernels.MatmulParams{
		Count: e.head() + count, W: ptr(w), X: ptr(x), Y: ptr(out), Claims: ptr(e.b.claims) + claims,
		Partial: ptr(e.b.workspace), Arrived: ptr(e.b.parted), N: int32(w.Shape.Dim(0)), K: int32(w.Shape.Dim(1)),
		LdY: int32(out.Shape.Dim(1)),
	}
}
