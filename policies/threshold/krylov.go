package threshold

import (
	"context"
	"fmt"
	"math"
)

// tolerance is the largest residual, relative, of a stationary law.
const tolerance = 1e-13

// goodEnough is the residual that is accepted when rounding allows no better.
const goodEnough = 1e-10

// A Krylov space grows to krylovDepth vectors at first, and to twice as many at
// each restart, as long as the work to keep them apart is small: some chains mix
// slowly and need deep ones.
const (
	krylovDepth    = 40
	krylovWork     = 50_000_000
	krylovRestarts = 400
)

// stepper applies a linear map to a vector: the step of a chain, out = in·Q, or a
// sweep that solves for it (inflow). It overwrites out.
type stepper func(in, out []float64)

// stationary returns the law π that step leaves as it is, for a chain with one
// closed class, from pi on, which it overwrites. It solves (I − G + v·1ᵀ) π = v, v
// uniform, for the step's matrix G, by GMRES with restarts. If Gπ = π and Σπ = 1 that
// holds, and there is no other solution: multiplying by the one row w with wG = w
// leaves (w·v)·Σπ = w·v, and w·v > 0, as w is positive (all 1 for the step of a chain,
// 1ᵀ(D − L) for a sweep, where I − Qᵀ = D − L − U). A periodic chain needs no care
// here, where repeated steps would never settle.
func stationary(ctx context.Context, pi []float64, step stepper) ([]float64, error) {
	size := len(pi)
	v := 1 / float64(size)
	mul := func(in, out []float64) {
		step(in, out)
		var sum float64
		for _, x := range in {
			sum += x
		}
		for k := range out {
			out[k] = in[k] - out[k] + v*sum
		}
	}
	depth := min(krylovDepth, size+1)
	g := newGMRES(size, depth)
	goal := math.Sqrt(v) // norm of the right side
	last := math.Inf(1)
	for restart := range krylovRestarts {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		mul(pi, g.work)
		for k := range g.work {
			g.work[k] = v - g.work[k]
		}
		residual := norm(g.work) / goal
		if residual < tolerance || residual < goodEnough && residual > 0.5*last {
			return normalised(pi), nil
		}
		last = residual
		if deeper := min(2*depth, size+1); restart > 0 && deeper > depth && deeper*deeper*size < krylovWork {
			depth = deeper
			g.deepen(depth)
		}
		g.improve(ctx, pi, mul, tolerance*goal)
	}
	return nil, fmt.Errorf("stationary law of %d states: residual %.1e after %d restarts", size, last, krylovRestarts)
}

// gmres holds the arrays of one solve.
type gmres struct {
	depth    int
	work     []float64
	basis    [][]float64
	hess     [][]float64 // hess[j] is column j
	cos, sin []float64
	rhs      []float64
}

func newGMRES(size, depth int) *gmres {
	g := &gmres{work: make([]float64, size)}
	g.deepen(depth)
	return g
}

// deepen makes room for a space of depth vectors; work stays as it is.
func (g *gmres) deepen(depth int) {
	g.depth = depth
	g.basis = append(g.basis, make([][]float64, depth+1-len(g.basis))...)
	g.hess = make([][]float64, depth)
	for j := range g.hess {
		g.hess[j] = make([]float64, j+2)
	}
	g.cos, g.sin, g.rhs = make([]float64, depth), make([]float64, depth), make([]float64, depth+1)
}

// improve adds to x the best correction within one Krylov space; work has the
// residual of x. It ends early when ctx does.
func (g *gmres) improve(ctx context.Context, x []float64, mul stepper, goal float64) {
	beta := norm(g.work)
	if beta == 0 {
		return
	}
	g.rhs[0] = beta
	g.put(0, g.work, beta)
	j := 0
	for ; j < g.depth && math.Abs(g.rhs[j]) > goal/2 && ctx.Err() == nil; j++ {
		mul(g.basis[j], g.work)
		h := g.hess[j]
		for i := range j + 1 {
			h[i] = dot(g.basis[i], g.work)
			axpy(-h[i], g.basis[i], g.work)
		}
		h[j+1] = norm(g.work)
		if h[j+1] > 0 {
			g.put(j+1, g.work, h[j+1])
		}
		for i := range j {
			h[i], h[i+1] = g.cos[i]*h[i]+g.sin[i]*h[i+1], g.cos[i]*h[i+1]-g.sin[i]*h[i]
		}
		r := math.Hypot(h[j], h[j+1])
		if r == 0 {
			break
		}
		g.cos[j], g.sin[j] = h[j]/r, h[j+1]/r
		stop := h[j+1] == 0
		h[j] = r
		g.rhs[j], g.rhs[j+1] = g.cos[j]*g.rhs[j], -g.sin[j]*g.rhs[j]
		if stop {
			j++
			break
		}
	}
	for i := j - 1; i >= 0; i-- {
		for k := i + 1; k < j; k++ {
			g.rhs[i] -= g.hess[k][i] * g.rhs[k]
		}
		g.rhs[i] /= g.hess[i][i]
	}
	for i := range j {
		axpy(g.rhs[i], g.basis[i], x)
	}
}

// put stores v/scale as basis vector j.
func (g *gmres) put(j int, v []float64, scale float64) {
	if g.basis[j] == nil {
		g.basis[j] = make([]float64, len(v))
	}
	for k, x := range v {
		g.basis[j][k] = x / scale
	}
}

func norm(v []float64) float64 { return math.Sqrt(dot(v, v)) }

// dot keeps four sums, so that an addition need not wait for the one before.
func dot(a, b []float64) float64 {
	var s0, s1, s2, s3 float64
	b = b[:len(a)]
	for ; len(a) >= 4 && len(b) >= 4; a, b = a[4:], b[4:] {
		s0 += a[0] * b[0]
		s1 += a[1] * b[1]
		s2 += a[2] * b[2]
		s3 += a[3] * b[3]
	}
	for k, x := range a {
		s0 += x * b[k]
	}
	return s0 + s1 + s2 + s3
}

// axpy adds a·x to the first values of y.
func axpy(a float64, x, y []float64) {
	y = y[:len(x)]
	for k, v := range x {
		y[k] += a * v
	}
}

// normalised takes rounding's small negatives out of a law.
func normalised(pi []float64) []float64 {
	for k, x := range pi {
		pi[k] = max(0, x)
	}
	normalise(pi)
	return pi
}

// normalise lets a law sum to 1.
func normalise(pi []float64) {
	var sum float64
	for _, x := range pi {
		sum += x
	}
	scale := 1 / sum
	for k := range pi {
		pi[k] *= scale
	}
}
