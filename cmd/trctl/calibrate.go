package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
)

type calibrateCmd struct {
	File string `env:"TRCTL_CALIBRATE_FILE" placeholder:"FILE" help:"Questions, one {\"question\"} a line, for an accuracy with \"answer\" (the embedded 500)."`
	nodeFlags
	LargeShare     *float64 `placeholder:"S" help:"Find the threshold with the largest share of other models up to this one."`
	TargetAccuracy *float64 `placeholder:"A" help:"Find the threshold with the smallest share of other models that has this accuracy."`
	Steps          int      `default:"12" help:"Most thresholds to try."`
	MaxTokens      int      `default:"600" help:"Bound of an answer in tokens."`
	N              *int     `short:"n" name:"n" help:"Number of questions, 0 for all (100, or all if there are fewer)."`
	Concurrency    int      `default:"16" help:"Requests in flight."`
	Write          string   `short:"w" placeholder:"FILE" help:"Write the configuration there (standard output)."`
}

// Run finds a threshold by trying some on the user's own questions, and writes the
// configuration with it.
func (c *calibrateCmd) Run(ctx context.Context, p process) error {
	if err := c.check(); err != nil {
		return err
	}
	problems, err := c.questions()
	if err != nil {
		return err
	}
	cfg, name, err := c.quiet(p)
	if err != nil {
		return err
	}
	if len(cfg.Deployments) != 1 {
		return usagef("--models: two models or more are needed")
	}
	policy := cfg.Deployments[0].Policy.Name
	line, ok := scaleOf(policy)
	if !ok {
		return usagef("--policy: %s has no threshold; those that have: %s", policy, strings.Join(curved(), ", "))
	}
	cfg.Deployments[0].AllowOverride = true
	ctx, stop := untilSignal(ctx)
	defer stop()
	var best *evalReport
	var tau float64
	err = withNode(ctx, cfg, func(ctx context.Context, n *node.Node) error {
		ask := asking{client: newClient("http://" + reachable(n.Addr())), name: name, maxTokens: c.MaxTokens, concurrency: c.Concurrency}
		best, tau, err = c.search(line, func(tau float64) (*evalReport, error) {
			ask.override = &routing.Override{Threshold: &tau}
			r, err := ask.measure(ctx, process{out: p.out, err: io.Discard}, problems, nil)
			if err == nil {
				fmt.Fprintf(p.err, "threshold %-10.6g large share %6.2f %%  %s\n", tau, 100*r.LargeShare, c.accuracy(r))
			}
			return r, err
		})
		return err
	})
	if err != nil {
		return err
	}
	cfg.Deployments[0].Policy.Threshold, cfg.Deployments[0].AllowOverride = &tau, false
	text, err := c.configuration(&cfg, best)
	if err != nil {
		return err
	}
	if c.Write == "" {
		_, err = p.out.Write(text)
		return err
	}
	if err := os.WriteFile(c.Write, text, 0o644); err != nil {
		return &usageError{fmt.Errorf("write configuration: %w", err)}
	}
	fmt.Fprintf(p.out, "%s: policy %s, threshold %g, large share %.2f %%%s\n", c.Write, policy, tau, 100*best.LargeShare, prefixed(", ", c.accuracy(best)))
	return nil
}

func (c *calibrateCmd) check() error {
	switch {
	case (c.LargeShare == nil) == (c.TargetAccuracy == nil):
		return usagef("give one of --large-share and --target-accuracy")
	case c.Threshold != nil:
		return usagef("--threshold is what is to be found")
	case c.Concurrency < 1 || c.MaxTokens < 1 || c.Steps < 1:
		return usagef("--concurrency, --max-tokens and --steps must be at least 1")
	}
	for _, share := range []*float64{c.LargeShare, c.TargetAccuracy} {
		if share != nil && !(*share >= 0 && *share <= 1) {
			return usagef("--large-share and --target-accuracy must be between 0 and 1")
		}
	}
	return checkOutput("--write", c.Write)
}

func (c *calibrateCmd) questions() ([]problem, error) {
	text := models.Problems()
	if c.File != "" {
		var err error
		if text, err = os.ReadFile(c.File); err != nil {
			return nil, &usageError{fmt.Errorf("read questions: %w", err)}
		}
	}
	list, err := parseQuestions(text, c.TargetAccuracy != nil)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read questions: %w", err)}
	}
	n, err := someOf(c.N, len(list), "questions")
	return list[:n], err
}

