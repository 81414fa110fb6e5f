package bench

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// slowPercentile draws the broken line through the points (i/(n-1), sample i) of
// the sorted samples and reads it at p.
func slowPercentile(samples []float64, p float64) float64 {
	sorted := slices.Clone(samples)
	for i := range sorted { // selection sort
		for j := i + 1; j < len(sorted); j++ {
			if sorted[j] < sorted[i] {
				sorted[i], sorted[j] = sorted[j], sorted[i]
			}
		}
	}
	last := len(sorted) - 1
	for i := range last {
		x0, x1 := float64(i)/float64(last), float64(i+1)/float64(last)
		if p >= x0 && p <= x1 {
			w := (p - x0) / (x1 - x0)
			return (1-w)*sorted[i] + w*sorted[i+1]
		}
	}
	return sorted[last]
}

func TestSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		samples := rapid.SliceOfN(rapid.Float64Range(-1e6, 1e6), 1, 300).Draw(t, "samples")
		s := newSeries(1000, nil)
		sum := 0.
		for _, v := range samples {
			s.add(v)
			sum += v
		}
		got := s.spread()
		if got.Count != len(samples) || got.Kept != len(samples) || got.Max != slices.Max(samples) {
			t.Fatalf("%+v", got)
		}
		for _, x := range []struct{ got, want float64 }{
			{got.Mean, sum / float64(len(samples))},
			{got.P50, slowPercentile(samples, .5)}, {got.P90, slowPercentile(samples, .9)}, {got.P99, slowPercentile(samples, .99)},
		} {
			if math.Abs(x.got-x.want) > 1e-6 {
				t.Fatalf("%+v, want %v", got, x.want)
			}
		}
	})
}

func TestKnownPercentiles(t *testing.T) {
	s := newSeries(10, nil)
	if s.spread() != nil || s.spread().times(2) != nil {
		t.Error("a series without samples has a spread")
	}
	for _, v := range []float64{4, 1, 3, 2} {
		s.add(v)
	}
	// numpy.percentile([1, 2, 3, 4], [50, 90, 99]) is [2.5, 3.7, 3.97].
	got := s.spread()
	same(t, "p50", got.P50, 2.5)
	same(t, "p90", got.P90, 3.7)
	same(t, "p99", got.P99, 3.97)
	same(t, "scaled", got.times(1e3).P90, 3700)
}

// A reservoir has every sample with the same probability, and mean and maximum of all.
func TestReservoir(t *testing.T) {
	const n, keep, rounds = 100, 20, 4000
	rng := rand.New(rand.NewPCG(1, 2))
	var kept [n]int
	for range rounds {
		s := newSeries(keep, rng)
		for v := range n {
			s.add(float64(v))
		}
		for _, v := range s.kept {
			kept[int(v)]++
		}
		if got := s.spread(); got.Count != n || got.Kept != keep || got.Mean != (n-1)/2. || got.Max != n-1 {
			t.Fatalf("%+v", got)
		}
	}
	chi, want := 0., float64(rounds*keep)/n
	for _, k := range kept {
		chi += (float64(k) - want) * (float64(k) - want) / want
	}
	// 99 degrees of freedom: the 99.99 % point is 160.1; fixed sample sizes make it smaller still.
	if chi > 160 {
		t.Errorf("chi-square is %.1f", chi)
	}
}
