package cudaexec

import (
	"errors"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// part is a set of a step's operations, for timing.
type part int

const (
	partProducts part = 1 << iota
	partAttention
	partRest
	partHeadProduct
	partHead
)

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
	m := q.operands(out, x, w, count)
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
	case useLibrary:
		if err = q.library(out, x, w, n); errors.Is(err, cublaslt.ErrUnsupported) {
			err = q.many(&m, n)
		}
	default:
		err = q.many(&m, n)
	}
	q.op(name, layer, err)
}

// many multiplies by the kernel that this device has for many tokens.
func (q *queue) many(m *kernels.MatmulParams, n int) error {
	form := slimForm(int(m.N), int(m.K))
	if q.e.launch.HasPanel() {
		return q.e.launch.Panel(q.e.stream, m, n, form)
	}
	return q.e.launch.Tile(q.e.stream, m, n, form)
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
