package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/near"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/models/catalogue"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// nodeFlags are the settings of a node that commands which start one share.
type nodeFlags struct {
	Models []string `placeholder:"MODEL" help:"Models, the entry model first: names of embedded models (tiny-s, tiny-m, tiny-l), checkpoint directories or, with --load, names of the catalogue (qwen3-0.6b, qwen3-32b and so on)."`
	policyFlags
	PageSize       *int                  `placeholder:"N" help:"Token slots in a page of keys and values (64)."`
	KVTokens       *int                  `name:"kv-tokens" env:"TRCTL_KV_TOKENS" placeholder:"N" help:"Token slots of each model's pool (on a GPU what fits, the same for all its models; else 131072)."`
	BatchThreshold []int                 `placeholder:"B" help:"Fewest ready sequences that start a step, one number for all models or one each (1)."`
	LongestWait    []waitTime            `placeholder:"D" help:"Wait that overrides the batch threshold, auto or a duration, one for all models or one each (auto)."`
	Schedule       *schedule.Rule        `enum:"${schedules}" placeholder:"RULE" help:"When models start their steps: ${schedules} (delayed)."`
	Lookahead      *subservice.Lookahead `enum:"auto,on,off" placeholder:"MODE" help:"Launch steps before the results of the one before are known, on a GPU: auto (where it is measured to pay), on or off (auto)."`
	Reproducible   *bool                 `negatable:"" help:"Answers on a GPU that are the same to the last bit whatever else runs, at some speed; on a CPU they always are (off)."`
	Workers        *int                  `placeholder:"N" help:"CPU threads that a model's step may use (all)."`
	HangAfter      *time.Duration        `placeholder:"D" help:"Least time that every step has before it is taken for one that hangs, for which the process is replaced (2s on a GPU, 5m on a CPU); a day is as good as never."`
	deviceFlags
}

type serveCmd struct {
	File string `short:"f" placeholder:"FILE" help:"Configuration file (YAML)."`
	nodeFlags
	Name           *string        `placeholder:"NAME" help:"Name under which clients ask for the models together (tiny, or default)."`
	Listen         *string        `placeholder:"ADDR" help:"Address of the public endpoint (127.0.0.1:8000)."`
	AllowHosts     []string       `placeholder:"NAME" help:"Names, besides those of loopback, by which clients may call a server on loopback, as a proxy on this machine passes them on."`
	AllowOrigins   []string       `placeholder:"ORIGIN" help:"Origins whose web pages may use the API, such as https://chat.example.org; * allows all."`
	AllowOverride  *bool          `name:"allow-policy-override" negatable:"" help:"Let requests change policy, threshold and the largest share of other models (off)."`
	MaxRows        *int           `placeholder:"N" help:"Most sequences in a step (64)."`
	MaxQueue       *int           `placeholder:"N" help:"Most answers computed or waiting (1024)."`
	ChunkTokens    *int           `placeholder:"N" help:"Most tokens of a prefill chunk (512)."`
	AdminSocket    *string        `placeholder:"PATH" help:"Unix socket for trctl get, or none (one in the user's runtime directory)."`
	AutoThresholds *bool          `negatable:"" help:"Let batching thresholds follow what is measured (on, unless thresholds are given)."`
	DrainTimeout   *time.Duration `placeholder:"D" help:"How long requests in flight may take to end after a stop (10s)."`
	DryRun         bool           `help:"Print where the memory would go, and end."`
	LogLevel       *string        `placeholder:"LEVEL" help:"debug, info, warn or error (warn on a terminal, else info)."`
}

// Run serves until a signal or until the node fails.
func (s *serveCmd) Run(ctx context.Context, p process) error {
	set, err := s.settings()
	if err != nil {
		return err
	}
	set.Logger = slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: set.logLevel(isTerminal(p.err))}))
	if s.DryRun {
		return dryRun(p, &set.Config)
	}
	bars := newLoading(p)
	defer bars.end()
	set.Progress = bars.report
	set.Restarts = restartsBefore(os.Getenv(restartsEnv))
	n, err := newNode(set.Config)
	if err != nil {
		return err
	}
	plan := n.Plan()
	fmt.Fprint(p.err, plan.String())
	return runNode(ctx, n, func(ctx context.Context, n *node.Node) error {
		bars.end()
		announce(p.out, &set.Config, n.Addr())
		return serveAdmin(ctx, set.AdminSocket, n.Admin(), set.Logger)
	})
}

