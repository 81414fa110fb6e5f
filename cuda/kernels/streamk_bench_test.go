package kernels_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// streamkTries are the ways to build streamk that are compared. Of each the first word names the rows of a tile.
var streamkTries = []struct {
	name string
	kernels.StreamkTry
}{
	{"128 2x4", kernels.StreamkTry{Tiles: 2, Warps: 4, Runs: 2}}, {"128 1x8", kernels.StreamkTry{Tiles: 1, Warps: 8, Runs: 2}},
	{"128 2x4/1", kernels.StreamkTry{Tiles: 2, Warps: 4, Runs: 1}}, {"256 2x8", kernels.StreamkTry{Tiles: 2, Warps: 8, Runs: 1}},
	{"256 4x4", kernels.StreamkTry{Tiles: 4, Warps: 4, Runs: 1}}, {"256 2x8 near", kernels.StreamkTry{Tiles: 2, Warps: 8, Runs: 1, Near: true}},
}

// streamkFloor is the read bandwidth that the floor of the table is for, bytes a second.
const streamkFloor = 4.3e12

// BenchmarkStreamk prints one table: the products of the 32B and 8B models, with streamk as it is chosen, as it might be built, band
// and cuBLASLt; µs of one launch in a graph of launches that read 400 MB of other weights. -benchtime does not matter.
func BenchmarkStreamk(b *testing.B) {
	if cudatest.Open(b).Simulated {
		b.Skip("skip: no CUDA driver")
	}
	tries := len(streamkTries)
	newStreamkBench(b, benchBytes, tries).table(os.Stdout, []int{8, 16, 40, 64}, [][2]int{
		{10_240, 5120}, {5120, 8192}, {51_200, 5120}, {5120, 25_600}, {151_936, 5120},
		{6144, 4096}, {4096, 4096}, {24_576, 4096}, {4096, 12_288},
	})
}

// TestStreamkTable is the benchmark with little work.
func TestStreamkTable(t *testing.T) {
	var out strings.Builder
	newStreamkBench(t, 200*136*2, 1).table(&out, []int{8, 16}, [][2]int{{100, 136}, {1, 8}})
	if lines := strings.Split(strings.TrimSpace(out.String()), "\n"); len(lines) != 5 || strings.Count(lines[4], "|") != strings.Count(lines[0], "|") {
		t.Errorf("table:\n%s", out.String())
	}
}

// streamkBench has what streamk is measured with.
type streamkBench struct {
	r       *streamkRig
	names   []string
	sets    map[string]*kernels.Set
	blas    *cublaslt.Handle
	space   cublaslt.Workspace
	bytes   int // of the weights of a graph's launches together
	weights driver.Ptr
	x, y    driver.Ptr // as large as the table's largest shape
}

// newStreamkBench builds so many of streamkTries.
func newStreamkBench(tb testing.TB, bytes, tries int) *streamkBench {
	r := newStreamkRig(tb)
	m := &streamkBench{r: r, bytes: bytes, names: []string{"cuBLASLt", "band", "streamk", "gate"}, sets: map[string]*kernels.Set{"streamk": r.set}}
	for _, try := range streamkTries[:tries] {
		s, err := r.set.WithStreamk(tb.Context(), r.Context, r.Builder, try.StreamkTry)
		r.ok(err)
		tb.Cleanup(func() { r.ok(errors.Join(r.Stream.Synchronize(), s.Close())) })
		m.sets[try.name], m.names = s, append(m.names, try.name)
	}
	if r.Blas != nil {
		var err error
		m.blas, err = r.Blas.NewHandle(r.Context, 32<<20)
		r.ok(err)
		tb.Cleanup(func() { r.ok(m.blas.Close()) })
		m.space = cublaslt.Workspace{Ptr: cudatest.Make[byte](tb, r.Device, 32<<20), Bytes: 32 << 20}
	}
	return m
}

// table measures and prints.
func (m *streamkBench) table(out io.Writer, tokens []int, shapes [][2]int) {
	r, n, k, size := m.r, 0, 0, m.bytes
	for _, s := range shapes {
		n, k, size = max(n, s[0]), max(k, s[1]), max(size, 2*s[0]*s[1])
	}
	var err error
	m.weights, err = r.Context.Alloc(uint64(size))
	r.ok(err)
	r.ok(r.set.Hashfill(r.Stream, &kernels.HashfillParams{Out: m.weights, Key: 1, N: uint64(size) / 2, Scale: 1})) // zeros would take less power
	m.x, m.y = cudatest.Put(r.tb, r.Device, cudatest.BF16s(1, kernels.MaxStreamk*k, 1)), cudatest.Make[float32](r.tb, r.Device, kernels.MaxStreamk*n)
	fmt.Fprintf(out, "\nstreamk | %-13s |  T | floor | %s | share\n", "N x K", strings.Join(m.names, " | "))
	for _, s := range shapes {
		for _, t := range tokens {
			floor, share := float64(s[0]*s[1]*2)/streamkFloor, 0.0
			fmt.Fprintf(out, "streamk | %6d x %-4d | %2d | %5.1f", s[0], s[1], t, floor*1e6)
			for _, name := range m.names {
				each := m.measure(name, s[0], s[1], t)
				if name == "streamk" {
					share = floor / each
				}
				fmt.Fprintf(out, " | %*.1f", len(name), each*1e6)
			}
			fmt.Fprintf(out, " | %.0f %%\n", 100*share)
		}
	}
	r.ok(r.Context.Free(m.weights))
}

// measure returns the seconds of one launch, or 0 where there is no such kernel.
func (m *streamkBench) measure(name string, n, k, tokens int) float64 {
	r, set, size := m.r, m.sets[name], (n*k*2+15)/16*16
	copies := max(m.bytes/size, 1)
	p := kernels.StreamkParams{
		Product: kernels.MatmulParams{Count: cudatest.Put(r.tb, r.Device, []int32{int32(tokens)}), X: m.x, Y: m.y, N: int32(n), K: int32(k), LdY: int32(n)},
		Parts:   r.parts, Arrived: r.arrived,
	}
	view := func(p driver.Ptr, d tensor.DType, dims ...int) tensor.View {
		return tensor.View{Ptr: uint64(p), Shape: tensor.Of(dims...), DType: d}
	}
	padded := tokens
	if tokens == 40 {
		padded = 48 // as steps are
	}
	launch := func() error { return set.Streamk(r.Stream, &p, padded) }
	switch name {
	case "cuBLASLt":
		if m.blas == nil {
			return 0
		}
		launch = func() error {
			return m.blas.Matmul(r.Stream, view(p.Product.Y, tensor.F32, padded, n), view(p.Product.X, tensor.BF16, padded, k),
				view(p.Product.W, tensor.BF16, n, k), false, m.space)
		}
	case "band":
		if tokens > kernels.MaxBand || !r.set.BandFits(n, k) {
			return 0
		}
		launch = func() error { return r.set.Band(r.Stream, &p.Product, tokens) }
	case "gate":
		launch = func() error { return r.set.StreamkGate(r.Stream, &p, padded) }
	}
	rounds := 0
	return replayed(r.tb, r.rig, max(copies, 4), func() bool { rounds++; return rounds <= 5 }, func(i int) error {
		p.Product.W = m.weights + driver.Ptr(i%copies*size)
		return launch()
	})
}
