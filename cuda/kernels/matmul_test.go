package kernels_test

import (
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// product runs one of the two kernels over a batch and returns y with its padding columns.
func product(r *rig, launch func(*driver.Stream, *kernels.MatmulParams, int) error, w, x []uint16, n, k, tokens, pad int) []float32 {
	r.tb.Helper()
	p := kernels.MatmulParams{
		Count: cudatest.Put(r.tb, r.Device, []int32{int32(tokens)}), W: cudatest.Put(r.tb, r.Device, w),
		X: cudatest.Put(r.tb, r.Device, x[:tokens*k]), Y: cudatest.Make[float32](r.tb, r.Device, (tokens+1)*(n+pad)),
		N: int32(n), K: int32(k), LdY: int32(n + pad),
	}
	r.ok(launch(r.Stream, &p, tokens+1))
	return cudatest.Get[float32](r.tb, r.Device, p.Y, (tokens+1)*(n+pad))
}

func TestMatmul(t *testing.T) {
	r := newRig(t, tiny)
	sizes := [][2]int{{1, 8}, {7, 128}, {16, 192}, {65, 264}, {130, 1032}}
	tokens := []int{0, 1, 2, 3, 5, 8, 9, 17, 33}
	if !r.Simulated {
		sizes = append(sizes, [2]int{4096, 1024}, [2]int{1024, 3072}, [2]int{749, 5120})
		tokens = append(tokens, 64, 65, 300)
	}
	for _, s := range sizes {
		n, k := s[0], s[1]
		const pad = 3
		w, x := cudatest.BF16s(uint64(n), n*k, 1), cudatest.BF16s(uint64(k), 300*k, 1)
		longest := 0
		for _, count := range tokens {
			if !r.Simulated || n*k*count <= 600_000 {
				longest = max(longest, count)
			}
		}
		want := ref.Matmul(ref.WidenAll(w), ref.WidenAll(x[:longest*k]), n, k)
		for name, launch := range map[string]func(*driver.Stream, *kernels.MatmulParams, int) error{"gemv": r.set.Gemv, "gemm": r.set.Gemm} {
			var alone []float32 // first token of the first batch that has one
			for _, count := range tokens {
				if count > longest {
					continue
				}
				y := product(r, launch, w, x, n, k, count, pad)
				for tok := range count + 1 {
					row := y[tok*(n+pad) : (tok+1)*(n+pad)]
					for j, v := range row {
						if (j >= n || tok == count) && v == v {
							t.Fatalf("%s N=%d K=%d T=%d: element %d of row %d was written", name, n, k, count, j, tok)
						}
					}
					if tok == count {
						continue
					}
					if msg := cudatest.Close(cudatest.Floats(row[:n]), want[tok*n:(tok+1)*n], 1e-4); msg != "" {
						t.Fatalf("%s N=%d K=%d T=%d token %d: %s", name, n, k, count, tok, msg)
					}
				}
				if count > 0 && alone == nil {
					alone = slices.Clone(y[:n])
				}
				if count > 0 && !slices.Equal(alone, y[:n]) {
					t.Errorf("%s N=%d K=%d: the bits of token 0 depend on T=%d", name, n, k, count)
				}
			}
		}
	}
}

func TestMatmulRefuses(t *testing.T) {
	r := newRig(t, tiny)
	good := kernels.MatmulParams{W: 16, X: 16, Y: 4, N: 8, K: 8, LdY: 8}
	for name, change := range map[string]func(*kernels.MatmulParams){
		"K": func(p *kernels.MatmulParams) { p.K = 12 }, "ld": func(p *kernels.MatmulParams) { p.LdY = 7 },
		"alignment": func(p *kernels.MatmulParams) { p.W = 8 },
	} {
		p := good
		change(&p)
		if r.set.Gemv(r.Stream, &p, 1) == nil || r.set.Gemm(r.Stream, &p, 1) == nil {
			t.Errorf("%s: launched", name)
		}
	}
}