// dryRun prints the plan without loading weights.
func dryRun(p process, c *node.Config) error {
	plan, err := engine.MakePlan(c.Config)
	if err != nil {
		return fmt.Errorf("plan: %w", err)
	}
	_, err = io.WriteString(p.out, plan.String())
	return err
}

// settings puts file, environment and flags together, the later over the earlier.
func (s *serveCmd) settings() (settings, error) {
	set := defaultSettings()
	if s.File != "" {
		var err error
		if set, err = readConfig(s.File); err != nil {
			return set, err
		}
	}
	overwrite(&set.Listen, s.Listen)
	overwrite(&set.DrainTimeout, s.DrainTimeout)
	overwrite(&set.AdminSocket, s.AdminSocket)
	if len(s.BatchThreshold) > 0 {
		set.AutoThresholds = false
	}
	overwrite(&set.AutoThresholds, s.AutoThresholds)
	overwrite(&set.MaxRows, s.MaxRows)
	overwrite(&set.MaxQueue, s.MaxQueue)
	overwrite(&set.ChunkTokens, s.ChunkTokens)
	if s.AllowHosts != nil {
		set.AllowHosts = s.AllowHosts
	}
	if s.AllowOrigins != nil {
		set.AllowOrigins = s.AllowOrigins
	}
	if s.LogLevel != nil {
		if err := set.setLogLevel(*s.LogLevel); err != nil {
			return set, usagef("--log-level: %w", err)
		}
	}
	if err := firstOf(checkOrigins(set.AllowOrigins), s.apply(&set.Config)); err != nil {
		return set, err
	}
	if s.AllowOverride != nil {
		for i := range set.Deployments {
			set.Deployments[i].AllowOverride = *s.AllowOverride
		}
	}
	if s.Name != nil {
		if len(set.Deployments) != 1 {
			return set, usagef("--name: there are %d deployments, so it is not clear which one is meant", len(set.Deployments))
		}
		set.Deployments[0].Name = *s.Name
	}
	return set, validate(&set.Config)
}

