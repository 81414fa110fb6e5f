package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/near"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/policies"
)

type applyCmd struct {
	operatorFlags
	File   string `short:"f" required:"" env:"TRCTL_APPLY_FILE" placeholder:"FILE" help:"Deployments in YAML; - for standard input."`
	DryRun bool   `env:"TRCTL_APPLY_DRY_RUN" help:"Check the file, and change nothing."`
}

// Run changes the cluster's deployments. All of the file is checked before anything is
// changed.
func (a *applyCmd) Run(ctx context.Context, p process) error {
	wanted, err := readDeployments(p, a.File)
	if err != nil {
		return err
	}
	if a.DryRun {
		for i := range wanted {
			fmt.Fprintf(p.out, "deployment %s is well-formed\n", wanted[i].Name)
		}
		return nil
	}
	return a.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		before, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		var index uint64
		for i := range wanted {
			if index, err = c.Propose(ctx, cluster.KindPutDeployment, link.NewRequest("apply"), wanted[i]); err != nil {
				return fmt.Errorf("deployment %s: %w%s", wanted[i].Name, err, appliedSoFar(wanted[:i]))
			}
		}
		after, err := atLeast(ctx, c, index)
		if err != nil {
			return err
		}
		known := &listing.Facts{State: after, Now: time.Now()}
		for i := range wanted {
			d, ok := after.Deployment(wanted[i].Name)
			if !ok {
				return fmt.Errorf("deployment %s: it was deleted by somebody else meanwhile", wanted[i].Name)
			}
			fmt.Fprintf(p.out, "deployment %s %s (version %d)\n", d.Name, change(before, &d), d.Version)
			shown := known.Deployment(&d)
			for _, line := range shown.Why {
				fmt.Fprintf(p.err, "  %s\n", line)
			}
		}
		return nil
	})
}

// change says in a word what became of a deployment.
func change(before *state.State, now *cluster.Deployment) string {
	old, existed := before.Deployment(now.Name)
	switch {
	case !existed:
		return "created"
	case old.Version == now.Version:
		return "unchanged"
	case old.Default:
		return "changed, and is no default any more"
	}
	return "changed"
}

func appliedSoFar(list []cluster.Deployment) string {
	if len(list) == 0 {
		return "; nothing was changed"
	}
	var names []string
	for _, d := range list {
		names = append(names, d.Name)
	}
	return "; these were applied: " + strings.Join(names, ", ")
}

// deploymentsFile is the YAML file of trctl apply.
type deploymentsFile struct {
	Deployments []wishedDeployment `yaml:"deployments"`
}

// wishedDeployment has the keys of fileDeployment, and those of a cluster.
type wishedDeployment struct {
	Name                string              `yaml:"name"`
	Models              []string            `yaml:"models"`
	Policy              filePolicy          `yaml:"policy"`
	AllowPolicyOverride bool                `yaml:"allow_policy_override"`
	SpecialMap          map[string][]string `yaml:"special_map"`
	Replicas            []int               `yaml:"replicas"`
	Thresholds          thresholdList       `yaml:"thresholds"`
	LongestWait         waitTime            `yaml:"longest_wait"`
	MaxInFlight         int                 `yaml:"max_in_flight"`
	Fallback            fallbackName        `yaml:"fallback"`
	FallbackWait        time.Duration       `yaml:"fallback_wait"`
}

// thresholdList is fixed thresholds, or auto (nil).
type thresholdList []int

// UnmarshalYAML accepts auto, or a list of whole numbers.
func (t *thresholdList) UnmarshalYAML(text []byte) error {
	*t = nil
	if strings.TrimSpace(string(text)) == "auto" {
		return nil
	}
	var list []int
	if err := yaml.Unmarshal(text, &list); err != nil || len(list) == 0 {
		return fmt.Errorf("%q is neither auto nor a list of thresholds such as [1, 4]", strings.TrimSpace(string(text)))
	}
	*t = list
	return nil
}

// fallbackName is one of cluster.Fallbacks.
type fallbackName cluster.Fallback

// UnmarshalText accepts wait, small-only and fail.
func (f *fallbackName) UnmarshalText(text []byte) error {
	if !slices.Contains(cluster.Fallbacks(), cluster.Fallback(text)) {
		var names []string
		for _, b := range cluster.Fallbacks() {
			names = append(names, string(b))
		}
		return fmt.Errorf("%q is not one of %s", text, strings.Join(names, ", "))
	}
	*f = fallbackName(text)
	return nil
}

