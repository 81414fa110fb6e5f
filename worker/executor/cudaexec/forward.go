package cudaexec

import (
	"fmt"
	"time"

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
	if e.inFlight == len(e.flights) {
		return 0, fmt.Errorf("cudaexec: launch: step %d is in flight and the depth is %d", e.oldest().batch.Step, len(e.flights))
	}
	if err := e.admit(b); err != nil {
		return 0, err
	}
	f := &e.flights[int(e.ticket)%len(e.flights)]
	e.ticket++
	f.ticket, f.batch, f.started = e.ticket, b, time.Now()
	e.describe(f)
	if err := e.enqueue(f); err != nil {
		err.Step = b.Step
		return 0, e.fail(err)
	}
	e.inFlight++
	e.steps.Add(1)
	e.tokens.Add(uint64(f.entry.head.Tokens))
	e.rows.Add(uint64(len(b.Rows)))
	return e.ticket, nil
}

// enqueue enqueues a described step: graphs where there are some for its sizes, else one kernel after the other.
func (e *Executor) enqueue(f *flight) *StepError {
	tokens, samples := int(f.entry.head.Tokens), len(f.picks)
	q := queue{e: e, tokens: tokens, form: e.attn.Form, items: len(e.attn.Items), block: e.cfg.BlockEachOp || e.steps.Load() < uint64(e.cfg.BlockSteps)}
	q.poison()
	e.begun = time.Time{}
	if g := e.graphs.body(q.form, tokens); g != nil && !q.block {
		q.replay(g.first)
		e.begun = time.Now()
		if g.rest != nil && q.err == nil {
			q.replay(g.rest)
		}
		e.replays.Add(1)
	} else {
		q.body()
	}
	kind := f.kind()
	if g := e.graphs.head(samples, kind); g != nil && !q.block {
		q.replay(g)
	} else {
		q.output(samples, kind)
	}
	if q.err == nil {
		q.op("record event", -1, f.ended.Record(e.stream))
	}
	return q.err
}

// body enqueues everything up to the last layer's output.
func (q *queue) body() {
	q.begin()
	q.layers(0, len(q.e.w.layers))
}

// layers enqueues the layers [from, to).
func (q *queue) layers(from, to int) {
	for i := from; i < to && q.err == nil; i++ {
		q.attention(i, &q.e.desc.layout)
		q.feedForward(i)
	}
}

// norm adds what the last product left in delta to the residual stream and normalises into h.
func (q *queue) norm(name string, layer int, weight tensor.View, add bool) {
	if !q.has(partRest) {
		return
	}
	e := q.e
	p := kernels.RmsnormParams{
		Count: e.head() + kernels.HeadTokens, X: ptr(e.b.x), Weight: ptr(weight), Out: ptr(e.b.h), Eps: float32(e.model.NormEps),
		Late: flag(e.inOrder()),
	}
	if add {
		p.Delta = ptr(e.b.delta)
	}
	q.op(name, layer, e.launch.Rmsnorm(e.stream, &p, q.tokens))
}

func (q *queue) attention(i int, l *layout) {
	e, w := q.e, &q.e.w.layers[i]
	q.norm("input norm", i, w.inputNorm, i > 0)
	q.late = q.form == kernels.AttnNarrow
	q.matmul("qkv product", i, e.b.qkv, e.b.h, w.qkv, q.tokens)
	q.late = false
	if q.has(partAttention) {
		q.attend(i, l)
	}
	q.matmul("o product", i, e.b.delta, e.b.attn, w.o, q.tokens)
}

// attend enqueues everything between the products of attention.
func (q *queue) attend(i int, l *layout) {
	e, w := q.e, &q.e.w.layers[i]
	heads := kernels.HeadsParams{
		QKV: ptr(e.b.qkv), Bias: ptr(w.qkvBias), QNorm: ptr(w.qNorm), KNorm: ptr(w.kNorm), Rope: ptr(e.w.rope), Eps: float32(e.model.NormEps),
	}
	cache := e.kv + driver.Ptr(int64(i)*e.plan.KV()/int64(e.model.Layers))
	if q.form == kernels.AttnWide {
		q.op("qkvpost", i, e.launch.Qkvpost(e.stream, &kernels.QkvpostParams{
			Head: e.head(), Pos: e.at(l.pos), Slots: ptr(e.b.slots), Q: ptr(e.b.q), Cache: cache, Heads: heads,
		}, q.tokens))
	}
	q.op("attn", i, e.launch.Attn(e.stream, &kernels.AttnParams{
		Head: e.head(), Items: e.at(l.items), Q: ptr(e.b.q), Cache: cache, Table: ptr(e.b.table), Out: ptr(e.b.attn),
		PartO: ptr(e.b.partO), PartML: ptr(e.b.partML), Arrived: ptr(e.b.joined),
		MaxPages: int32(e.b.table.Shape.Dim(1)), Scale: kernels.AttnScale(e.model.HeadDim), Heads: heads, Last: flag(e.inOrder()),
	}, q.form, q.items))
}

func (q *queue) feedForward(i int) {
	e, w := q.e, &q.e.w.layers[i]
	q.norm("post-attention norm", i, w.postNorm, true)
	q.gate(i, w.gateUp)
	q.matmul("down product", i, e.b.delta, e.b.act, w.down, q.tokens)
}

// gate enqueues act = silu(gate · h) * (up · h), in one kernel where the product's can do it.
func (q *queue) gate(i int, w tensor.View) {
	e := q.e
	const name = "gate and up product"
	p := q.operands(e.b.act, e.b.h, w, kernels.HeadTokens)
	switch e.product(paddedTokens(q.tokens), int(p.N), int(p.K)) {
	case useGemv:
		if q.has(partProducts) {
			q.op(name, i, e.launch.GemvGate(e.stream, &p, q.tokens))
		}
	case useBand:
		if q.has(partProducts) {
			q.op(name, i, e.launch.BandGate(e.stream, &p, q.tokens))
		}
	case useSlim:
		if q.has(partProducts) {
			q.op(name, i, e.launch.SlimGate(e.stream, &p, q.tokens, slimForm(int(p.N), int(p.K))))
		}
	case usePanel:
		if q.has(partProducts) {
			q.op(name, i, e.launch.PanelGate(e.stream, &p, q.tokens, slimForm(int(p.N), int(p.K))))
		}
	case useTile:
		if q.has(partProducts) {
			q.op(name, i, e.launch.TileGate(e.stream, &p, q.tokens, slimForm(int(p.N), int(p.K))))
		}
	default:
		q.matmul(name, i, e.b.gateUp, e.b.h, w, q.tokens)
		if q.has(partRest) {
			q.op("silumul", i, e.launch.Silumul(e.stream, &kernels.SilumulParams{Head: e.head(), GU: ptr(e.b.gateUp), Out: ptr(e.b.act)}, q.tokens))
		}
	}
}
