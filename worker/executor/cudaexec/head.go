package cudaexec

import (
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// head is the device address of the step's head.
func (e *Executor) head() driver.Ptr { return ptr(e.b.desc) }

// at is the device address of an array of the descriptor.
func (e *Executor) at(offset int) driver.Ptr { return ptr(e.b.desc) + driver.Ptr(offset) }

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
