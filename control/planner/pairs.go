package planner

import (
	"encoding/json"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Pair is models that are known to write answers together.
type Pair struct {
	// Name is the deployment's, Models its models; the first is the entry model.
	Name   string
	Models []string
	Policy string
	// Settings are the policy's (cluster.PolicySettings), nil for its own defaults.
	Settings json.RawMessage
}

// Pairs are the known pairs. The first is the one that `trctl serve` serves; the
// others are those of the paper and share their vocabulary.
func Pairs() []Pair {
	return []Pair{
		// The trio is surer of itself than real models.
		{"tiny", []string{"tiny-s", "tiny-l"}, "r-stitch", json.RawMessage(`{"threshold":0.01}`)},
		{"qwen3-0.6b-32b", []string{"qwen3-0.6b", "qwen3-32b"}, "r-stitch", nil},
		{"qwen3-1.7b-8b", []string{"qwen3-1.7b", "qwen3-8b"}, "r-stitch", nil},
		{"qwen3-1.7b-32b", []string{"qwen3-1.7b", "qwen3-32b"}, "r-stitch", nil},
	}
}

// pair makes deployments of the known pairs that are pinned, but for models that
// already are in one.
func (p *plan) pair() {
	pinned := map[string]bool{}
	for _, n := range p.s.AllNodes() {
		for _, pin := range n.Pins {
			pinned[pin.Model] = true
		}
	}
	for _, known := range Pairs() {
		missing := slices.ContainsFunc(known.Models, func(m string) bool { return !pinned[m] })
		if _, exists := p.s.Deployment(known.Name); missing || exists {
			continue
		}
		covered := false
		for _, d := range p.s.AllDeployments() {
			covered = covered || slices.Equal(d.Models, known.Models)
		}
		if !covered {
			p.deployments = append(p.deployments, cluster.Deployment{
				Name: known.Name, Models: known.Models, Policy: known.Policy, Settings: known.Settings,
			})
		}
	}
}
