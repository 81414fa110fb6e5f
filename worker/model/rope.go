package model

import (
	"fmt"
	"math"
	"slices"
)

// RopeScaling is the stretch of Llama 3.1 and later ("llama3"): frequencies whose
// wave is longer than the original context are divided by Factor, short waves
// stay, and the ones between are blended.
type RopeScaling struct {
	Factor float64
	// LowFreq and HighFreq bound the blend, as waves in the original context.
	LowFreq, HighFreq float64
	OriginalContext   int
}

const maxTheta = 1e12

// InvFreq returns the D/2 rotary frequencies in radians a position, scaled if the
// model scales them. The reference implementation rounds them to float32.
func (c *Config) InvFreq() []float64 {
	out := make([]float64, c.HeadDim/2)
	for i := range out {
		out[i] = 1 / math.Pow(c.RopeTheta, float64(2*i)/float64(c.HeadDim))
		if c.RopeScaling != nil {
			out[i] = c.RopeScaling.scale(out[i])
		}
	}
	return out
}

func (s *RopeScaling) scale(freq float64) float64 {
	waves := float64(s.OriginalContext) * freq / (2 * math.Pi) // in the original context
	switch {
	case waves < s.LowFreq:
		return freq / s.Factor
	case waves > s.HighFreq:
		return freq
	}
	smooth := (waves - s.LowFreq) / (s.HighFreq - s.LowFreq)
	return (1-smooth)*freq/s.Factor + smooth*freq
}

// parseRope reads the rotary base and its scaling. Newer files keep both under
// rope_parameters; older ones have rope_theta at the top and rope_scaling. A theta
// of 0 means that the file has to give one.
func parseRope(f *fields, c *Config, theta float64) {
	if f.has("rope_parameters") {
		f.only("rope_scaling")
		if p, ok := f.object("rope_parameters"); ok {
			c.RopeTheta = p.number("rope_theta", maxTheta)
			c.RopeScaling = parseScaling(p)
			if p.err == nil && f.has("rope_theta") && f.number("rope_theta", maxTheta) != c.RopeTheta {
				f.fail(ErrCorrupt, "rope_theta", fmt.Sprintf("%g as in rope_parameters", c.RopeTheta))
			}
			if f.err == nil {
				f.err = p.err
			}
		}
		return
	}
	c.RopeTheta = theta
	if theta == 0 || f.has("rope_theta") {
		c.RopeTheta = f.number("rope_theta", maxTheta)
	}
	if f.has("rope_scaling") {
		if p, ok := f.object("rope_scaling"); ok {
			c.RopeScaling = parseScaling(p)
			if f.err == nil {
				f.err = p.err
			}
		}
	}
}

// parseScaling reads the kind of the rotation and what belongs to it, and refuses
// all that it does not know.
func parseScaling(p *fields) *RopeScaling {
	kind := "rope_type"
	if !p.has(kind) && p.has("type") {
		kind = "type" // files of 2023
	}
	p.only(kind, `"default"`, `"llama3"`)
	p.only("partial_rotary_factor", "1.0", "1")
	known := []string{"rope_theta", "partial_rotary_factor", "rope_type", "type"}
	var s *RopeScaling
	if p.err == nil && string(p.raw[kind]) == `"llama3"` {
		s = &RopeScaling{
			Factor:          p.number("factor", 1e6),
			LowFreq:         p.number("low_freq_factor", 1e6),
			HighFreq:        p.number("high_freq_factor", 1e6),
			OriginalContext: p.integer("original_max_position_embeddings", 1<<24),
		}
		if p.err == nil && s.Factor < 1 {
			p.fail(ErrCorrupt, "factor", "a number of at least 1")
		}
		if p.err == nil && s.HighFreq <= s.LowFreq {
			p.fail(ErrCorrupt, "high_freq_factor", fmt.Sprintf("a number above low_freq_factor (%g)", s.LowFreq))
		}
		known = append(known, "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
	}
	names := make([]string, 0, len(p.raw))
	for name := range p.raw {
		names = append(names, name)
	}
	slices.Sort(names) // one error message for one file
	for _, name := range names {
		if !slices.Contains(known, name) {
			p.only(name)
		}
	}
	return s
}