// validate reports every fault of a configuration that can be seen without
// loading a model.
func validate(c *node.Config) error {
	errs := []error{c.Validate()}
	for i, d := range c.Deployments {
		if err := checkPolicy(&d.Policy, d.Models); err != nil {
			errs = append(errs, fmt.Errorf("deployments[%d].policy: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &usageError{fmt.Errorf("configuration:\n%w", err)}
	}
	return nil
}

// apply puts the flags that were given over c.
func (f *nodeFlags) apply(c *node.Config) error {
	if len(f.Models) > 0 {
		c.Models = nil
		for _, m := range f.Models {
			named, err := modelNamed(m)
			if err != nil {
				return err
			}
			c.Models = append(c.Models, named)
		}
		c.Deployments = deploymentOf(c.Models, "")
	}
	overwrite(&c.PageSize, f.PageSize)
	overwrite(&c.KVTokens, f.KVTokens)
	overwrite(&c.Workers, f.Workers)
	overwrite(&c.HangAfter, f.HangAfter)
	overwrite(&c.Schedule, f.Schedule)
	overwrite(&c.Lookahead, f.Lookahead)
	overwrite(&c.Reproducible, f.Reproducible)
	if err := f.deviceFlags.apply(c); err != nil {
		return err
	}
	if err := f.policyFlags.apply(c); err != nil {
		return err
	}
	thresholds, err := forEach(c.Models, f.BatchThreshold, "--batch-threshold")
	if err != nil {
		return err
	}
	waits, err := forEach(c.Models, f.LongestWait, "--longest-wait")
	if err != nil {
		return err
	}
	for i := range c.Models {
		if thresholds != nil {
			c.Models[i].Threshold = thresholds[i]
		}
		if waits != nil {
			c.Models[i].LongestWait = time.Duration(waits[i])
		}
	}
	return nil
}

// forEach spreads a flag's values over the models: none, one for all, or one each.
func forEach[T any](models []node.Model, values []T, flag string) ([]T, error) {
	switch len(values) {
	case 0, len(models):
		return values, nil
	case 1:
		out := make([]T, len(models))
		for i := range out {
			out[i] = values[0]
		}
		return out, nil
	}
	return nil, usagef("%s: %d values for %d models", flag, len(values), len(models))
}

// modelNamed reads one item of --models: the name of an embedded model or one of
// the catalogue, or a checkpoint directory, which is then served under its last
// path element.
func modelNamed(item string) (node.Model, error) {
	m := node.Model{Name: item, Threshold: 1}
	if slices.Contains(models.Names(), item) {
		return m, nil
	}
	if stat, err := os.Stat(item); err == nil && stat.IsDir() {
		m.Name, m.Dir = filepath.Base(filepath.Clean(item)), item
		return m, nil
	}
	all, err := catalogue.Default()
	if err != nil {
		return m, err
	}
	entry, err := all.Find(item)
	if err == nil {
		m.Name = entry.Name
	}
	if dir, pulled := pulledDir(item); pulled {
		m.Name, m.Dir = filepath.Base(m.Name), dir
		return m, nil
	}
	if err == nil {
		return m, nil
	}
	if strings.ContainsRune(item, filepath.Separator) {
		return m, usagef("--models: %q is not a directory", item)
	}
	hint := ""
	if meant := near.Word(item, slices.Concat(models.Names(), all.Names())); meant != "" {
		hint = fmt.Sprintf("; did you mean %q?", meant)
	}
	return m, usagef("--models: %q is neither an embedded model (%s), nor a directory, nor in the catalogue (%s)%s", item,
		strings.Join(models.Names(), ", "), strings.Join(all.Names(), ", "), hint)
}

// withNode runs a node, calls use once it serves, and stops the node when use
// returns. It returns the first error; both have ended by then.
func withNode(ctx context.Context, cfg node.Config, use func(context.Context, *node.Node) error) error {
	n, err := newNode(cfg)
	if err != nil {
		return err
	}
	return runNode(ctx, n, use)
}

// newNode builds a node; runNode must be called.
func newNode(cfg node.Config) (*node.Node, error) {
	cfg.Version = buildinfo.Current().Version
	n, err := node.New(cfg)
	if err != nil {
		return nil, startError(err)
	}
	return n, nil
}

// runNode is withNode for a node that has been built.
func runNode(ctx context.Context, n *node.Node, use func(context.Context, *node.Node) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	group.Go(func(ctx context.Context) error {
		defer stop()
		return n.Run(ctx)
	})
	group.Go(func(ctx context.Context) error {
		defer stop()
		select {
		case <-n.Ready():
		case <-ctx.Done():
			return nil
		}
		return use(ctx, n)
	})
	return group.Wait()
}

// announce prints what is served and a line to try.
func announce(w io.Writer, c *node.Config, addr net.Addr) {
	url := "http://" + reachable(addr)
	fmt.Fprintf(w, "trctl %s serves on %s\n", buildinfo.Current().Version, url)
	ask := ""
	width := 0
	for _, d := range c.Deployments {
		width = max(width, len(d.Name))
	}
	for _, m := range c.Models {
		width = max(width, len(m.Name))
	}
	for _, d := range c.Deployments {
		if ask == "" {
			ask = d.Name
		}
		fmt.Fprintf(w, "  %-*s  %s write together, policy %s\n", width, d.Name, strings.Join(d.Models, " + "), describePolicy(d.Policy))
	}
	for _, m := range c.Models {
		if slices.ContainsFunc(c.Deployments, func(d node.Deployment) bool { return d.Name == m.Name }) {
			continue // the name means the deployment
		}
		if ask == "" {
			ask = m.Name
		}
		from := "embedded"
		switch {
		case m.Dummy != nil:
			from = fmt.Sprintf("dummy weights of seed %d, text is token ids", *m.Dummy)
		case m.Dir != "":
			from = m.Dir
		}
		fmt.Fprintf(w, "  %-*s  alone, %s\n", width, m.Name, from)
	}
	example := fmt.Sprintf(`chat/completions -H 'Content-Type: application/json' -d '{"model":%q,"stream":true,"messages":[{"role":"user","content":"What is 48 + 72 * 29?"}]}'`, ask)
	if c.Models[0].Dummy != nil {
		example = fmt.Sprintf(`completions -H 'Content-Type: application/json' -d '{"model":%q,"stream":true,"prompt":[1,2,3],"max_tokens":16}'`, ask)
	}
	fmt.Fprintf(w, "Try:\n  curl -sN %s/v1/%s\n", url, example)
	fmt.Fprintf(w, "Ctrl-C stops after the requests in flight (%s at most), a second one at once.\n", c.DrainTimeout)
}

func describePolicy(p node.Policy) string {
	if p.Threshold == nil {
		return p.Name
	}
	return fmt.Sprintf("%s threshold %g", p.Name, *p.Threshold)
}

// reachable is an address that a client on this machine can use.
func reachable(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return addr.String()
	}
	if tcp.IP.IsUnspecified() {
		return net.JoinHostPort("127.0.0.1", fmt.Sprint(tcp.Port))
	}
	return tcp.String()
}
