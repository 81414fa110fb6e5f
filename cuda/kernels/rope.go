package kernels

import "math"

// RopeTable gives cosine and sine of every position and pair, [positions][D/2][2], computed in float64. inverse are the D/2
// frequencies in radians a position.
func RopeTable(positions int, inverse []float64) []float32 {
	out := make([]float32, 0, 2*positions*len(inverse))
	for pos := range positions {
		for _, f := range inverse {
			sin, cos := math.Sincos(float64(pos) * f)
			out = append(out, float32(cos), float32(sin))
		}
	}
	return out
}