// accuracy is a report's, if it was asked for.
func (c *calibrateCmd) accuracy(r *evalReport) string {
	if c.TargetAccuracy == nil {
		return ""
	}
	return fmt.Sprintf("accuracy %.3f", r.Accuracy)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// enough is how far below its bound a share may be for the search to end early,
// relative to the bound.
const enough = 0.02

// search halves the scale: the more is sent to the large model, the higher are its
// share and, but for chance, the accuracy. It returns the best report that keeps
// the bound, and its threshold.
func (c *calibrateCmd) search(line scale, measure func(float64) (*evalReport, error)) (best *evalReport, tau float64, err error) {
	low, high := 0.0, 1.0
	var nearest float64
	for range c.Steps {
		x := (low + high) / 2
		at := line.at(x)
		r, err := measure(at)
		if err != nil {
			return nil, 0, err
		}
		switch {
		case c.LargeShare != nil && r.LargeShare <= *c.LargeShare:
			low = x
			if best == nil || r.LargeShare >= best.LargeShare {
				best, tau = r, at
			}
			if r.LargeShare >= (1-enough)**c.LargeShare {
				return best, tau, nil
			}
		case c.LargeShare != nil:
			high, nearest = x, r.LargeShare
		case r.Accuracy >= *c.TargetAccuracy:
			high = x
			if best == nil || r.LargeShare <= best.LargeShare {
				best, tau = r, at
			}
		default:
			low, nearest = x, max(nearest, r.Accuracy)
		}
	}
	switch {
	case best != nil:
		return best, tau, nil
	case c.LargeShare != nil:
		return nil, 0, &boundError{fmt.Errorf("no threshold has a large share of %.4f or less; the smallest was %.4f", *c.LargeShare, nearest)}
	}
	return nil, 0, &boundError{fmt.Errorf("no threshold reaches an accuracy of %.3f; the best was %.3f", *c.TargetAccuracy, nearest)}
}

// writtenConfig is a configuration as calibrate writes it.
type writtenConfig struct {
	Models      []writtenModel      `yaml:"models"`
	Deployments []writtenDeployment `yaml:"deployments"`
}

type writtenModel struct {
	Name string `yaml:"name"`
	Dir  string `yaml:"dir,omitempty"`
	Load string `yaml:"load,omitempty"`
}

type writtenDeployment struct {
	Name   string        `yaml:"name"`
	Models []string      `yaml:"models,flow"`
	Policy writtenPolicy `yaml:"policy"`
}

type writtenPolicy struct {
	Name      string   `yaml:"name"`
	Threshold *float64 `yaml:"threshold"`
	Router    string   `yaml:"router,omitempty"`

	RouterThreshold *float64 `yaml:"router_threshold,omitempty"`
	Mode            string   `yaml:"mode,omitempty"`
	Warmup          int      `yaml:"warmup,omitempty"`
	WarmupShape     string   `yaml:"warmup_shape,omitempty"`
	Epistemic       *float64 `yaml:"epistemic,omitempty"`
	Entropy         *float64 `yaml:"entropy,omitempty"`
	StepTokens      int      `yaml:"step_tokens,omitempty"`
	ThinkTokens     int      `yaml:"think_tokens,omitempty"`
}

// written are the settings of a policy that has a threshold.
func written(p *node.Policy) writtenPolicy {
	return writtenPolicy{
		Name: p.Name, Threshold: p.Threshold, Router: p.Router, RouterThreshold: p.RouterThreshold, Mode: p.Mode, Warmup: p.Warmup,
		WarmupShape: p.WarmupShape, Epistemic: p.Epistemic, Entropy: p.Entropy, StepTokens: p.StepTokens, ThinkTokens: p.ThinkTokens,
	}
}

// configuration is the file that serves what was found.
func (c *calibrateCmd) configuration(cfg *node.Config, r *evalReport) ([]byte, error) {
	var out writtenConfig
	for _, m := range cfg.Models {
		w := writtenModel{Name: m.Name, Dir: m.Dir}
		if m.Dummy != nil {
			w.Load = fmt.Sprintf("dummy:%d", *m.Dummy)
		}
		out.Models = append(out.Models, w)
	}
	for _, d := range cfg.Deployments {
		out.Deployments = append(out.Deployments, writtenDeployment{d.Name, d.Models, written(&d.Policy)})
	}
	text, err := yaml.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "# Written by trctl calibrate: large share %.2f %%%s over %d questions.\n", 100*r.LargeShare, prefixed(", ", c.accuracy(r)), r.N)
	b.Write(text)
	var back settings
	if err := parseConfig(b.Bytes(), "", &back); err != nil {
		return nil, errors.Join(errors.New("the configuration that was written cannot be read"), err)
	}
	return b.Bytes(), nil
}
