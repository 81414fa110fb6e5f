package kernels_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// streamkRig is a device with what streamk works in. Parts start as NaN.
type streamkRig struct {
	*rig
	set            *kernels.Set // overlapped where the device can
	parts, arrived driver.Ptr
}

func newStreamkRig(tb testing.TB) *streamkRig {
	r := &streamkRig{rig: newRig(tb, tiny)}
	r.set = r.rig.set
	if major, _, err := r.Context.Device().ComputeCapability(); err == nil && major >= 9 {
		r.set = r.set.Overlapped()
	}
	r.parts = cudatest.Make[byte](tb, r.Device, kernels.StreamkPartBytes)
	r.arrived = cudatest.Put(tb, r.Device, make([]uint32, kernels.StreamkCounters))
	return r
}

// run is a product of the first tokens of x, launched for as many, several times in a row. It returns y [tokens + 1, n + pad],
// whose last row and columns nobody is to write.
func (r *streamkRig) run(w driver.Ptr, x []uint16, n, k, tokens, late int) []float32 {
	r.tb.Helper()
	const pad = 3
	p := kernels.StreamkParams{Product: kernels.MatmulParams{
		Count: cudatest.Put(r.tb, r.Device, []int32{int32(tokens)}), W: w, X: cudatest.Put(r.tb, r.Device, x[:tokens*k]),
		N: int32(n), K: int32(k), LdY: int32(n + pad), Late: int32(late),
	}, Parts: r.parts, Arrived: r.arrived}
	var last []float32
	for range 2 {
		p.Product.Y = cudatest.Make[float32](r.tb, r.Device, (tokens+1)*(n+pad))
		r.ok(r.set.Streamk(r.Stream, &p, max(tokens, 1)))
		y := cudatest.Get[float32](r.tb, r.Device, p.Product.Y, (tokens+1)*(n+pad))
		for i, v := range y {
			if i%(n+pad) < n && i/(n+pad) < tokens {
				continue
			}
			if v == v {
				r.tb.Fatalf("N=%d K=%d T=%d: element %d of row %d was written", n, k, tokens, i%(n+pad), i/(n+pad))
			}
		}
		if last != nil && !slices.EqualFunc(y, last, sameBits) {
			r.tb.Fatalf("N=%d K=%d T=%d: a second launch gives other bits", n, k, tokens)
		}
		last = y
	}
	r.counters()
	out := make([]float32, 0, tokens*n)
	for t := range tokens {
		out = append(out, last[t*(n+pad):t*(n+pad)+n]...)
	}
	return out
}

