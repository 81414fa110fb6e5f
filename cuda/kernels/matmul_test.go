package kernels_test

import (
	"slices"
	"testing"

	"github.com/sourcegraph/conc/iter"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// matmul is a product of package kernels.
type matmul func(*driver.Stream, *kernels.MatmulParams, int) error

// products lists them by name.
func products(s *kernels.Set) map[string]matmul {
	out := map[string]matmul{"gemv": s.Gemv, "band": func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
		return s.Band(st, p, min(tokens, kernels.MaxBand)) // the caller adds padding
	}}
	for name, form := range forms {
		out["slim "+name] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error { return s.Slim(st, p, tokens, form) }
		out["tile "+name] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error { return s.Tile(st, p, tokens, form) }
		if !s.HasPanel() {
			continue
		}
		out["panel "+name] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
			whole := *p
			whole.Partial = 0
			return s.Panel(st, &whole, tokens, form)
		}
		out["panel in parts "+name] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
			return s.Panel(st, p, tokens, form)
		}
	}
	return out
}

var forms = map[string]kernels.SlimForm{"deep": kernels.SlimDeep, "wide": kernels.SlimWide, "thin": kernels.SlimThin}

// reference is ref.Matmul, a token a time on all cores.
func reference(w, x []uint16, n, k int) []float64 {
	wide, tokens := ref.WidenAll(w), len(x)/k
	y := make([]float64, tokens*n)
	iter.ForEachIdx(make([]struct{}, tokens), func(t int, _ *struct{}) {
		copy(y[t*n:(t+1)*n], ref.Matmul(wide, ref.WidenAll(x[t*k:(t+1)*k]), n, k))
	})
	return y
}

// product runs one of the kernels over a batch and returns y with its padding columns.
func product(r *rig, launch matmul, w driver.Ptr, x []uint16, n, k, tokens, pad int) []float32 {
	r.tb.Helper()
	p := kernels.MatmulParams{
		Count: cudatest.Put(r.tb, r.Device, []int32{int32(tokens)}), W: w,
		X: cudatest.Put(r.tb, r.Device, x[:tokens*k]), Y: cudatest.Make[float32](r.tb, r.Device, (tokens+1)*(n+pad)),
		N: int32(n), K: int32(k), LdY: int32(n + pad), Partial: r.room(), Arrived: r.counters(),
	}
	r.ok(launch(r.Stream, &p, tokens+1))
	return cudatest.Get[float32](r.tb, r.Device, p.Y, (tokens+1)*(n+pad))
}

