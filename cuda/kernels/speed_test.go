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
	r := newRig(b, tiny)
	if r.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	m := newMatmulBench(r)
	for _, s := range [][2]int{{4096, 1024}, {6144, 1024}, {1024, 3072}, {10240, 5120}, {51200, 5120}, {5120, 25600}, {151680, 1024}} {
		for _, tokens := range []int{1, 4, 8, 16, 64, 256} {
			for _, kind := range []string{"gemv", "gemm", "cublaslt"} {
				if kind == "gemv" && tokens > 16 || kind == "cublaslt" && m.blas == nil {
					continue
				}
				b.Run(fmt.Sprintf("n=%d,k=%d/T=%d/%s", s[0], s[1], tokens, kind), func(b *testing.B) { m.run(b, kind, s[0], s[1], tokens) })
			}
		}
	}
	if m.blas != nil {
		r.ok(m.blas.Close())
	}
	r.ok(r.Context.Free(m.weights))
}

// matmulBench has the operands of all shapes.
type matmulBench struct {
	r       *rig
	blas    *cublaslt.Handle
	weights driver.Ptr // 400 MB
	x, y    driver.Ptr // [256][25600] bf16, [256][151680] f32
	counts  map[int]driver.Ptr
	space   cublaslt.Workspace
}

const benchBytes = 400_000_000

func newMatmulBench(r *rig) *matmulBench {
	m := &matmulBench{r: r, counts: map[int]driver.Ptr{}}
	var err error
	m.weights, err = r.Context.Alloc(benchBytes)
	r.ok(err)
	r.ok(r.Stream.Set8(m.weights, 0, benchBytes))
	m.x, m.y = cudatest.Put(r.tb, r.Device, cudatest.BF16s(1, 256*25600, 1)), cudatest.Make[float32](r.tb, r.Device, 256*151680)
	for _, n := range []int{1, 4, 8, 16, 64, 256} {
		m.counts[n] = cudatest.Put(r.tb, r.Device, []int32{int32(n)})
	}
	if r.Blas != nil {
		m.blas, err = r.Blas.NewHandle(r.Context, 32<<20)
		r.ok(err)
		m.space = cublaslt.Workspace{Ptr: cudatest.Make[byte](r.tb, r.Device, 32<<20), Bytes: 32 << 20}
	}
	return m
}

func (m *matmulBench) run(b *testing.B, kind string, n, k, tokens int) {
	size := n * k * 2
	copies := max(benchBytes/size, 1)
	p := kernels.MatmulParams{Count: m.counts[tokens], X: m.x, Y: m.y, N: int32(n), K: int32(k), LdY: int32(n)}
	view := func(p driver.Ptr, d tensor.DType, dims ...int) tensor.View {
		return tensor.View{Ptr: uint64(p), Shape: tensor.Of(dims...), DType: d}
	}
	one := func(i int) error {
		p.W = m.weights + driver.Ptr(i%copies*size)
		switch kind {
		case "gemv":
			return m.r.set.Gemv(m.r.Stream, &p, tokens)
		case "gemm":
			return m.r.set.Gemm(m.r.Stream, &p, tokens)
		}
		return m.blas.Matmul(m.r.Stream, view(p.Y, tensor.F32, tokens, n), view(p.X, tensor.BF16, tokens, k), view(p.W, tensor.BF16, n, k), false, m.space)
	}
	each := timed(b, m.r, one)
	b.ReportMetric(float64(size)/each/1e9, "GB/s")
	b.ReportMetric(2*float64(n)*float64(k)*float64(tokens)/each/1e12, "TFLOP/s")
}

// timed repeats launches back to back and returns seconds for one.
func timed(b *testing.B, r *rig, one func(i int) error) float64 {
	const launches = 50
	if err := one(0); err != nil { // plans, outside the clock
		b.Fatal(err)
	}
	r.Wait(b)
	b.ResetTimer()
	for range b.N {
		for i := range launches {
			if err := one(i); err != nil {
				b.Fatal(err)
			}
		}
		r.Wait(b)
	}
	each := b.Elapsed().Seconds() / float64(b.N*launches)
	b.ReportMetric(each*1e6, "µs/op")
	return each
}

// BenchmarkAttention times decode at several batches, and a prefill chunk. Metric: bytes of keys and values a second.
func BenchmarkAttention(b *testing.B) {
	small := kernels.Dims{Hidden: 1024, FFN: 3072, Heads: 16, KVHeads: 8, HeadDim: 128, PageSize: 64, Vocab: 1000}
	large := small
	large.Heads = 64
	for name, d := range map[string]kernels.Dims{"group=2": small, "group=8": large} {
		r := newRig(b, d)
		if r.Simulated {
			b.Skip("skip: no CUDA driver")
		}
		for _, rows := range [][]attnRow{repeat(1, 1000, 1), repeat(8, 1000, 1), repeat(32, 1000, 1), repeat(1, 4000, 1), repeat(16, 1000, 10), {{0, 1000}}} {
			l := newAttnCase(d, 1, rows).prepare(r, 1024)
			b.Run(fmt.Sprintf("%s/rows=%d,pos=%d,q=%d", name, len(rows), rows[0].pos, rows[0].n), func(b *testing.B) {
				each := timed(b, r, func(int) error {
					l.launch(r)
					return nil
				})
				bytes := 0
				for _, row := range rows {
					bytes += (row.pos + row.n) * d.KVHeads * d.HeadDim * 4
				}
				b.ReportMetric(float64(bytes)/each/1e9, "GB/s")
			})
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
