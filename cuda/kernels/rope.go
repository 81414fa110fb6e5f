package kernels

import "math"

// RopeTable gives cosine and sine of every position and pair, [positions][D/2][2], computed in float64.
func RopeTable(positions, headDim int, theta float64) []float32 {
	half := headDim / 2
	inverse := make([]float64, half)
	for i := range inverse {
		inverse[i] = math.Pow(theta, -float64(i)/float64(half))
	}
	out := make([]float32, 0, positions*headDim)
	for pos := range positions {
		for _, f := range inverse {
			sin, cos := math.Sincos(float64(pos) * f)
			out = append(out, float32(cos), float32(sin))
		}
	}
	return out
}