func TestMatmul(t *testing.T) {
	r := newRig(t, tiny)
	sizes := [][2]int{{1, 8}, {7, 128}, {16, 192}, {65, 264}, {7, 2056}, {130, 1032}, {100, 5224}}
	tokens := []int{0, 1, 2, 3, 5, 8, 9, 17, 33, 70, 200}
	if !r.Simulated {
		sizes = append(sizes, [2]int{4096, 1024}, [2]int{1024, 3072}, [2]int{749, 5120})
		tokens = append(tokens, 64, 65, 129, 300)
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
		want, weights := reference(w, x[:longest*k], n, k), cudatest.Put(t, r.Device, w)
		alone := map[string][]float32{} // first token of the first batch that has one, by the kernels that share their bits
		for name, launch := range products(r.set) {
			family := map[string]string{"gemv": "gemv", "slim deep": "8", "tile deep": "8", "panel deep": "8", "panel in parts deep": "8", "band": "8"}[name]
			if family == "" {
				family = "4"
			}
			for _, count := range tokens {
				if count > longest || name == "band" && count > kernels.MaxBand {
					continue
				}
				y := product(r, launch, weights, x, n, k, count, pad)
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
				if count > 0 && alone[family] == nil {
					alone[family] = slices.Clone(y[:n])
				}
				if count > 0 && !slices.Equal(alone[family], y[:n]) {
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
		if r.set.Gemv(r.Stream, &p, 1) == nil || r.set.Slim(r.Stream, &p, 1, kernels.SlimDeep) == nil ||
			r.set.Tile(r.Stream, &p, 1, kernels.SlimWide) == nil || r.set.Panel(r.Stream, &p, 1, kernels.SlimDeep) == nil {
			t.Errorf("%s: launched", name)
		}
	}
}

// The products that end in the gate against the plain ones and silumul, bit for bit.
func TestGate(t *testing.T) {
	r := newRig(t, odd)
	const n = 1032                                     // F of odd
	for _, k := range []int{8, 136, 520, 1032, 2056} { // of the last two panel makes parts
		w, x := cudatest.Put(t, r.Device, cudatest.BF16s(1, 2*n*k, 1)), cudatest.BF16s(2, 40*k, 1)
		plain := products(r.set)
		gates := map[string]matmul{"gemv": r.set.GemvGate, "band": r.set.BandGate}
		for name, form := range map[string]kernels.SlimForm{"slim deep": kernels.SlimDeep, "slim wide": kernels.SlimWide, "slim thin": kernels.SlimThin} {
			gates[name] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
				return r.set.SlimGate(st, p, tokens, form)
			}
			gates["tile"+name[4:]] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
				return r.set.TileGate(st, p, tokens, form)
			}
			if !r.set.HasPanel() {
				continue
			}
			gates["panel"+name[4:]] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
				q := *p
				q.Partial = 0
				return r.set.PanelGate(st, &q, tokens, form)
			}
			gates["panel in parts"+name[4:]] = func(st *driver.Stream, p *kernels.MatmulParams, tokens int) error {
				return r.set.PanelGate(st, p, tokens, form)
			}
		}
		for name, gate := range gates {
			for _, tokens := range []int{1, 2, 7, 9, 33} {
				if r.Simulated && (tokens*k > 1200 || k == 1032 && name != "panel in parts wide") || name == "band" && tokens >= kernels.MaxBand {
					continue
				}
				head := r.head(kernels.StepHead{Tokens: int32(tokens)})
				p := kernels.MatmulParams{
					Count: head + kernels.HeadTokens, W: w, X: cudatest.Put(t, r.Device, x[:tokens*k]), Y: cudatest.Make[float32](t, r.Device, tokens*2*n),
					N: 2 * n, K: int32(k), LdY: 2 * n, Partial: r.room(), Arrived: r.counters(),
				}
				r.ok(plain[name](r.Stream, &p, tokens))
				s := kernels.SilumulParams{Head: head, GU: p.Y, Out: cudatest.Make[uint16](t, r.Device, tokens*n)}
				r.ok(r.set.Silumul(r.Stream, &s, tokens))
				p.Y, p.LdY = cudatest.Make[uint16](t, r.Device, (tokens+1)*n), n
				r.ok(gate(r.Stream, &p, tokens+1))
				got, want := cudatest.Get[uint16](t, r.Device, p.Y, (tokens+1)*n), cudatest.Get[uint16](t, r.Device, s.Out, tokens*n)
				if !slices.Equal(got[:tokens*n], want) {
					t.Errorf("%s K=%d T=%d: the gate differs from silumul", name, k, tokens)
				}
				for _, v := range got[tokens*n:] {
					if v != 0xffff {
						t.Fatalf("%s K=%d T=%d: a padding row was written", name, k, tokens)
					}
				}
			}
		}
	}
}

// Tiles of band that are claimed are the same to the last bit as those dealt out, and the counter is 0 again.
func TestBandClaims(t *testing.T) {
	r := newRig(t, tiny)
	const k = 2616 // more runs than the ring has places
	n := 208
	if !r.Simulated {
		n = 16 * 132 * 5
	}
	w, x := cudatest.Put(t, r.Device, cudatest.BF16s(1, n*k, 1)), cudatest.Put(t, r.Device, cudatest.BF16s(2, kernels.MaxBand*k, 1))
	claims := cudatest.Put(t, r.Device, []uint32{0})
	for name, launch := range map[string]matmul{"plain": r.set.Band, "gate": r.set.BandGate} {
		for _, tokens := range []int32{0, 3, kernels.MaxBand} {
			p := kernels.MatmulParams{Count: cudatest.Put(t, r.Device, []int32{tokens}), W: w, X: x, N: int32(n), K: k, LdY: int32(n)}
			run := func(claims driver.Ptr) []uint32 {
				p.Claims, p.Y = claims, cudatest.Make[uint32](t, r.Device, kernels.MaxBand*n)
				r.ok(launch(r.Stream, &p, kernels.MaxBand))
				return cudatest.Get[uint32](t, r.Device, p.Y, kernels.MaxBand*n)
			}
			if !slices.Equal(run(claims), run(0)) {
				t.Errorf("%s T=%d: claimed tiles differ", name, tokens)
			}
			if left := cudatest.Get[uint32](t, r.Device, claims, 1); left[0] != 0 {
				t.Fatalf("%s T=%d: the counter is %d", name, tokens, left[0])
			}
		}
	}
}
