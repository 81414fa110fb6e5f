package cpuexec

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/sourcegraph/conc/iter"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// matrix is [rows, cols], as float32 or, if the checkpoint has bfloat16, as
// that: half the memory to stream, and the same results to the last bit, because
// the kernels widen exactly and then do what the float32 kernels do.
type matrix struct {
	rows, cols int
	f32        []float32
	bf16       []uint16 // nil if f32 is used
}

// band returns the rows [first, first+n).
func (m *matrix) band(first, n int) matrix {
	b := matrix{rows: n, cols: m.cols}
	from, to := first*m.cols, (first+n)*m.cols
	if m.bf16 != nil {
		b.bf16 = m.bf16[from:to:to]
	} else {
		b.f32 = m.f32[from:to:to]
	}
	return b
}

// row copies one row to dst [cols].
func (m *matrix) row(dst []float32, r int) {
	b := m.band(r, 1)
	copy(dst, b.f32)
	for i, v := range b.bf16 {
		dst[i] = widen(v)
	}
}

// bytes returns the size in memory.
func (m *matrix) bytes() int64 { return int64(len(m.f32))*4 + int64(len(m.bf16))*2 }

// widen converts bfloat16 exactly.
func widen(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }

// matrix reads tensors of the same width and stacks them by rows.
func (l *loader) matrix(cols int, names ...string) matrix {
	tensors, total := l.tensors(names)
	m := matrix{cols: cols, rows: total / cols}
	if slices.ContainsFunc(tensors, func(t model.Tensor) bool { return t.DType != model.BF16 }) {
		m.f32 = l.vector(names...)
		return m
	}
	m.bf16 = make([]uint16, total)
	at := m.bf16
	for i := range tensors {
		n := len(tensors[i].Bytes) / 2
		copyBF16(at[:n], tensors[i].Bytes)
		at = at[n:]
	}
	l.bytes += m.bytes()
	return m
}

// copyBF16 reads little-endian values, large matrices on all cores.
func copyBF16(dst []uint16, b []byte) {
	const block = 1 << 20
	iter.ForEachIdx(make([]struct{}, (len(dst)+block-1)/block), func(i int, _ *struct{}) {
		part := dst[i*block : min((i+1)*block, len(dst))]
		from := b[2*i*block:]
		for j := range part {
			part[j] = binary.LittleEndian.Uint16(from[2*j:])
		}
	})
}
