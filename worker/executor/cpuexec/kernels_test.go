package cpuexec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// both are the kernels of this machine and the plain ones.
func both() []kernels {
	ks := []kernels{goKernels()}
	if best := bestKernels(); best.name != "go" {
		ks = append(ks, best)
	}
	return ks
}

func randoms(rng *rand.Rand, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(rng.NormFloat64())
	}
	return out
}

// guarded returns n NaNs with guard words behind them.
func guarded(n int) []float32 {
	out := make([]float32, n+4)
	for i := range out {
		out[i] = float32(math.NaN())
	}
	return out
}

func checkGuard(t *testing.T, y []float32, n int) {
	t.Helper()
	for i, v := range y[n:] {
		if v == v {
			t.Errorf("guard word %d overwritten with %v", i, v)
		}
	}
}

func TestMatvec(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, k := range both() {
		for _, n := range []int{0, 1, 2, 7, 8, 9, 31} {
			for _, dim := range []int{1, 7, 8, 9, 20, 64, 129} {
				x, w, y := randoms(rng, dim), randoms(rng, n*dim), guarded(n)
				k.matvec(y, x, w, n, dim)
				checkGuard(t, y, n)
				for r := range n {
					want, size := 0.0, 0.0
					for i := range dim {
						p := float64(x[i]) * float64(w[r*dim+i])
						want += p
						size += math.Abs(p)
					}
					if math.Abs(float64(y[r])-want) > 1e-6*size {
						t.Errorf("%s n=%d k=%d row %d: %v, want %v", k.name, n, dim, r, y[r], want)
					}
				}
				// A row's bits do not depend on how many rows there are.
				one := guarded(1)
				for r := range n {
					k.matvec(one, x, w[r*dim:], 1, dim)
					if one[0] != y[r] {
						t.Errorf("%s n=%d k=%d row %d: %v alone, %v together", k.name, n, dim, r, one[0], y[r])
					}
				}
			}
		}
	}
}

func TestMatmul4HasTheBitsOfMatvec(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, k := range both() {
		for _, n := range []int{1, 2, 3, 8, 11} {
			for _, dim := range []int{1, 7, 8, 20, 64, 131} {
				ldy := n + 3
				x, w, y := randoms(rng, 4*dim), randoms(rng, n*dim), guarded(3*ldy+n)
				k.matmul4(y, x, w, n, dim, ldy)
				checkGuard(t, y, 3*ldy+n)
				for row := range 4 {
					want := guarded(n)
					k.matvec(want, x[row*dim:], w, n, dim)
					if got := y[row*ldy : row*ldy+n]; !slices.Equal(got, want[:n]) {
						t.Errorf("%s n=%d k=%d row %d: %v, want %v", k.name, n, dim, row, got, want[:n])
					}
					if row < 3 {
						for i := n; i < ldy; i++ {
							if v := y[row*ldy+i]; v == v {
								t.Errorf("%s n=%d k=%d: wrote between rows", k.name, n, dim)
							}
						}
					}
				}
			}
		}
	}
}

// TestMatmul8HasTheBitsOfMatvec also checks what is around the results.
func TestMatmul8HasTheBitsOfMatvec(t *testing.T) {
	k := bestKernels()
	if k.matmul8b == nil {
		t.Skip("this machine has no such kernel")
	}
	rng := rand.New(rand.NewPCG(1, 9))
	for _, n := range []int{0, 4, 8, 12, 32} {
		for _, dim := range []int{8, 16, 64, 136} {
			ldy := n + 3
			x, w, y := randoms(rng, 8*dim), make([]uint16, n*dim), guarded(7*ldy+n)
			for i, v := range randoms(rng, n*dim) {
				w[i] = uint16(math.Float32bits(v) >> 16)
			}
			packed := make([]float32, 8*dim)
			pack8(packed, x, 8, dim)
			k.matmul8b(y, packed, w, n, dim, ldy)
			checkGuard(t, y, 7*ldy+n)
			for row := range 8 {
				want := guarded(n)
				k.matvecb(want, x[row*dim:], w, n, dim)
				if got := y[row*ldy : row*ldy+n]; !slices.Equal(got, want[:n]) {
					t.Errorf("n=%d k=%d row %d: %v, want %v", n, dim, row, got, want[:n])
				}
				for i := n; row < 7 && i < ldy; i++ {
					if v := y[row*ldy+i]; v == v {
						t.Errorf("n=%d k=%d: wrote between rows", n, dim)
					}
				}
			}
		}
	}
}

