package ref

import (
	"math"
	"testing"
)

func TestBF16(t *testing.T) {
	for _, c := range []struct {
		in   float32
		want uint16
	}{
		{0, 0}, {1, 0x3f80}, {-1, 0xbf80}, {1.00390625, 0x3f80}, {1.01171875, 0x3f82}, {float32(math.NaN()), 0x7fff},
		{float32(math.Inf(1)), 0x7f80}, {math.MaxFloat32, 0x7f80},
	} {
		if got := BF16(c.in); got != c.want {
			t.Errorf("BF16(%v) = %#x, want %#x", c.in, got, c.want)
		}
	}
	if Widen(0x3f81) != 1.0078125 {
		t.Error("Widen")
	}
}

func TestClosedForms(t *testing.T) {
	x := []float64{3, 4}
	Rope(x, 1, 1)
	if math.Abs(x[0]-(3*math.Cos(1)-4*math.Sin(1))) > 1e-12 || math.Abs(math.Hypot(x[0], x[1])-5) > 1e-12 {
		t.Errorf("Rope = %v", x)
	}
	if got := Rmsnorm([]float64{2, 2}, []float64{1, 3}, 0); got[0] != 1 || got[1] != 3 {
		t.Errorf("Rmsnorm = %v", got)
	}
	v := [][]float64{{1}, {3}}
	if got := Attend([]float64{0}, [][]float64{{5}, {7}}, v, 1); got[0] != 2 {
		t.Errorf("Attend = %v, want the mean", got)
	}
	if got := Matmul([]float64{1, 2, 3, 4}, []float64{5, 6}, 2, 2); got[0] != 17 || got[1] != 39 {
		t.Errorf("Matmul = %v", got)
	}
	s := Logitstats([]float32{1, 1, 1, 1})
	if math.Abs(s.Entropy-math.Log(4)) > 1e-12 || s.ArgMax != 0 || s.Order[3] != 3 || s.Margin != 0 {
		t.Errorf("Logitstats = %+v", s)
	}
	if got := Silumul([]float64{0}, []float64{9}); got[0] != 0 {
		t.Errorf("Silumul = %v", got)
	}
}
