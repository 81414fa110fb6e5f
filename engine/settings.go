package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tokenrouter/tokenrouter/models"
)

// ErrSettings says that the settings of a policy cannot be read, or do not fit it.
var ErrSettings = errors.New("bad policy settings")

// PolicySettings are the settings of a policy as clusters keep them: the keys of
// `policy:` in a configuration file, in JSON, and what requests may override.
type PolicySettings struct {
	Threshold       *float64  `json:"threshold,omitempty"`
	Weights         []float64 `json:"weights,omitempty"`
	Trace           string    `json:"trace,omitempty"`
	Router          string    `json:"router,omitempty"`
	RouterThreshold *float64  `json:"router_threshold,omitempty"`
	Mode            string    `json:"mode,omitempty"`
	Warmup          int       `json:"warmup,omitempty"`
	WarmupShape     string    `json:"warmup_shape,omitempty"`
	Epistemic       *float64  `json:"epistemic,omitempty"`
	Entropy         *float64  `json:"entropy,omitempty"`
	StepTokens      int       `json:"step_tokens,omitempty"`
	ThinkTokens     int       `json:"think_tokens,omitempty"`
	Rule            string    `json:"rule,omitempty"`
	ReturnRule      string    `json:"return_rule,omitempty"`
	// AllowOverride is Deployment.AllowOverride.
	AllowOverride bool `json:"allow_policy_override,omitempty"`
}

// ParseDeployment is the deployment that a name, models, a policy and its settings
// (JSON, empty or null for none) stand for. Unknown keys, and settings that the policy
// does not read, are errors; all wrap ErrSettings.
func ParseDeployment(name string, served []string, policy string, settings []byte) (Deployment, error) {
	var s PolicySettings
	if len(bytes.TrimSpace(settings)) > 0 {
		d := json.NewDecoder(bytes.NewReader(settings))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return Deployment{}, fmt.Errorf("%w: %w", ErrSettings, err)
		}
		if _, err := d.Token(); !errors.Is(err, io.EOF) {
			return Deployment{}, fmt.Errorf("%w: text after the end", ErrSettings)
		}
	}
	p := Policy{
		Name: policy, Threshold: s.Threshold, Weights: s.Weights, Trace: s.Trace, Router: s.Router, RouterThreshold: s.RouterThreshold,
		Mode: s.Mode, Warmup: s.Warmup, WarmupShape: s.WarmupShape, Epistemic: s.Epistemic, Entropy: s.Entropy,
		StepTokens: s.StepTokens, ThinkTokens: s.ThinkTokens, Rule: s.Rule, ReturnRule: s.ReturnRule,
	}
	foreign := func(name string) bool { return !slices.Contains(models.Names(), name) }
	if p.Threshold == nil && !slices.ContainsFunc(served, foreign) {
		p.Threshold = TrioThreshold(policy)
	}
	_, err := p.Set(served)
	if err == nil {
		err = p.Settings().Check(policy)
	}
	if err != nil {
		return Deployment{}, fmt.Errorf("%w: policy %s: %w", ErrSettings, policy, err)
	}
	return Deployment{Name: name, Models: served, Policy: p, AllowOverride: s.AllowOverride}, nil
}

// Alone is the deployment that serves a model under its own name.
func Alone(model string) Deployment {
	return Deployment{Name: model, Models: []string{model}, Policy: Policy{Name: "single"}}
}
