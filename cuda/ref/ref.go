package ref

import (
	"cmp"
	"math"
	"slices"
)

// BF16 rounds to bfloat16, to nearest even, and gives the raw bits.
func BF16(v float32) uint16 {
	u := math.Float32bits(v)
	if u&0x7fffffff > 0x7f800000 {
		return 0x7fff
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// Widen gives the value of raw bfloat16 bits.
func Widen(b uint16) float64 { return float64(math.Float32frombits(uint32(b) << 16)) }

// WidenAll widens a slice.
func WidenAll(b []uint16) []float64 {
	out := make([]float64, len(b))
	for i, v := range b {
		out[i] = Widen(v)
	}
	return out
}

// Rmsnorm returns x / sqrt(mean(x^2) + eps) * weight for one row.
func Rmsnorm(x, weight []float64, eps float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	inv := 1 / math.Sqrt(sum/float64(len(x))+eps)
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v * inv * weight[i]
	}
	return out
}

// Rope rotates a head in place at a position; element i pairs with i + D/2.
func Rope(x []float64, pos int, theta float64) {
	half := len(x) / 2
	for i := range half {
		angle := float64(pos) * math.Pow(theta, -float64(i)/float64(half))
		sin, cos := math.Sincos(angle)
		a, b := x[i], x[i+half]
		x[i], x[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

// Attend returns softmax(scale * q . keys) values for one query head over n positions, [n][D] each.
func Attend(q []float64, keys, values [][]float64, scale float64) []float64 {
	scores, best := make([]float64, len(keys)), math.Inf(-1)
	for i, k := range keys {
		for j, v := range q {
			scores[i] += v * k[j]
		}
		scores[i] *= scale
		best = max(best, scores[i])
	}
	out, sum := make([]float64, len(q)), 0.0
	for i, s := range scores {
		e := math.Exp(s - best)
		sum += e
		for j, v := range values[i] {
			out[j] += e * v
		}
	}
	for j := range out {
		out[j] /= sum
	}
	return out
}

// Matmul returns y[t][n] = sum_k w[n][k] x[t][k], flat and row-major.
func Matmul(w, x []float64, n, k int) []float64 {
	tokens := len(x) / k
	y := make([]float64, tokens*n)
	for t := range tokens {
		for i := range n {
			sum := 0.0
			for j := range k {
				sum += w[i*k+j] * x[t*k+j]
			}
			y[t*n+i] = sum
		}
	}
	return y
}

// Silumul returns silu(gate) * up.
func Silumul(gate, up []float64) []float64 {
	out := make([]float64, len(gate))
	for i, g := range gate {
		out[i] = g / (1 + math.Exp(-g)) * up[i]
	}
	return out
}

// Stats are the features of one row of logits.
type Stats struct {
	Max, LSE, Entropy, Margin float64
	ArgMax                    int
	// Order lists all ids by (logit descending, id ascending).
	Order []int
}

// Logitstats computes the features of one row.
func Logitstats(z []float32) Stats {
	s := Stats{Order: make([]int, len(z))}
	for i := range z {
		s.Order[i] = i
	}
	slices.SortFunc(s.Order, func(a, b int) int {
		return cmp.Or(cmp.Compare(z[b], z[a]), cmp.Compare(a, b))
	})
	s.ArgMax = s.Order[0]
	s.Max = float64(z[s.ArgMax])
	s.Margin = math.Inf(1)
	if len(z) > 1 {
		s.Margin = s.Max - float64(z[s.Order[1]])
	}
	var sum, moment float64
	for _, v := range z {
		d := float64(v) - s.Max
		if e := math.Exp(d); e > 0 {
			sum += e
			moment += d * e
		}
	}
	s.LSE, s.Entropy = s.Max+math.Log(sum), math.Log(sum)-moment/sum
	return s
}
