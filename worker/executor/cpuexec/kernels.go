package cpuexec

import "math"

// lanes is the number of partial sums of one dot product. Element i goes to sum
// i mod lanes; the sums are added as ((0+1)+(2+3)) + ((4+5)+(6+7)); elements
// after the last whole group of lanes are added one by one.
const lanes = 8

// kernels are the inner loops. All implementations share the order of sums
// within themselves: matmul4 gives the bits of matvec.
type kernels struct {
	name string
	// matvec computes y[r] = x · w[r] for w [n, k].
	matvec func(y, x, w []float32, n, k int)
	// matmul4 computes y[t][r] = x[t] · w[r] for four rows of x [4, k] and w [n, k];
	// row t of y begins at t·ldy.
	matmul4 func(y, x, w []float32, n, k, ldy int)
	// matvecb and matmul4b are the same with w in bfloat16. They give the bits that
	// the float32 kernels give for the widened weights.
	matvecb  func(y, x []float32, w []uint16, n, k int)
	matmul4b func(y, x []float32, w []uint16, n, k, ldy int)
	// matmul8b is matmul4b for eight rows of x, packed by pack8, and with the same
	// bits. n is a multiple of 4, k of 8. Nil where it would not be faster.
	matmul8b func(y, x []float32, w []uint16, n, k, ldy int)
	// weightedSum adds Σ_p w[p]·v[p] to out [d] for v [n, d], p ascending.
	weightedSum func(out, v, w []float32, n, d int)
	// expSum replaces s[i] by exp(s[i]-m) and returns the sum. s[i] must not exceed m.
	expSum func(s []float32, m float32) float32
	// siluMul computes g[i] = silu(g[i]) · u[i].
	siluMul func(g, u []float32)
}

// goKernels are the plain loops, for machines without AVX2 and as the second
// opinion in tests. The conversions to float32 forbid fused multiply-add, which
// the compiler could use in one place and not in another.
func goKernels() kernels {
	return kernels{"go", goMatvec, goMatmul4, goMatvecb, goMatmul4b, nil, goWeightedSum, goExpSum, goSiluMul}
}

func goDot(x, w []float32) float32 {
	var a [lanes]float32
	n := len(x) &^ (lanes - 1)
	w = w[:len(x)]
	for i := 0; i < n; i += lanes {
		xs, ws := x[i:i+lanes:i+lanes], w[i:i+lanes:i+lanes]
		a[0] += float32(xs[0] * ws[0])
		a[1] += float32(xs[1] * ws[1])
		a[2] += float32(xs[2] * ws[2])
		a[3] += float32(xs[3] * ws[3])
		a[4] += float32(xs[4] * ws[4])
		a[5] += float32(xs[5] * ws[5])
		a[6] += float32(xs[6] * ws[6])
		a[7] += float32(xs[7] * ws[7])
	}
	return dotTail(foldLanes(&a), x, w, n)
}

func foldLanes(a *[lanes]float32) float32 {
	return ((a[0] + a[1]) + (a[2] + a[3])) + ((a[4] + a[5]) + (a[6] + a[7]))
}

// dotTail adds the products from n on, one by one.
func dotTail(sum float32, x, w []float32, n int) float32 {
	for i := n; i < len(x); i++ {
		sum += float32(x[i] * w[i])
	}
	return sum
}

func goMatvec(y, x, w []float32, n, k int) {
	for r := range n {
		y[r] = goDot(x[:k], w[r*k:r*k+k])
	}
}

func goMatmul4(y, x, w []float32, n, k, ldy int) {
	for t := range 4 {
		goMatvec(y[t*ldy:], x[t*k:], w, n, k)
	}
}

// pack8 brings rows of x [n, k] into the order of matmul8b: by eight rows, in these
// by eight columns. n and k are multiples of 8.
func pack8(dst, x []float32, n, k int) {
	for t := 0; t < n; t += 8 {
		for row := range 8 {
			from, to := x[(t+row)*k:(t+row+1)*k], dst[t*k+row*8:]
			for i := 0; i < k; i += 8 {
				*(*[8]float32)(to[i*8:]) = [8]float32(from[i:])
			}
		}
	}
}

func goDotb(x []float32, w []uint16) float32 {
	var a [lanes]float32
	n := len(x) &^ (lanes - 1)
	w = w[:len(x)]
	for i := 0; i < n; i += lanes {
		xs, ws := x[i:i+lanes:i+lanes], w[i:i+lanes:i+lanes]
		a[0] += float32(xs[0] * widen(ws[0]))
		a[1] += float32(xs[1] * widen(ws[1]))
		a[2] += float32(xs[2] * widen(ws[2]))
		a[3] += float32(xs[3] * widen(ws[3]))
		a[4] += float32(xs[4] * widen(ws[4]))
		a[5] += float32(xs[5] * widen(ws[5]))
		a[6] += float32(xs[6] * widen(ws[6]))
		a[7] += float32(xs[7] * widen(ws[7]))
	}
	return dotTailb(foldLanes(&a), x, w, n)
}

func dotTailb(sum float32, x []float32, w []uint16, n int) float32 {
	for i := n; i < len(x); i++ {
		sum += float32(x[i] * widen(w[i]))
	}
	return sum
}

func goMatvecb(y, x []float32, w []uint16, n, k int) {
	for r := range n {
		y[r] = goDotb(x[:k], w[r*k:r*k+k])
	}
}

func goMatmul4b(y, x []float32, w []uint16, n, k, ldy int) {
	for t := range 4 {
		goMatvecb(y[t*ldy:], x[t*k:], w, n, k)
	}
}

func goWeightedSum(out, v, w []float32, n, d int) {
	out = out[:d]
	for p := range n {
		row, f := v[p*d:p*d+d], w[p]
		for i := range out {
			out[i] += float32(f * row[i])
		}
	}
}

func goExpSum(s []float32, m float32) float32 {
	var a [lanes]float32
	n := len(s) &^ (lanes - 1)
	for i := range n {
		s[i] = exp32(s[i] - m)
		a[i%lanes] += s[i]
	}
	sum := foldLanes(&a)
	for i := n; i < len(s); i++ {
		s[i] = exp32(s[i] - m)
		sum += s[i]
	}
	return sum
}

func goSiluMul(g, u []float32) {
	for i, x := range g {
		g[i] = x / (1 + exp32(-x)) * u[i]
	}
}

// The parts of exp32, shared with the assembly: ln 2 in two parts, and the
// minimax polynomial of e^r on [-ln2/2, ln2/2] from the Cephes library.
const (
	expMin  = -87.33654
	expMax  = 88.02969
	log2e   = 1.44269504088896341
	ln2High = 0.693359375
	ln2Low  = -2.12194440e-4
	expC0   = 1.9875691500e-4
	expC1   = 1.3981999507e-3
	expC2   = 8.3334519073e-3
	expC3   = 4.1665795894e-2
	expC4   = 1.6666665459e-1
	expC5   = 5.0000001201e-1
)

// exp32 is e^x to about 2 units in the last place. Arguments are clamped to the
// range of normal float32 numbers.
func exp32(x float32) float32 {
	x = min(max(x, expMin), expMax)
	n := float32(math.RoundToEven(float64(x * log2e)))
	r := x - float32(n*ln2High)
	r -= float32(n * ln2Low)
	p := float32(expC0)
	p = float32(p*r) + expC1
	p = float32(p*r) + expC2
	p = float32(p*r) + expC3
	p = float32(p*r) + expC4
	p = float32(p*r) + expC5
	p = float32(p*float32(r*r)) + r + 1
	return p * math.Float32frombits(uint32(int32(n)+127)<<23)
}
