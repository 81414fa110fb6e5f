package sampler

import (
	"math"

	"github.com/tokenrouter/tokenrouter/worker/step"
)

// mix returns the logarithms of a mixture of the softmax of z with another model's
// probabilities. Ids that neither gives any have -Inf. The slice is the sampler's.
func (s *Sampler) mix(z []float32, m *step.Mixture) []float32 {
	if cap(s.mixed) < len(z) {
		s.mixed, s.masses = make([]float32, len(z)), make([]float64, len(z))
	}
	s.mixed, s.masses = s.mixed[:len(z)], s.masses[:len(z)]
	first, _, _ := scan(z)
	most, sum := float64(z[first]), 0.0
	for i, v := range z {
		s.masses[i] = math.Exp(float64(v) - most)
		sum += s.masses[i]
	}
	weight := float64(m.Weight)
	for i := range s.masses {
		s.masses[i] *= weight / sum
	}
	for _, e := range m.Entries {
		s.masses[e.ID] += (1 - weight) * math.Exp(float64(e.Logprob))
	}
	for i, p := range s.masses {
		s.mixed[i] = float32(math.Log(p))
	}
	return s.mixed
}
