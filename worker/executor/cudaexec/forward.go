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
	err  *StepError
}

// part is a set of a step's operations, for timing.
type part int

const (
	partProducts part = 1 << iota
	partAttention
	partRest
	partHeadProduct
	partHead
)

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

// head is the device address of the step's head.
func (e *Executor) head() driver.Ptr { return ptr(e.b.desc) }

// at is the device address of an array of the descriptor.
func (e *Executor) at(offset int) driver.Ptr { return ptr(e.b.desc) + driver.Ptr(offset) }

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

// body enqueues everything up to the last layer's output.
func (q *queue) body() {
	q.begin()
	q.layers(0, len(q.e.w.layers))
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
	p := e.operands(e.b.act, e.b.h, w, kernels.HeadTokens)
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
	case useTile:
		if q.has(partProducts) {
			q.op(name, i, e.launch.TileGate(e.stream, &p, q.tokens, slimForm(int(p.N), int(p.K))))
		}
	case useStreamk:
		if q.has(partProducts) {
			q.op(name, i, e.launch.StreamkGate(e.stream, e.cutting(p), q.tokens))
		}
	default:
		q.matmul(name, i, e.b.gateUp, e.b.h, w, q.tokens)
		if q.has(partRest) {
			q.op("silumul", i, e.launch.Silumul(e.stream, &kernels.SilumulParams{Head: e.head(), GU: ptr(e.b.gateUp), Out: ptr(e.b.act)}, q.tokens))
		}
	}
}

// headKind says what a step needs of the head besides tokens and features.
type headKind int

const (
	adjustedHead headKind = 1 << iota // samples with adjusted logits
	scoredHead                        // scores of router nets
	headKinds
)

// kind is what the step needs of the head.
func (f *flight) kind() (k headKind) {
	if f.adjusted > 0 {
		k |= adjustedHead
	}
	if f.scored {
		k |= scoredHead
	}
	return k
}

// output runs the head over the sampled positions, some at a time, and publishes.
func (q *queue) output(samples int, kind headKind) {
	for first := 0; first < samples && q.err == nil; first += headRows {
		n := min(headRows, samples-first)
		q.headBlock(first, n, kind, first+n == samples)
	}
	if samples == 0 {
		q.publish(0, 0, true)
	}
}

// headBlock runs the head over n positions from first on.
func (q *queue) headBlock(first, n int, kind headKind, last bool) {
	e, b := q.e, q.e.b
	samples := e.at(e.desc.layout.samples)
	if q.has(partHead) {
		q.op("final norm", -1, e.launch.Rmsnorm(e.stream, &kernels.RmsnormParams{
			Count: e.head() + kernels.HeadSamples, X: ptr(b.x), Delta: ptr(b.delta), Weight: ptr(e.w.norm), Samples: samples, Out: ptr(b.headIn),
			Out32: ptr(b.hidden), Eps: float32(e.model.NormEps), First: int32(first),
		}, n))
	}
	q.product("head product", -1, partHeadProduct, b.logits, b.headIn, e.w.head, n, kernels.HeadSamples)
	if !q.has(partHead) {
		return
	}
	q.choose(first, n, kind&adjustedHead != 0)
	if kind&scoredHead != 0 {
		q.scores(first, n)
	}
	q.publish(first, n, last)
}

// choose takes features from the logits and draws tokens.
func (q *queue) choose(first, n int, adjusted bool) {
	e, b := q.e, q.e.b
	samples, ld := e.at(e.desc.layout.samples), int32(b.logits.Shape.Dim(1))
	q.op("logitpart", -1, e.launch.LogitPart(e.stream, &kernels.LogitpartParams{
		Head: e.head(), Logits: ptr(b.logits), Parts: ptr(b.parts), Ld: ld, First: int32(first),
	}, n))
	q.op("logitstats", -1, e.launch.LogitStats(e.stream, &kernels.LogitstatsParams{
		Head: e.head(), Samples: samples, Logits: ptr(b.logits), Parts: ptr(b.parts), Stats: ptr(b.stats), Top: ptr(b.top), Ld: ld,
		First: int32(first),
	}, n))
	adjust := kernels.AdjustParams{
		Head: e.head(), Samples: samples, Adjusts: e.desc.adjustMem.Device(), Saved: ptr(b.saved), Logits: ptr(b.logits), Stats: ptr(b.stats),
		Ld: ld, First: int32(first), RingEntries: int32(e.desc.adjusts),
	}
	if adjusted {
		q.op("adjust", -1, e.launch.Adjust(e.stream, &adjust, n))
	}
	q.op("sample", -1, e.launch.Sample(e.stream, &kernels.SampleParams{
		Head: e.head(), Samples: samples, Logits: ptr(b.logits), Stats: ptr(b.stats), Last: ptr(b.last), Ld: ld, First: int32(first),
	}, n))
	if adjusted {
		adjust.Settle = 1
		q.op("adjust back", -1, e.launch.Adjust(e.stream, &adjust, n))
	}
}

