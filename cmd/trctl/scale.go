package main

import (
	"math"
	"slices"
	"strconv"

	"github.com/tokenrouter/tokenrouter/policies"
)

// scale orders a policy's thresholds by how much they send to the large model: 0
// sends nothing, 1 everything. Most policies are decided near one end of their
// range, so equal steps are equal factors there.
type scale struct {
	from, to float64
	// rising says that a higher threshold sends more.
	rising bool
}

// reach is how near to the ends the scale goes: e to the power of -reach of the range.
const reach = 16

// scaleOf returns the scale of a policy; ok is false if it has no threshold.
func scaleOf(policy string) (s scale, ok bool) {
	s.rising = slices.Contains([]string{"citer", "random"}, policy)
	s.from, s.to, ok = policies.ThresholdRange(policy)
	return s, ok
}

// at returns the threshold at x in [0, 1], to four digits.
func (s scale) at(x float64) float64 {
	if !s.rising {
		x = 1 - x
	}
	switch x {
	case 0:
		return s.from
	case 1:
		return s.to
	}
	part := 1 / (1 + math.Exp(reach*(1-2*x)))
	if part > 0.5 {
		// Near the upper end the distance to it has the digits that count.
		return s.to - rounded((s.to-s.from)*(1-part))
	}
	return s.from + rounded((s.to-s.from)*part)
}

// rounded keeps four digits.
func rounded(v float64) float64 {
	out, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return v
	}
	return out
}

// curved are the policies of a deployment of two models that have a threshold.
func curved() []string {
	return slices.DeleteFunc(policies.Names(), func(name string) bool {
		_, ok := scaleOf(name)
		return !ok
	})
}
