//go:build amd64 && !noasm

package cpuexec

import "golang.org/x/sys/cpu"

// bestKernels returns the fastest kernels that this machine runs.
func bestKernels() kernels {
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		k := kernels{"avx2", avxMatvec, avxMatmul4, avxMatvecb, avxMatmul4b, nil, avxWeightedSum, avxExpSum, avxSiluMul}
		if hasAVX512() {
			k.matmul8b = avx512Matmul8b
		}
		return k
	}
	return goKernels()
}

// matvecAVX2 computes y[r] = x · w[r] over the first k elements of rows that are
// ld elements apart. k is a positive multiple of 8, n is not negative.
//
//go:noescape
func matvecAVX2(y, x, w *float32, n, k, ld int)

// matmul4AVX2 does the same for four rows of x, also ld apart; n is even and row
// t of y begins at t·ldy.
//
//go:noescape
func matmul4AVX2(y, x, w *float32, n, k, ld, ldy int)

// matvecbAVX2 is matvecAVX2 with w in bfloat16.
//
//go:noescape
func matvecbAVX2(y, x *float32, w *uint16, n, k, ld int)

// matmul4bAVX2 is matmul4AVX2 with w in bfloat16.
//
//go:noescape
func matmul4bAVX2(y, x *float32, w *uint16, n, k, ld, ldy int)

// weightedSumAVX2 adds Σ_p w[p]·v[p] to out. d is a positive multiple of 8.
//
//go:noescape
func weightedSumAVX2(out, v, w *float32, n, d int)

// expSumAVX2 replaces s[i] by exp(s[i]-m) and returns the sum by lanes. n is a
// positive multiple of 8.
//
//go:noescape
func expSumAVX2(s *float32, n int, m float32) float32

// siluMulAVX2 computes gate[i] = silu(gate[i])·up[i]. n is a positive multiple of 8.
//
//go:noescape
func siluMulAVX2(gate, up *float32, n int)

func avxMatvec(y, x, w []float32, n, k int) {
	if n == 0 {
		return
	}
	// The slice expressions check the bounds that the assembly relies on.
	y, x, w = y[:n], x[:k], w[:n*k]
	body := k &^ (lanes - 1)
	if body > 0 {
		matvecAVX2(&y[0], &x[0], &w[0], n, body, k)
	} else {
		clear(y)
	}
	if body < k {
		for r := range y {
			y[r] = dotTail(y[r], x, w[r*k:r*k+k], body)
		}
	}
}

func avxMatmul4(y, x, w []float32, n, k, ldy int) {
	even := n &^ 1
	// Rows of odd shape go one by one; real models have none.
	if k%lanes != 0 {
		even = 0
	}
	if even > 0 {
		y, x, w := y[:3*ldy+n], x[:4*k], w[:n*k]
		matmul4AVX2(&y[0], &x[0], &w[0], even, k, k, ldy)
	}
	if even < n {
		for t := range 4 {
			avxMatvec(y[t*ldy+even:], x[t*k:], w[even*k:], n-even, k)
		}
	}
}

func avxMatvecb(y, x []float32, w []uint16, n, k int) {
	if n == 0 {
		return
	}
	y, x, w = y[:n], x[:k], w[:n*k]
	body := k &^ (lanes - 1)
	if body > 0 {
		matvecbAVX2(&y[0], &x[0], &w[0], n, body, k)
	} else {
		clear(y)
	}
	if body < k {
		for r := range y {
			y[r] = dotTailb(y[r], x, w[r*k:r*k+k], body)
		}
	}
}

func avxMatmul4b(y, x []float32, w []uint16, n, k, ldy int) {
	even := n &^ 1
	// Rows of odd shape go one by one; real models have none.
	if k%lanes != 0 {
		even = 0
	}
	if even > 0 {
		y, x, w := y[:3*ldy+n], x[:4*k], w[:n*k]
		matmul4bAVX2(&y[0], &x[0], &w[0], even, k, k, ldy)
	}
	if even < n {
		for t := range 4 {
			avxMatvecb(y[t*ldy+even:], x[t*k:], w[even*k:], n-even, k)
		}
	}
}

func avxWeightedSum(out, v, w []float32, n, d int) {
	if d%lanes != 0 {
		goWeightedSum(out, v, w, n, d)
		return
	}
	if n == 0 || d == 0 {
		return
	}
	out, v, w = out[:d], v[:n*d], w[:n]
	weightedSumAVX2(&out[0], &v[0], &w[0], n, d)
}

func avxExpSum(s []float32, m float32) float32 {
	body := len(s) &^ (lanes - 1)
	sum := float32(0)
	if body > 0 {
		sum = expSumAVX2(&s[0], body, m)
	}
	for i := body; i < len(s); i++ {
		s[i] = exp32(s[i] - m)
		sum += s[i]
	}
	return sum
}

func avxSiluMul(g, u []float32) {
	u = u[:len(g)]
	body := len(g) &^ (lanes - 1)
	if body > 0 {
		siluMulAVX2(&g[0], &u[0], body)
	}
	goSiluMul(g[body:], u[body:])
}
