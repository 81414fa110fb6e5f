package cudaexec

import (
	"errors"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// Launch implements executor.Executor. It checks the batch and enqueues the step.
func (e *Executor) Launch(b *step.Batch) (executor.Ticket, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if e.flight != nil {
		return 0, fmt.Errorf("cudaexec: launch: step %d is in flight and the depth is 1", e.flight.batch.Step)
	}
	if err := e.admit(b); err != nil {
		return 0, err
	}
	e.ticket++
	e.flying = flight{ticket: e.ticket, batch: b, started: time.Now()}
	e.describe(b)
	q := queue{e: e, tokens: int(e.desc.head.Tokens), block: e.cfg.BlockEachOp || e.steps.Load() < uint64(e.cfg.BlockSteps)}
	q.step()
	if q.err != nil {
		q.err.Step = b.Step
		return 0, e.fail(q.err)
	}
	e.flight = &e.flying
	e.steps.Add(1)
	e.tokens.Add(uint64(q.tokens))
	e.rows.Add(uint64(len(b.Rows)))
	return e.ticket, nil
}

// queue enqueues one step's operations. The first error sticks and names its operation; nothing is enqueued after it.
type queue struct {
	e      *Executor
	tokens int
	block  bool // wait after each operation, so that its errors are its own
	err    *StepError
}

// op notes the outcome of an operation, and waits for it when errors must name their operation.
func (q *queue) op(name string, layer int, err error) {
	if q.err == nil && err == nil && q.block {
		err = q.e.stream.Synchronize()
	}
	if q.err == nil && err != nil {
		q.err = &StepError{Op: name, Layer: layer, Err: err}
	}
}

func ptr(v tensor.View) driver.Ptr { return driver.Ptr(v.Ptr) }

// head is the device address of the step's head.
func (e *Executor) head() driver.Ptr { return ptr(e.b.desc) }

// at is the device address of an array of the descriptor.
func (e *Executor) at(offset int) driver.Ptr { return ptr(e.b.desc) + driver.Ptr(offset) }

func (q *queue) step() {
	e := q.e
	if e.cfg.Poison {
		for _, v := range e.b.activations() {
			n, err := v.Bytes()
			q.op("poison", -1, errors.Join(err, e.stream.Set8(ptr(v), 0xff, n)))
		}
	}
	l := descriptorLayout(&e.cfg)
	q.op("prep", -1, e.set.Prep(e.stream, &kernels.PrepParams{
		In: e.desc.mem.Device(), Out: ptr(e.b.desc), Table: ptr(e.b.table), Slots: ptr(e.b.slots), IDsAt: int32(l.ids), PosAt: int32(l.pos),
		OwnerAt: int32(l.owner), PatchesAt: int32(l.patches), ItemsAt: int32(l.items), CombinesAt: int32(l.combines),
		SamplesAt: int32(l.samples), MaxPages: int32(e.b.table.Shape.Dim(1)), PageSize: int32(e.cfg.PageSize),
	}))
	q.op("embed", -1, e.set.Embed(e.stream, &kernels.EmbedParams{
		Head: e.head(), Table: ptr(e.w.embed), IDs: e.at(l.ids), X: ptr(e.b.x),
	}, q.tokens))
	for i := range e.w.layers {
		if q.err != nil {
			return
		}
		q.attention(i, &l)
		q.feedForward(i)
	}
	q.output(&l)
	if q.err == nil {
		q.op("record event", -1, e.ended.Record(e.stream))
	}
}

// norm adds what the last product left in delta to the residual stream and normalises into h.
func (q *queue) norm(name string, layer int, weight tensor.View, add bool) {
	e := q.e
	p := kernels.RmsnormParams{
		Count: e.head() + kernels.HeadTokens, X: ptr(e.b.x), Weight: ptr(weight), Out: ptr(e.b.h), Eps: float32(e.model.NormEps),
	}
	if add {
		p.Delta = ptr(e.b.delta)
	}
	q.op(name, layer, e.set.Rmsnorm(e.stream, &p, q.tokens))
}

func (q *queue) attention(i int, l *layout) {
	e, w := q.e, &q.e.w.layers[i]
	q.norm("input norm", i, w.inputNorm, i > 0)
	q.matmul("qkv product", i, e.b.qkv, e.b.h, w.qkv, q.tokens, kernels.HeadTokens)
	cache := e.kv + driver.Ptr(int64(i)*e.plan.KV()/int64(e.model.Layers))
	q.op("qkvpost", i, e.set.Qkvpost(e.stream, &kernels.QkvpostParams{
		Head: e.head(), QKV: ptr(e.b.qkv), QNorm: ptr(w.qNorm), KNorm: ptr(w.kNorm), Rope: ptr(e.w.rope), Pos: e.at(l.pos),
		Slots: ptr(e.b.slots), Q: ptr(e.b.q), Cache: cache, Eps: float32(e.model.NormEps),
	}, q.tokens))
	q.op("attn", i, e.set.Attn(e.stream, &kernels.AttnParams{
		Head: e.head(), Items: e.at(l.items), Q: ptr(e.b.q), Cache: cache, Table: ptr(e.b.table), Out: ptr(e.b.attn),
		PartO: ptr(e.b.partO), PartML: ptr(e.b.partML), MaxPages: int32(e.b.table.Shape.Dim(1)), Scale: kernels.AttnScale(e.model.HeadDim),
	}, len(e.attn.Items)))
	q.op("attncombine", i, e.set.AttnCombine(e.stream, &kernels.CombineParams{
		Head: e.head(), Combines: e.at(l.combines), PartO: ptr(e.b.partO), PartML: ptr(e.b.partML), Out: ptr(e.b.attn),
	}, len(e.attn.Combines)))
	q.matmul("o product", i, e.b.delta, e.b.attn, w.o, q.tokens, kernels.HeadTokens)
}

func (q *queue) feedForward(i int) {
	e, w := q.e, &q.e.w.layers[i]
	q.norm("post-attention norm", i, w.postNorm, true)
	q.matmul("gate and up product", i, e.b.gateUp, e.b.h, w.gateUp, q.tokens, kernels.HeadTokens)
	q.op("silumul", i, e.set.Silumul(e.stream, &kernels.SilumulParams{Head: e.head(), GU: ptr(e.b.gateUp), Out: ptr(e.b.act)}, q.tokens))
	q.matmul("down product", i, e.b.delta, e.b.act, w.down, q.tokens, kernels.HeadTokens)
}

// output runs the head over the sampled positions, some at a time, and publishes.
func (q *queue) output(l *layout) {
	samples := len(q.e.picks)
	for first := 0; first < samples && q.err == nil; first += headRows {
		n := min(headRows, samples-first)
		q.headBlock(l, first, n, first+n == samples)
	}
	if samples == 0 {
		q.publish(l, 0, 0, true)
	}
}

func (q *queue) headBlock(l *layout, first, n int, last bool) {
	e, b := q.e, q.e.b
	samples := e.at(l.samples)
	ld := int32(b.logits.Shape.Dim(1))
	q.op("final norm", -1, e.set.Rmsnorm(e.stream, &kernels.RmsnormParams{
		Count: e.head() + kernels.HeadSamples, X: ptr(b.x), Delta: ptr(b.delta), Weight: ptr(e.w.norm), Samples: samples, Out: ptr(b.headIn),
		Out32: ptr(b.hidden), Eps: float32(e.model.NormEps), First: int32(first),
	}, n))
	q.matmul("head product", -1, b.logits, b.headIn, e.w.head, n, kernels.HeadSamples)
	q.op("logitstats", -1, e.set.LogitStats(e.stream, &kernels.LogitstatsParams{
		Head: e.head(), Samples: samples, Logits: ptr(b.logits), Stats: ptr(b.stats), Top: ptr(b.top), Ld: ld, First: int32(first),
	}, n))
	adjust := kernels.AdjustParams{
		Head: e.head(), Samples: samples, Adjusts: e.desc.adjustMem.Device(), Saved: ptr(b.saved), Logits: ptr(b.logits), Stats: ptr(b.stats),
		Ld: ld, First: int32(first),
	}
	if e.adjusted > 0 {
		q.op("adjust", -1, e.set.Adjust(e.stream, &adjust, n))
	}
	q.op("sample", -1, e.set.Sample(e.stream, &kernels.SampleParams{
		Head: e.head(), Samples: samples, Logits: ptr(b.logits), Stats: ptr(b.stats), Ld: ld, First: int32(first),
	}, n))
	if e.adjusted > 0 {
		adjust.Settle = 1
		q.op("adjust back", -1, e.set.Adjust(e.stream, &adjust, n))
	}
	if r := e.cfg.Router; r != nil {
		p := kernels.ScoreParams{
			Head: e.head(), Samples: samples, Hidden: ptr(b.hidden), Weight: ptr(e.w.router), Stats: ptr(b.stats), Bias: r.Bias, First: int32(first),
		}
		if r.Sigmoid {
			p.Sigmoid = 1
		}
		q.op("score", -1, e.set.Score(e.stream, &p, n))
	}
	q.publish(l, first, n, last)
}

func (q *queue) publish(l *layout, first, n int, last bool) {
	e, b, r := q.e, q.e.b, q.e.res
	host := func(offset int) driver.Ptr { return r.mem.Device() + driver.Ptr(offset) }
	p := kernels.PublishParams{
		Head: e.head(), Samples: e.at(l.samples), Stats: ptr(b.stats), Top: ptr(b.top), Hidden: ptr(b.hidden), Logits: ptr(b.logits),
		OutStats: host(r.statsAt), OutTop: host(r.topAt), OutHidden: host(r.hiddenAt), OutLogits: host(r.logitsAt), Arrived: ptr(b.arrived),
		C: int32(e.model.Hidden), V: int32(e.cfg.Vocab), Ld: int32(b.logits.Shape.Dim(1)), First: int32(first),
	}
	if last {
		p.OutStep = host(r.flagAt)
	}
	q.op("publish", -1, e.set.Publish(e.stream, &p, n))
}

// matmul enqueues out[:n] = x[:n] · wᵀ. count is where in the step's head the kernels find the number of rows; it may be
// larger than n for one block of several at the head, whose buffers are as tall as a block.
func (q *queue) matmul(name string, layer int, out, x, w tensor.View, n int, count driver.Ptr) {
	if q.err != nil || n == 0 {
		return
	}
	e := q.e
	p := kernels.MatmulParams{
		Count: e.head() + count, W: ptr(w), X: ptr(x), Y: ptr(out), N: int32(w.Shape.Dim(0)), K: int32(w.Shape.Dim(1)),
		LdY: int32(out.Shape.Dim(1)),
	}
	switch {
	case e.cfg.Reproducible:
		q.op(name, layer, e.set.Gemm(e.stream, &p, n))
	case n <= kernels.MaxGemv:
		q.op(name, layer, e.set.Gemv(e.stream, &p, n))
	case e.device.blas != nil:
		err := q.library(out, x, w, n)
		if errors.Is(err, cublaslt.ErrUnsupported) {
			err = e.set.Gemm(e.stream, &p, n)
		}
		q.op(name, layer, err)
	default:
		q.op(name, layer, e.set.Gemm(e.stream, &p, n))
	}
}

// library multiplies with cuBLASLt. Rows beyond n are computed from whatever lies there, and not used.
func (q *queue) library(out, x, w tensor.View, n int) error {
	rows := min(paddedTokens(n), x.Shape.Dim(0))
	xs, err := x.Rows(0, rows)
	if err != nil {
		return err
	}
	outs, err := out.Rows(0, rows)
	if err != nil {
		return err
	}
	ws := cublaslt.Workspace{Ptr: ptr(q.e.b.workspace), Bytes: workspaceBytes}
	return q.e.device.blas.Matmul(q.e.stream, outs, xs, w, false, ws)
}