func sameBits(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

// counters checks that the next launch finds what it expects.
func (r *streamkRig) counters() {
	r.tb.Helper()
	for i, v := range cudatest.Get[uint32](r.tb, r.Device, r.arrived, kernels.StreamkCounters) {
		if v != 0 {
			r.tb.Fatalf("counter %d is %d after a launch", i, v)
		}
	}
}

// The product against float64, for shapes whose tiles are cut in all ways: fewer steps than blocks, whole tiles, two and many
// blocks of a tile, short and tall tiles, ragged on both axes. A token's bits depend neither on the number of tokens nor on its
// place among them.
func TestStreamk(t *testing.T) {
	r := newStreamkRig(t)
	sizes := [][2]int{{1, 8}, {7, 128}, {130, 392}, {300, 200}, {520, 72}, {1030, 104}, {100, 1032}}
	tokens := []int{0, 1, 9, 33, 40}
	if !r.Simulated {
		sizes = append(sizes, [2]int{4096, 1024}, [2]int{749, 5120}, [2]int{5120, 8192}, [2]int{34_000, 136}, [2]int{40_960, 512})
		tokens = []int{0, 1, 2, 3, 8, 9, 16, 17, 31, 32, 33, 40, 47, 48, 49, 63}
	}
	for _, s := range sizes {
		n, k := s[0], s[1]
		const most = kernels.MaxStreamk
		w, x := cudatest.BF16s(uint64(n), n*k, 1), cudatest.BF16s(uint64(k), most*k, 1)
		weights := cudatest.Put(t, r.Device, w)
		all := bothOrders(r.rig, func() []float32 { return r.run(weights, x, n, k, most, 0) })
		checked := min(most, max(1, 500_000_000/(n*k))) // of large ones some tokens are enough
		if msg := cudatest.Close(cudatest.Floats(all[:checked*n]), reference(w, x[:checked*k], n, k), 1e-5); msg != "" {
			t.Fatalf("N=%d K=%d: %s", n, k, msg)
		}
		for i, count := range tokens {
			if r.Simulated && n*k > 60_000 && count%3 == 0 {
				continue
			}
			got := r.run(weights, x, n, k, count, i%2)
			if !slices.EqualFunc(got, all[:count*n], sameBits) {
				t.Fatalf("N=%d K=%d: bits depend on T=%d", n, k, count)
			}
		}
		const shift = 23
		if got := r.run(weights, x[shift*k:], n, k, most-shift, 1); !slices.EqualFunc(got, all[shift*n:], sameBits) {
			t.Fatalf("N=%d K=%d: bits depend on the place of a token", n, k)
		}
	}
}

// The product that ends in the gate, against float64. Halves are odd and end inside a tile.
func TestStreamkGate(t *testing.T) {
	r := newStreamkRig(t)
	sizes := [][2]int{{1, 8}, {129, 136}, {516, 104}}
	if !r.Simulated {
		sizes = append(sizes, [2]int{1033, 5120}, [2]int{25_600, 256})
	}
	for _, s := range sizes {
		n, k := s[0], s[1]
		const most, pad = kernels.MaxStreamk, 1
		w, x := cudatest.BF16s(uint64(n), 2*n*k, 1), cudatest.BF16s(uint64(k), most*k, 1)
		for i := range x {
			x[i] = ref.BF16(float32(ref.Widen(x[i])) / float32(math.Sqrt(float64(k))))
		}
		weights, products := cudatest.Put(t, r.Device, w), reference(w, x, 2*n, k)
		var all []uint16
		for _, count := range []int{most, 0, 1, 17, 40} {
			p := kernels.StreamkParams{Product: kernels.MatmulParams{
				Count: cudatest.Put(t, r.Device, []int32{int32(count)}), W: weights, X: cudatest.Put(t, r.Device, x[:count*k]),
				N: int32(2 * n), K: int32(k), LdY: int32(n + pad),
			}, Parts: r.parts, Arrived: r.arrived}
			y := bothOrders(r.rig, func() []uint16 {
				p.Product.Y = cudatest.Make[uint16](t, r.Device, (count+1)*(n+pad))
				r.ok(r.set.StreamkGate(r.Stream, &p, max(count, 1)))
				return cudatest.Get[uint16](t, r.Device, p.Product.Y, (count+1)*(n+pad))
			})
			r.counters()
			if all == nil {
				all = y
			}
			for i, v := range y {
				tok, j := i/(n+pad), i%(n+pad)
				if (tok == count || j >= n) && v != 0xffff {
					t.Fatalf("N=%d K=%d T=%d: element %d of row %d was written", n, k, count, j, tok)
				}
				if tok < count && j < n && v != all[i] {
					t.Fatalf("N=%d K=%d: bits depend on T=%d", n, k, count)
				}
			}
			for tok := range count {
				want := ref.Silumul(products[tok*2*n:tok*2*n+n], products[tok*2*n+n:(tok+1)*2*n])
				if msg := cudatest.Close(ref.WidenAll(y[tok*(n+pad):tok*(n+pad)+n]), want, 4e-3); msg != "" {
					t.Fatalf("N=%d K=%d T=%d token %d: %s", n, k, count, tok, msg)
				}
			}
		}
	}
}

func TestStreamkRefuses(t *testing.T) {
	r := newStreamkRig(t)
	good := kernels.StreamkParams{Product: kernels.MatmulParams{W: 16, X: 16, Y: 4, N: 8, K: 8, LdY: 8}, Parts: 16, Arrived: 4}
	for name, change := range map[string]func(*kernels.StreamkParams){
		"K": func(p *kernels.StreamkParams) { p.Product.K = 12 }, "ld": func(p *kernels.StreamkParams) { p.Product.LdY = 3 },
		"parts": func(p *kernels.StreamkParams) { p.Parts = 8 }, "counters": func(p *kernels.StreamkParams) { p.Arrived = 2 },
		"size": func(p *kernels.StreamkParams) { p.Product.N, p.Product.K, p.Product.LdY = 1<<20, 1<<20, 1<<20 },
	} {
		p := good
		change(&p)
		for kind, launch := range map[string]func(*driver.Stream, *kernels.StreamkParams, int) error{"plain": r.set.Streamk, "gate": r.set.StreamkGate} {
			if err := launch(r.Stream, &p, 9); !errors.Is(err, kernels.ErrDims) {
				t.Errorf("%s %s: error %v, want ErrDims", kind, name, err)
			}
		}
	}
	p := good
	if err := r.set.Streamk(r.Stream, &p, kernels.MaxStreamk+1); !errors.Is(err, kernels.ErrDims) {
		t.Errorf("too many tokens: error %v", err)
	}
	p.Product.N = 0
	if err := r.set.Streamk(r.Stream, &p, 9); err != nil {
		t.Errorf("a product without rows: %v", err)
	}
	if fits := fmt.Sprint(r.set.StreamkFits(51200, 5120), r.set.StreamkFits(151_936, 8192)); fits != "true true" {
		t.Errorf("large matrices fit: %s", fits)
	}
}
