package threshold

import (
	"context"
	"math"
)

// seidelSweeps is how many sweeps are tried before they are accelerated. Most
// chains need fewer.
const seidelSweeps = 60

// inflow is one closed class of a chain by columns: state j is entered from
// from[k] with probability prob[k] for k in [cols[j], cols[j+1]), and keeps to
// itself with probability stay[j].
type inflow struct {
	cols []int
	from []int32
	prob []float64
	stay []float64
}

// law is the stationary law, by Gauss–Seidel sweeps in the order of the states.
// States are numbered as they were found, along the flow of time, so that a sweep
// carries a change through all that follows from it, where a step of the chain
// carries it one event further. Where sweeps alone gain little, GMRES combines them:
// the law is the fixed point of a sweep, which takes the place of the chain's step.
func (f *inflow) law(ctx context.Context) ([]float64, error) {
	pi := uniform(len(f.stay))
	if len(pi) == 1 {
		return pi, nil
	}
	goal := tolerance / math.Sqrt(float64(len(pi)))
	for last, k := math.Inf(1), 0; k < seidelSweeps; k++ {
		change := math.Sqrt(f.sweep(pi))
		normalise(pi)
		// The change is at least what the sweep has left to do, and the distance from
		// the law that times r/(1−r) if every sweep lessens it by r.
		if r := change / last; r < 1 && change*max(1, r/(1-r)) < goal {
			return pi, nil
		}
		last = change
	}
	return stationary(ctx, pi, func(in, out []float64) {
		copy(out, in)
		f.sweep(out)
	})
}

// sweep solves for every state in turn. It returns the sum of the squared changes.
func (f *inflow) sweep(pi []float64) (change float64) {
	from, prob := f.from, f.prob[:len(f.from)]
	k := 0
	for j, stay := range f.stay {
		var in float64
		for end := f.cols[j+1]; k < end; k++ {
			in += pi[from[k]] * prob[k]
		}
		in /= 1 - stay
		d := in - pi[j]
		change += d * d
		pi[j] = in
	}
	return change
}

// inflow is the class of the given members, which local numbers.
func (h *chain) inflow(members, local []int32) *inflow {
	n := len(members)
	f := &inflow{cols: make([]int, n+1), stay: make([]float64, n)}
	for _, s := range members {
		for e := h.rows[s]; e < h.rows[s+1]; e++ {
			if h.to[e] != s {
				f.cols[local[h.to[e]]+1]++
			}
		}
	}
	for j := range n {
		f.cols[j+1] += f.cols[j]
	}
	f.from, f.prob = make([]int32, f.cols[n]), make([]float64, f.cols[n])
	next := append([]int(nil), f.cols[:n]...)
	for k, s := range members {
		for e := h.rows[s]; e < h.rows[s+1]; e++ {
			if h.to[e] == s {
				f.stay[k] += h.prob[e]
				continue
			}
			j := local[h.to[e]]
			f.from[next[j]], f.prob[next[j]] = int32(k), h.prob[e]
			next[j]++
		}
	}
	return f
}

// uniform is the law that gives all states the same.
func uniform(size int) []float64 {
	pi := make([]float64, size)
	for k := range pi {
		pi[k] = 1 / float64(size)
	}
	return pi
}