// readDeployments reads a file, - for standard input, and checks all that is in it.
func readDeployments(p process, path string) ([]cluster.Deployment, error) {
	in := p.in
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, &usageError{fmt.Errorf("read deployments: %w", err)}
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	} else {
		path = "standard input"
	}
	text, err := io.ReadAll(io.LimitReader(in, maxConfigBytes+1))
	if err != nil {
		return nil, &usageError{fmt.Errorf("read deployments: %w", err)}
	}
	if len(text) > maxConfigBytes {
		return nil, usagef("read deployments: %s has more than %d bytes", path, maxConfigBytes)
	}
	list, err := parseDeployments(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", path, err)}
	}
	return list, nil
}

// parseDeployments reads the documents of a text and checks them.
func parseDeployments(text []byte) ([]cluster.Deployment, error) {
	shape := reflect.TypeFor[deploymentsFile]()
	if err := checkKindsOf(text, shape); err != nil {
		return nil, err
	}
	var list []cluster.Deployment
	var faults []error
	documents := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict())
	for {
		var f deploymentsFile
		err := documents.Decode(&f)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, suggest(err, shape, "deploy/deployments/tiny.yaml")
		}
		for i := range f.Deployments {
			d, err := f.Deployments[i].deployment()
			if err == nil && slices.ContainsFunc(list, func(other cluster.Deployment) bool { return other.Name == d.Name }) {
				err = errors.New("name: it is there twice")
			}
			if err != nil {
				faults = append(faults, fmt.Errorf("deployments[%d]: %w", len(list), err))
			}
			list = append(list, d)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, errors.New("there is no deployment in it (the key deployments)")
	}
	return list, nil
}

// deployment is what the cluster is to have.
func (w *wishedDeployment) deployment() (cluster.Deployment, error) {
	d := cluster.Deployment{
		Name: w.Name, Models: w.Models, Replicas: w.Replicas, Thresholds: w.Thresholds, LongestWait: time.Duration(w.LongestWait),
		MaxInFlight: w.MaxInFlight, Fallback: cluster.Fallback(w.Fallback), FallbackWait: w.FallbackWait,
	}
	if router := w.Policy.Router; strings.ContainsRune(router, filepath.Separator) && !filepath.IsAbs(router) {
		return d, fmt.Errorf("policy.router: %q is a file on every worker, so that its path must be absolute", router)
	}
	var served []node.Model
	for _, m := range w.Models {
		served = append(served, node.Model{Name: m})
	}
	if w.Policy.Name == "" && len(w.Models) == 1 {
		w.Policy.Name = "single"
	}
	policy := w.Policy.policy(served, "/")
	if err := checkPolicy(&policy, w.Models); err != nil {
		return d, fmt.Errorf("policy: %w", err)
	}
	var err error
	d.Policy = policy.Name
	settings := cluster.PolicySettings{
		Threshold: policy.Threshold, Weights: policy.Weights, Trace: policy.Trace, Router: policy.Router, RouterThreshold: policy.RouterThreshold,
		Mode: policy.Mode, Warmup: policy.Warmup, WarmupShape: policy.WarmupShape, Epistemic: policy.Epistemic, Entropy: policy.Entropy,
		StepTokens: policy.StepTokens, ThinkTokens: policy.ThinkTokens, Rule: policy.Rule, ReturnRule: policy.ReturnRule,
		AllowOverride: w.AllowPolicyOverride, SpecialMap: w.SpecialMap,
	}
	if d.Settings, err = settings.Encode(); err != nil {
		return d, err
	}
	if err := state.CheckDeployment(&d); err != nil {
		return d, err
	}
	_, err = engine.DeploymentOf(&d)
	return d, err
}

// checkPolicy finds the faults of a policy that can be seen without loading a model.
func checkPolicy(policy *node.Policy, served []string) error {
	_, err := policy.Set(served)
	if err == nil {
		err = policy.Settings().Check(policy.Name)
	}
	if meant := near.Word(policy.Name, policies.Names()); errors.Is(err, policies.ErrUnknown) && meant != "" {
		err = fmt.Errorf("%w; did you mean %q?", err, meant)
	}
	return err
}
