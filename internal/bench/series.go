package bench

import (
	"math"
	"math/rand/v2"
	"slices"
)

// MaxSamples is how many samples of a series are kept. Up to that many the
// percentiles are exact, beyond it they are those of a uniform sample.
const MaxSamples = 1 << 20

// Spread describes a series of samples. In JSON a series without samples is null.
type Spread struct {
	// Count is how many samples there were.
	Count int `json:"count"`
	// Kept is how many of them the percentiles are from.
	Kept int     `json:"kept"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	Max  float64 `json:"max"`
}

// series collects samples: all of them up to limit, then a reservoir in which
// each sample that came is with the same probability (Vitter's algorithm R).
type series struct {
	limit int
	rng   *rand.Rand
	kept  []float64
	count int
	sum   float64
	max   float64
}

func newSeries(limit int, rng *rand.Rand) *series { return &series{limit: limit, rng: rng} }

func (s *series) add(v float64) {
	s.count++
	s.sum += v
	if s.count == 1 || v > s.max {
		s.max = v
	}
	if len(s.kept) < s.limit {
		s.kept = append(s.kept, v)
		return
	}
	if at := s.rng.IntN(s.count); at < s.limit {
		s.kept[at] = v
	}
}

// spread describes the samples, nil if there are none. It sorts what was kept.
func (s *series) spread() *Spread {
	if s.count == 0 {
		return nil
	}
	slices.Sort(s.kept)
	return &Spread{
		Count: s.count, Kept: len(s.kept), Mean: s.sum / float64(s.count),
		P50: percentile(s.kept, .50), P90: percentile(s.kept, .90), P99: percentile(s.kept, .99), Max: s.max,
	}
}

// percentile is the value below which the fraction p of sorted lies: it
// interpolates between the two nearest samples, as numpy does by default.
func percentile(sorted []float64, p float64) float64 {
	at := p * float64(len(sorted)-1)
	low := int(math.Floor(at))
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}
