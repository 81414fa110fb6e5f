package kernels_test

import (
	"fmt"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// BenchmarkMatmul compares the three products on the shapes of the 0.6B and 32B models. Each launch reads other weights,
// 400 MB in all, so that the cache holds none of them. Metric: weight bytes a second.
func BenchmarkMatmul(b *testing.B) {
	for _, s := range [][2]int{{4096, 1024}, {6144, 1024}, {1024, 3072}, {10240, 5120}, {51200, 5120}, {5120, 25600}, {151680, 1024}} {
		for _, tokens := range []int{1, 4, 8, 16, 64, 256} {
			for _, kind := range []string{"gemv", "gemm", "cublaslt"} {
				if kind == "gemv" && tokens > 16 {
					continue
				}
				b.Run(fmt.Sprintf("n=%d,k=%d/T=%d/%s", s[0], s[1], tokens, kind), func(b *testing.B) { benchMatmul(b, kind, s[0], s[1], tokens) })
			}
		}
	}
}

func benchMatmul(b *testing.B, kind string, n, k, tokens int) {
	r := newRig(b, tiny)
	if r.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	size := n * k * 2
	copies := max(400_000_000/size, 1)
	weights, err := r.Context.Alloc(uint64(copies * size))
	r.ok(err)
	defer func() { r.ok(r.Context.Free(weights)) }()
	r.ok(r.Stream.Set8(weights, 0, uint64(copies*size)))
	p := kernels.MatmulParams{
		Count: cudatest.Put(b, r.Device, []int32{int32(tokens)}), X: cudatest.Put(b, r.Device, cudatest.BF16s(1, tokens*k, 1)),
		Y: cudatest.Make[float32](b, r.Device, tokens*n), N: int32(n), K: int32(k), LdY: int32(n),
	}
	one := func(i int) error {
		p.W = weights + driver.Ptr(i%copies*size)
		if kind == "gemv" {
			return r.set.Gemv(r.Stream, &p, tokens)
		}
		return r.set.Gemm(r.Stream, &p, tokens)
	}
	if kind == "cublaslt" {
		if r.Blas == nil {
			b.Skip("skip: no cuBLASLt")
		}
		h, err := r.Blas.NewHandle(r.Context, 32<<20)
		r.ok(err)
		defer func() { r.ok(h.Close()) }()
		ws := cublaslt.Workspace{Ptr: cudatest.Make[byte](b, r.Device, 32<<20), Bytes: 32 << 20}
		view := func(p driver.Ptr, d tensor.DType, dims ...int) tensor.View {
			return tensor.View{Ptr: uint64(p), Shape: tensor.Of(dims...), DType: d}
		}
		out, x := view(p.Y, tensor.F32, tokens, n), view(p.X, tensor.BF16, tokens, k)
		one = func(i int) error {
			return h.Matmul(r.Stream, out, x, view(weights+driver.Ptr(i%copies*size), tensor.BF16, n, k), false, ws)
		}
	}
	const launches = 20
	b.ResetTimer()
	for range b.N {
		for i := range launches {
			r.ok(one(i))
		}
		r.Wait(b)
	}
	each := b.Elapsed().Seconds() / float64(b.N*launches)
	b.ReportMetric(each*1e6, "µs/op")
	b.ReportMetric(float64(size)/each/1e9, "GB/s")
	b.ReportMetric(2*float64(n)*float64(k)*float64(tokens)/each/1e12, "TFLOP/s")
}

// BenchmarkAttention times decode at several batches, and a prefill chunk. Metric: bytes of keys and values a second.
func BenchmarkAttention(b *testing.B) {
	small := kernels.Dims{Hidden: 1024, FFN: 3072, Heads: 16, KVHeads: 8, HeadDim: 128, PageSize: 64, Vocab: 1000}
	large := small
	large.Heads = 64
	for name, d := range map[string]kernels.Dims{"group=2": small, "group=8": large} {
		for _, rows := range [][]attnRow{repeat(1, 1000, 1), repeat(8, 1000, 1), repeat(64, 1000, 1), repeat(1, 4000, 1), repeat(16, 1000, 10), {{0, 1000}}} {
			b.Run(fmt.Sprintf("%s/rows=%d,pos=%d,q=%d", name, len(rows), rows[0].pos, rows[0].n), func(b *testing.B) { benchAttention(b, d, rows) })
		}
	}
}

func repeat(n, pos, q int) []attnRow {
	rows := make([]attnRow, n)
	for i := range rows {
		rows[i] = attnRow{pos, q}
	}
	return rows
}

func benchAttention(b *testing.B, d kernels.Dims, rows []attnRow) {
	r := newRig(b, d)
	if r.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	c := newAttnCase(d, 1, rows)
	l := c.prepare(r, 1024)
	const launches = 20
	b.ResetTimer()
	for range b.N {
		for range launches {
			l.launch(r)
		}
		r.Wait(b)
	}
	each := b.Elapsed().Seconds() / float64(b.N*launches)
	bytes := 0
	for _, row := range rows {
		bytes += (row.pos + row.n) * d.KVHeads * d.HeadDim * 4
	}
	b.ReportMetric(each*1e6, "µs/op")
	b.ReportMetric(float64(bytes)/each/1e9, "GB/s")
}
