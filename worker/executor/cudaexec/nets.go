package cudaexec

import (
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// net is a router net's weights on the device. Its front, norms, biases and last row are float32, its blocks bfloat16.
type net struct {
	from       *router.Net
	front      tensor.View // [D, columns rounded up to 4] f32
	frontBias  tensor.View // [D] f32
	blocks     []netBlock
	gain, bias tensor.View // [D] f32 of the last norm, in r2r
	out        tensor.View // [D] f32
}

type netBlock struct {
	gain, bias       tensor.View // [D] f32, of the norm
	up, down         tensor.View // [F, D] and [D, F] bf16
	upBias, downBias tensor.View // [F] and [D] f32
}

// checkNets says whether nets can judge a model, and fit the kernels.
func checkNets(list []*router.Net, m *model.Config, vocab int) error {
	if len(list) > executor.MaxNets {
		return fmt.Errorf("%w: Nets: expected at most %d, found %d", ErrConfig, executor.MaxNets, len(list))
	}
	for _, n := range list {
		if err := n.Check(m.Hidden, vocab); err != nil {
			return fmt.Errorf("%w: Nets: router %s: %w", ErrConfig, n.Name, err)
		}
		wide := max(roundUp(n.Front.Cols, 4), roundUp(n.Width(), 256))
		if n.Kind != router.R2R {
			wide = n.Front.Cols
		}
		if wide > kernels.MaxRouterWidth || n.Kind == router.R2R && (n.Width()%8 != 0 || n.Inner()%8 != 0) {
			return fmt.Errorf("%w: Nets: router %s: layers of %d, %d and %d: a GPU takes up to %d, and multiples of 8 (a CPU takes all)",
				ErrConfig, n.Name, n.Front.Cols, n.Width(), n.Inner(), kernels.MaxRouterWidth)
		}
	}
	return nil
}

// netNodes is the number of kernels of all nets in the graphs of the head.
func netNodes(list []*router.Net) int64 {
	nodes := 0
	for _, n := range list {
		nodes += 2 + 2*len(n.Blocks)
	}
	// Heads with scores are captured besides those without.
	if len(list) > 0 {
		nodes += 16
	}
	return int64(nodes * 2 * len(headSizes))
}

// layoutNets places the weights of all nets.
func layoutNets(c *carver, list []*router.Net) []net {
	var out []net
	for _, n := range list {
		d := net{from: n, out: c.take(tensor.F32, len(n.Out))}
		if n.Kind != router.CoLLM {
			d.front, d.frontBias = c.take(tensor.F32, n.Width(), roundUp(n.Front.Cols, 4)), c.take(tensor.F32, n.Width())
		}
		if n.Kind == router.R2R {
			d.gain, d.bias = c.take(tensor.F32, n.Width()), c.take(tensor.F32, n.Width())
		}
		for i := range n.Blocks {
			f, w := n.Blocks[i].Up.Rows, n.Blocks[i].Up.Cols
			d.blocks = append(d.blocks, netBlock{
				gain: c.take(tensor.F32, w), bias: c.take(tensor.F32, w), up: c.take(tensor.BF16, f, w), down: c.take(tensor.BF16, w, f),
				upBias: c.take(tensor.F32, f), downBias: c.take(tensor.F32, w),
			})
		}
		out = append(out, d)
	}
	return out
}

// netWidths are the widest layers of all nets, at least 1: what their buffers are made for.
func netWidths(list []*router.Net) (width, inner int) {
	width, inner = 1, 1
	for _, n := range list {
		width, inner = max(width, n.Width()), max(inner, n.Inner())
	}
	return width, inner
}

// loadNets brings the weights of the nets to the device.
func (e *Executor) loadNets() error {
	for i := range e.w.nets {
		if err := e.w.nets[i].load(e.device.ctx); err != nil {
			return fmt.Errorf("router %s: %w", e.w.nets[i].from.Name, err)
		}
	}
	return nil
}

func (d *net) load(ctx *driver.Context) error {
	n := d.from
	cols := roundUp(n.Front.Cols, 4)
	padded := make([]float32, n.Front.Rows*cols)
	for i := range n.Front.Rows {
		copy(padded[i*cols:], n.Front.F32[i*n.Front.Cols:(i+1)*n.Front.Cols])
	}
	type part struct {
		to   tensor.View
		from []float32
	}
	parts := []part{{d.front, padded}, {d.frontBias, n.FrontBias}, {d.out, n.Out}, {d.gain, n.OutNorm.Gain}, {d.bias, n.OutNorm.Bias}}
	for i := range d.blocks {
		b, from := &d.blocks[i], &n.Blocks[i]
		parts = append(parts, part{b.gain, from.Norm.Gain}, part{b.bias, from.Norm.Bias}, part{b.upBias, from.UpBias}, part{b.downBias, from.DownBias})
		for _, m := range []struct {
			to   tensor.View
			from *router.Matrix
		}{{b.up, &from.Up}, {b.down, &from.Down}} {
			if err := ctx.Write(ptr(m.to), driver.Bytes(rounded(m.from))); err != nil {
				return err
			}
		}
	}
	for _, p := range parts {
		if len(p.from) == 0 {
			continue
		}
		if err := writeFloats(ctx, p.to, p.from); err != nil {
			return err
		}
	}
	return nil
}

// rounded is a matrix in bfloat16, rounded to nearest even. Values are finite.
func rounded(m *router.Matrix) []uint16 {
	if m.BF16 != nil {
		return m.BF16
	}
	out := make([]uint16, len(m.F32))
	for i, v := range m.F32 {
		bits := math.Float32bits(v)
		out[i] = uint16((bits + 0x7fff + bits>>16&1) >> 16)
	}
	return out
}

// loadRouters compiles the kernels of router nets, if there are any.
func (e *Executor) loadRouters(load func() (*kernels.Router, error)) (err error) {
	if len(e.cfg.Nets) == 0 {
		return nil
	}
	if e.routerSet, err = load(); err != nil {
		return err
	}
	e.router = e.routerSet
	if e.launch != e.set {
		e.router = e.routerSet.Overlapped()
	}
	return nil
}

// scores enqueues all nets over n positions from first on. Blocks whose positions want none of it do nothing.
func (q *queue) scores(first, n int) {
	for k := range q.e.w.nets {
		q.score(k, first, n)
	}
}

func (q *queue) score(k, first, n int) {
	e, b, d := q.e, q.e.b, &q.e.w.nets[k]
	from := d.from
	p := kernels.RouterLinearParams{
		Head: e.head(), Samples: e.at(e.desc.layout.samples), Stats: ptr(b.stats), Top: ptr(b.top), Net: int32(k), First: int32(first),
	}
	if len(e.w.nets) == 1 {
		p.Flags = kernels.RouterAhead // with several it would be most often in vain
	}
	x, width := b.hidden, from.HiddenSize
	if from.Kind != router.CoLLM {
		front := p
		front.X, front.W, front.Bias, front.Y = ptr(b.hidden), ptr(d.front), ptr(d.frontBias), ptr(b.netV)
		front.N, front.K, front.Hidden = int32(from.Width()), int32(d.front.Shape.Dim(1)), int32(from.HiddenSize)
		if from.Kind == router.R2R {
			front.Embed, front.Logits = ptr(e.w.embed), int32(from.LogitsSize)
		} else {
			front.Flags |= kernels.RouterReLU
		}
		if from.NormalizeInput {
			front.Flags |= kernels.RouterNormalize
		}
		q.op("router front", k, e.router.Linear(e.stream, kernels.RouterFront, &front, n))
		x, width = b.netV, from.Width()
	}
	for i := range d.blocks {
		w := &d.blocks[i]
		up, down := p, p
		up.X, up.W, up.Bias, up.Gain, up.Shift, up.Y = ptr(b.netV), ptr(w.up), ptr(w.upBias), ptr(w.gain), ptr(w.bias), ptr(b.netInner)
		up.N, up.K = int32(w.up.Shape.Dim(0)), int32(w.up.Shape.Dim(1))
		down.X, down.W, down.Bias, down.Y = ptr(b.netInner), ptr(w.down), ptr(w.downBias), ptr(b.netV)
		down.N, down.K = up.K, up.N
		q.op("router up", k, e.router.Linear(e.stream, kernels.RouterUp, &up, n))
		q.op("router down", k, e.router.Linear(e.stream, kernels.RouterDown, &down, n))
	}
	q.op("router end", k, e.router.End(e.stream, &kernels.RouterEndParams{
		Head: p.Head, Samples: p.Samples, Stats: p.Stats, X: ptr(x), Gain: ptr(d.gain), Shift: ptr(d.bias), W: ptr(d.out), Bias: from.OutBias,
		K: int32(width), Net: p.Net, First: p.First,
	}, n))
}
