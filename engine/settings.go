package engine

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/models"
)

// ErrSettings says that the settings of a policy cannot be read, or do not fit it.
var ErrSettings = errors.New("bad policy settings")

// DeploymentOf is the deployment that a cluster's state has. Errors wrap ErrSettings.
func DeploymentOf(d *cluster.Deployment) (Deployment, error) {
	s, err := d.PolicySettings()
	if err != nil {
		return Deployment{}, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	p := Policy{
		Name: d.Policy, Threshold: s.Threshold, Weights: s.Weights, Trace: s.Trace, Router: s.Router, RouterThreshold: s.RouterThreshold,
		Mode: s.Mode, Warmup: s.Warmup, WarmupShape: s.WarmupShape, Epistemic: s.Epistemic, Entropy: s.Entropy,
		StepTokens: s.StepTokens, ThinkTokens: s.ThinkTokens, Rule: s.Rule, ReturnRule: s.ReturnRule,
	}
	foreign := func(name string) bool { return !slices.Contains(models.Names(), name) }
	if p.Threshold == nil && !slices.ContainsFunc(d.Models, foreign) {
		p.Threshold = TrioThreshold(d.Policy)
	}
	if _, err = p.Set(d.Models); err == nil {
		err = p.Settings().Check(d.Policy)
	}
	if err != nil {
		return Deployment{}, fmt.Errorf("%w: policy %s: %w", ErrSettings, d.Policy, err)
	}
	out := Deployment{Name: d.Name, Models: d.Models, Policy: p, AllowOverride: s.AllowOverride, SpecialMap: s.SpecialMap}
	if err := out.checkMapped(); err != nil {
		return Deployment{}, fmt.Errorf("%w: %w", ErrSettings, err)
	}
	return out, nil
}

// Alone is the deployment that serves a model under its own name.
func Alone(model string) Deployment {
	return Deployment{Name: model, Models: []string{model}, Policy: Policy{Name: "single"}}
}
