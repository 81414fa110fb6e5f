package cudatest

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/tokenrouter/tokenrouter/cuda/ref"
)

// Close compares vectors: the norm of the difference over the norm of want must be at most relative, and no element may
// be NaN where want is a number. It returns an empty string or what is wrong.
func Close(got, want []float64, relative float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d values, want %d", len(got), len(want))
	}
	var diff, norm, worst float64
	at := 0
	for i, w := range want {
		if math.IsNaN(got[i]) || math.IsInf(got[i], 0) {
			return fmt.Sprintf("element %d is %v, want %v", i, got[i], w)
		}
		e := math.Abs(got[i] - w)
		if e > worst {
			worst, at = e, i
		}
		diff += e * e
		norm += w * w
	}
	if r := math.Sqrt(diff / max(norm, 1e-300)); diff > 0 && !(r <= relative) {
		return fmt.Sprintf("relative error %.3g, limit %.3g; worst element %d is %v, want %v", r, relative, at, got[at], want[at])
	}
	return ""
}

// Floats widens float32 values.
func Floats(v []float32) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// Normals gives n normal numbers from a seed, none of them zero.
func Normals(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	out := make([]float32, n)
	for i := range out {
		out[i] = float32(r.NormFloat64())
		if out[i] == 0 {
			out[i] = 1
		}
	}
	return out
}

// BF16s gives n normal numbers times scale, as raw bfloat16.
func BF16s(seed uint64, n int, scale float32) []uint16 {
	out := make([]uint16, n)
	for i, v := range Normals(seed, n) {
		out[i] = ref.BF16(v * scale)
	}
	return out
}