func (q *queue) publish(first, n int, last bool) {
	e, b, r := q.e, q.e.b, q.e.res
	host := func(offset int) driver.Ptr { return r.mem.Device() + driver.Ptr(offset) }
	p := kernels.PublishParams{
		Head: e.head(), Samples: e.at(e.desc.layout.samples), Stats: ptr(b.stats), Top: ptr(b.top), Hidden: ptr(b.hidden), Logits: ptr(b.logits),
		OutStats: host(r.statsAt), OutTop: host(r.topAt), OutHidden: host(r.hiddenAt), OutLogits: host(r.logitsAt), Arrived: ptr(b.arrived),
		RingBytes: uint64(r.entryBytes), C: int32(e.model.Hidden), V: int32(e.cfg.Vocab), Ld: int32(b.logits.Shape.Dim(1)), First: int32(first),
	}
	if last {
		p.OutStep = host(0)
	}
	q.op("publish", -1, e.launch.Publish(e.stream, &p, n))
}

// operands are those of out[T] = x[T] · wᵀ, where count is where in the step's head the kernels find T.
func (e *Executor) operands(out, x, w tensor.View, count driver.Ptr) kernels.MatmulParams {
	return kernels.MatmulParams{
		Count: e.head() + count, W: ptr(w), X: ptr(x), Y: ptr(out), N: int32(w.Shape.Dim(0)), K: int32(w.Shape.Dim(1)),
		LdY: int32(out.Shape.Dim(1)),
	}
}

// cutting adds to a product what streamk works in.
func (e *Executor) cutting(m kernels.MatmulParams) *kernels.StreamkParams {
	return &kernels.StreamkParams{Product: m, Parts: ptr(e.b.workspace), Arrived: ptr(e.b.cut)}
}

// matmul enqueues out[:n] = x[:n] · wᵀ for the tokens of the step.
func (q *queue) matmul(name string, layer int, out, x, w tensor.View, n int) {
	q.product(name, layer, partProducts, out, x, w, n, kernels.HeadTokens)
}

// product is matmul for either count. The number at count may be larger than n for one block of several at the head, whose
// buffers are as tall as a block.
func (q *queue) product(name string, layer int, p part, out, x, w tensor.View, n int, count driver.Ptr) {
	if !q.has(p) || n == 0 {
		return
	}
	e := q.e
	m := e.operands(out, x, w, count)
	if q.late {
		m.Late = 1
	}
	var err error
	switch e.product(paddedTokens(n), int(m.N), int(m.K)) {
	case useGemv:
		err = e.launch.Gemv(e.stream, &m, n)
	case useBand:
		err = e.launch.Band(e.stream, &m, n)
	case useSlim:
		err = e.launch.Slim(e.stream, &m, n, slimForm(int(m.N), int(m.K)))
	case useStreamk:
		err = e.launch.Streamk(e.stream, e.cutting(m), n)
	case useLibrary:
		if err = q.library(out, x, w, n); errors.Is(err, cublaslt.ErrUnsupported) {
			err = e.launch.Tile(e.stream, &m, n, slimForm(int(m.N), int(m.K)))
		}
	default:
		err = e.launch.Tile(e.stream, &m, n, slimForm(int(m.N), int(m.K)))
	}
	q.op(name, layer, err)
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
	if err := q.e.device.blas.Matmul(q.e.stream, outs, xs, w, false, ws); err != nil {
		return err
	}
	q.e.tracer.library()
	return nil
}
