package kernels_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// BenchmarkMatmul compares the products on the shapes of the 0.6B, 8B and 32B models, in a graph of many launches that read
// other weights each, 400 MB in all, so that the cache holds none of them. Metric: weight bytes a second.
func BenchmarkMatmul(b *testing.B) {
	r := newRig(b, tiny)
	if r.Simulated {
		b.Skip("skip: no CUDA driver")
	}
	m := newMatmulBench(r)
	for _, s := range [][2]int{
		{4096, 1024}, {1024, 2048}, {6144, 1024}, {1024, 3072}, {151680, 1024},
		{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}, {151680, 4096},
		{10240, 5120}, {5120, 8192}, {51200, 5120}, {5120, 25600},
	} {
		for _, tokens := range benchTokens {
			if tokens*s[0] > 2048*51200 {
				continue // larger than y
			}
			for _, kind := range []string{"gemv", "band", "deep", "wide", "thin", "tile", "panel", "parts", "cublaslt"} {
				slim := kind == "deep" || kind == "wide" || kind == "thin"
				if kind == "gemv" && tokens > 2 || kind == "band" && (tokens > kernels.MaxBand || !r.set.BandFits(s[0], s[1])) || slim && tokens > 2*kernels.MaxSlim || kind == "cublaslt" && m.blas == nil || (kind == "tile" || kind == "panel" || kind == "parts") && tokens < 16 {
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

var benchTokens = []int{1, 2, 4, 8, 16, 32, 40, 64, 128, 256, 2048}

// matmulBench has the operands of all shapes.
type matmulBench struct {
	r       *rig
	set     *kernels.Set
	blas    *cublaslt.Handle
	weights driver.Ptr
	x, y    driver.Ptr // [2048][25600] bf16, [2048][51200] f32
	counts  map[int]driver.Ptr
	space   cublaslt.Workspace
}

// The weights of a graph's launches together, and the memory for the largest matrix.
const (
	benchBytes  = 400_000_000
	benchMatrix = 151680 * 4096 * 2
)

func newMatmulBench(r *rig) *matmulBench {
	m := &matmulBench{r: r, set: r.set, counts: map[int]driver.Ptr{}}
	var err error
	m.weights, err = r.Context.Alloc(benchMatrix)
	r.ok(err)
	r.ok(r.Stream.Set8(m.weights, 0, benchMatrix))
	m.x, m.y = cudatest.Put(r.tb, r.Device, cudatest.BF16s(1, 2048*25600, 1)), cudatest.Make[float32](r.tb, r.Device, 2048*51200)
	for _, n := range benchTokens {
		m.counts[n] = cudatest.Put(r.tb, r.Device, []int32{int32(n)})
	}
	if major, _, err := r.Context.Device().ComputeCapability(); err == nil && major >= 9 {
		m.set = r.set.Overlapped()
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
	each := graphed(b, m.r, max(copies, 4), func(i int) error {
		p.W = m.weights + driver.Ptr(i%copies*size)
		switch kind {
		case "gemv":
			return m.set.Gemv(m.r.Stream, &p, tokens)
		case "band":
			return m.set.Band(m.r.Stream, &p, tokens)
		case "tile":
			return m.set.Tile(m.r.Stream, &p, tokens, kernels.SlimDeep)
		case "panel", "parts":
			p.Partial, p.Arrived = 0, 0
			if kind != "panel" {
				p.Partial, p.Arrived = m.r.room(), m.r.counters()
			}
			form := kernels.SlimDeep
			if n >= 8448 {
				form = kernels.SlimWide // fewer parts, as the executor has it
			}
			return m.set.Panel(m.r.Stream, &p, tokens, form)
		case "cublaslt":
			return m.blas.Matmul(m.r.Stream, view(p.Y, tensor.F32, tokens, n), view(p.X, tensor.BF16, tokens, k), view(p.W, tensor.BF16, n, k), false, m.space)
		}
		return m.set.Slim(m.r.Stream, &p, tokens, forms[kind])
	})
	b.ReportMetric(float64(size)/each/1e9, "GB/s")
	b.ReportMetric(2*float64(n)*float64(k)*float64(tokens)/each/1e12, "TFLOP/s")
}

// graphed captures launches in a graph, replays it b.N times and returns the median of the seconds for one launch, by the
// device's clock.
func graphed(b *testing.B, r *rig, launches int, one func(i int) error) float64 {
	b.Helper()
	r.ok(one(0)) // libraries load their kernels at the first call
	r.Wait(b)
	graph, err := r.Stream.Capture(driver.CaptureRelaxed, func() error {
		for i := range launches {
			if err := one(i); err != nil {
				return err
			}
		}
		return nil
	})
	r.ok(err)
	var events [2]*driver.Event
	for i := range events {
		events[i], err = r.Context.NewEvent(driver.EventOptions{Timing: true})
		r.ok(err)
	}
	r.ok(graph.Launch(r.Stream))
	var times []time.Duration
	for b.Loop() {
		r.ok(events[0].Record(r.Stream))
		r.ok(graph.Launch(r.Stream))
		r.ok(events[1].Record(r.Stream))
		r.ok(events[1].Wait())
		t, err := events[1].Since(events[0])
		r.ok(err)
		times = append(times, t)
	}
	r.ok(graph.Close())
	for _, e := range events {
		r.ok(e.Close())
	}
	slices.Sort(times)
	each := times[len(times)/2].Seconds() / float64(launches)
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
		for _, rows := range [][]attnRow{
			repeat(1, 1024, 1), repeat(8, 1024, 1), repeat(64, 1024, 1), repeat(1, 4096, 1), repeat(1, 20000, 1), repeat(8, 4000, 1),
			repeat(8, 1024, 5), repeat(1, 1024, 5), repeat(1, 1024, 10), repeat(16, 1024, 10), {{0, 4096}},
		} {
			form := kernels.FormOf(len(rows)*rows[0].n, len(rows), rows[0].n)
			l := newAttnCase(d, 1, rows).prepare(r, form, d.AttnSlots(form))
			b.Run(fmt.Sprintf("%s/rows=%d,pos=%d,q=%d", name, len(rows), rows[0].pos, rows[0].n), func(b *testing.B) {
				each := graphed(b, r, 20, func(int) error {
					l.launch(r)
					return nil
				})
				bytes := 0
				for _, row := range rows {
					bytes += (row.pos + row.n) * d.KVHeads * d.HeadDim * 4
				}
				b.ReportMetric(float64(bytes)/each/1e9, "GB/s")
				flops := 0.0
				for _, row := range rows {
					flops += 4 * float64(d.Heads*d.HeadDim) * float64(row.n) * (float64(row.pos) + float64(row.n+1)/2)
				}
				b.ReportMetric(flops/each/1e12, "TFLOP/s")
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