// TestMatmulDoesNotDependOnTheBatch compares every number of tokens with one
// token at a time, for rows that fit no block.
func TestMatmulDoesNotDependOnTheBatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 10))
	for _, k := range both() {
		for _, cols := range []int{24, 21} {
			const rows = 45
			w := matrix{rows: rows, cols: cols, bf16: make([]uint16, rows*cols)}
			for i, v := range randoms(rng, rows*cols) {
				w.bf16[i] = uint16(math.Float32bits(v) >> 16)
			}
			for n := 1; n <= 21; n++ {
				f := &forward{k: k, team: newTeam(1), packed: guarded(n * cols)[:n*cols]}
				f.mm.f = f
				x, y, want := randoms(rng, n*cols), guarded(n*rows), guarded(rows)
				f.matmul(y, x, &w, n)
				checkGuard(t, y, n*rows)
				for row := range n {
					k.matvecb(want, x[row*cols:(row+1)*cols], w.bf16, rows, cols)
					if !slices.Equal(y[row*rows:(row+1)*rows], want[:rows]) {
						t.Errorf("%s cols=%d n=%d: row %d differs", k.name, cols, n, row)
					}
				}
				f.team.stop()
			}
		}
	}
}

// TestBfloat16HasTheBitsOfFloat32 compares the bfloat16 kernels with the float32
// kernels over widened weights.
func TestBfloat16HasTheBitsOfFloat32(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	for _, k := range both() {
		for _, n := range []int{0, 1, 2, 3, 8, 11} {
			for _, dim := range []int{1, 7, 8, 20, 64, 131} {
				x, w := randoms(rng, 4*dim), make([]float32, n*dim)
				narrow := make([]uint16, n*dim)
				for i, v := range randoms(rng, n*dim) {
					narrow[i] = uint16(math.Float32bits(v) >> 16)
					w[i] = widen(narrow[i])
				}
				want, got := guarded(n), guarded(n)
				k.matvec(want, x, w, n, dim)
				k.matvecb(got, x, narrow, n, dim)
				checkGuard(t, got, n)
				if !slices.Equal(got[:n], want[:n]) {
					t.Errorf("%s matvec n=%d k=%d: %v, want %v", k.name, n, dim, got[:n], want[:n])
				}
				ldy := n + 1
				want, got = make([]float32, 4*ldy), make([]float32, 4*ldy)
				k.matmul4(want, x, w, n, dim, ldy)
				k.matmul4b(got, x, narrow, n, dim, ldy)
				if !slices.Equal(got, want) {
					t.Errorf("%s matmul4 n=%d k=%d: %v, want %v", k.name, n, dim, got, want)
				}
			}
		}
	}
}

func TestWeightedSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for _, k := range both() {
		for _, n := range []int{0, 1, 2, 16, 33} {
			for _, d := range []int{2, 6, 8, 24, 64, 72, 128, 200} {
				v, w := randoms(rng, n*d), randoms(rng, n)
				out := guarded(d)
				start := randoms(rng, d)
				copy(out, start)
				k.weightedSum(out, v, w, n, d)
				checkGuard(t, out, d)
				for i := range d {
					want, size := float64(start[i]), math.Abs(float64(start[i]))
					for p := range n {
						want += float64(w[p]) * float64(v[p*d+i])
						size += math.Abs(float64(w[p]) * float64(v[p*d+i]))
					}
					if math.Abs(float64(out[i])-want) > 1e-5*size {
						t.Errorf("%s n=%d d=%d column %d: %v, want %v", k.name, n, d, i, out[i], want)
					}
				}
				// Going on from page to page gives the same bits.
				split := slices.Clone(start)
				for at := 0; at < n; at += 5 {
					m := min(5, n-at)
					k.weightedSum(split, v[at*d:], w[at:], m, d)
				}
				if !slices.Equal(split, out[:d]) {
					t.Errorf("%s n=%d d=%d: pieces differ", k.name, n, d)
				}
			}
		}
	}
}

func TestExpSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	for _, k := range both() {
		for _, n := range []int{1, 7, 8, 9, 24, 1001} {
			s := guarded(n)
			in := make([]float64, n)
			m := float32(3)
			for i := range n {
				s[i] = m - float32(rng.ExpFloat64()*12)
				in[i] = float64(s[i])
			}
			s[n-1], in[n-1] = m, float64(m)
			sum := k.expSum(s[:n], m)
			checkGuard(t, s, n)
			total := 0.0
			for i := range n {
				want := math.Exp(in[i] - float64(m))
				total += want
				if math.Abs(float64(s[i])-want) > 3e-7*want+1e-37 {
					t.Errorf("%s n=%d: exp(%v) = %v, want %v", k.name, n, in[i]-float64(m), s[i], want)
				}
			}
			if math.Abs(float64(sum)-total) > 1e-5*total {
				t.Errorf("%s n=%d: sum %v, want %v", k.name, n, sum, total)
			}
		}
	}
}

func TestExpSumEdges(t *testing.T) {
	ninf := float32(math.Inf(-1))
	for _, k := range both() {
		s := make([]float32, 11)
		for i := range s {
			s[i] = ninf
		}
		s[4] = -100
		if sum := k.expSum(s, 0); !(sum >= 0 && sum < 1e-36) {
			t.Errorf("%s: sum %v, want about 0", k.name, sum)
		}
	}
}

func TestSiluMul(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 5))
	for _, k := range both() {
		for _, n := range []int{1, 7, 8, 20, 64} {
			g, u := guarded(n), randoms(rng, n)
			want := make([]float64, n)
			for i := range n {
				g[i] = float32(rng.NormFloat64() * 20)
				x := float64(g[i])
				want[i] = x / (1 + math.Exp(-x)) * float64(u[i])
			}
			g[0] = -300 // beyond the range of exp
			want[0] = 0
			k.siluMul(g[:n], u)
			checkGuard(t, g, n)
			for i := range n {
				if math.Abs(float64(g[i])-want[i]) > 1e-6*math.Abs(want[i])+1e-30 {
					t.Errorf("%s n=%d: %v, want %v", k.name, n, g[i], want[i])
				}
			}
		}
	}
}

func TestKernelsAgree(t *testing.T) {
	ks := both()
	if len(ks) == 1 {
		t.Skip("this machine has the plain kernels only")
	}
	rng := rand.New(rand.NewPCG(1, 6))
	x, w := randoms(rng, 256), randoms(rng, 64*256)
	a, b := make([]float32, 64), make([]float32, 64)
	ks[0].matvec(a, x, w, 64, 256)
	ks[1].matvec(b, x, w, 64, 256)
	if d := distance(a, b); d > 1e-6 {
		t.Errorf("distance %.2g", d)
	}
}

func BenchmarkMatvec(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 7))
	for _, k := range both() {
		b.Run(fmt.Sprintf("%s/512x512", k.name), func(b *testing.B) {
			x, w, y := randoms(rng, 512), randoms(rng, 512*512), make([]float32, 512)
			for b.Loop() {
				k.matvec(y, x, w, 512, 512)
			}
			b.ReportMetric(2*512*512*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(fmt.Sprintf("%s/512x512/bf16", k.name), func(b *testing.B) {
			x, w, y := randoms(rng, 512), make([]uint16, 512*512), make([]float32, 512)
			for b.Loop() {
				k.matvecb(y, x, w, 512, 512)
			}
			b.ReportMetric(2*512*512*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(fmt.Sprintf("%s/4x512x512", k.name), func(b *testing.B) {
			x, w, y := randoms(rng, 4*512), randoms(rng, 512*512), make([]float32, 4*512)
			for b.Loop() {
				for r := 0; r < 512; r += 32 {
					k.matmul4(y[r:], x, w[r*512:], 32, 512, 512)
				}
			}
			b.ReportMetric(8*512*512*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
