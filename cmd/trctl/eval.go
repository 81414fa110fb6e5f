package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"strings"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/models"
)

// maxProblemBytes bounds a line of a problem file.
const maxProblemBytes = 1 << 20

type evalCmd struct {
	File string `env:"TRCTL_EVAL_FILE" placeholder:"FILE" help:"Problems, one {\"question\", \"answer\"} a line (the embedded 500)."`
	URL  string `env:"TRCTL_URL" placeholder:"URL" help:"Measure a running server; without it the models run in this process."`
	nodeFlags
	MaxTokens   int    `default:"600" help:"Bound of an answer in tokens."`
	N           *int   `short:"n" name:"n" help:"Number of problems, 0 for all (100, or all if there are fewer)."`
	Concurrency int    `default:"16" help:"Requests in flight."`
	Output      string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
	Record      string `placeholder:"FILE" help:"Write the requests with their answers, one a line, for trctl replay."`

	LimitLargeShare *float64 `placeholder:"S" help:"Have the server keep the share of other models in every answer at or below this, 0 to 1 (max_large_share of the API)."`

	Policies []string `placeholder:"NAME" help:"Compare these policies, or all, each over its thresholds (in this process)."`
	Curve    bool     `help:"Measure accuracy over the share of the other models, by thresholds; without --policies of the deployment's policy."`
	Points   int      `default:"8" help:"Thresholds to try with each policy of a curve."`
	Plot     string   `placeholder:"FILE" help:"Write an SVG of the curves."`

	MinAccuracy   *float64 `placeholder:"A" help:"Exit with 4 when the accuracy is lower."`
	MaxAccuracy   *float64 `placeholder:"A" help:"Exit with 4 when the accuracy is higher."`
	MaxLargeShare *float64 `placeholder:"S" help:"Exit with 4 when more of the tokens came from other models than the entry model."`
}

// problem is a question with the number that answers it.
type problem struct {
	Question string  `json:"question"`
	Answer   float64 `json:"answer"`
}

// Run measures and prints the report.
func (e *evalCmd) Run(ctx context.Context, p process) error {
	if e.Concurrency < 1 || e.MaxTokens < 1 {
		return usagef("--concurrency and --max-tokens must be at least 1")
	}
	if err := firstOf(checkURL(e.URL), checkShare("--limit-large-share", e.LimitLargeShare), checkShare("--min-accuracy", e.MinAccuracy),
		checkShare("--max-accuracy", e.MaxAccuracy), checkShare("--max-large-share", e.MaxLargeShare),
		checkOutput("--record", e.Record), checkOutput("--plot", e.Plot)); err != nil {
		return err
	}
	problems, err := e.problems()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	if e.Curve || len(e.Policies) > 0 {
		return e.compare(ctx, p, problems)
	}
	if e.Plot != "" {
		return usagef("--plot needs --curve or --policies")
	}
	var report *evalReport
	if e.URL != "" {
		report, err = e.remote(ctx, p, problems)
	} else {
		report, err = e.inProcess(ctx, p, problems)
	}
	interrupted := ctx.Err()
	if interrupted == nil && err != nil {
		return err
	}
	if report == nil || report.N == 0 {
		return &interruptedError{fmt.Sprintf("the evaluation was interrupted before the first of %d problems was answered", len(problems)), cmp.Or(interrupted, err)}
	}
	if e.Output == "json" {
		err = writeJSON(p, report)
	} else {
		err = report.write(p.out)
	}
	if err != nil {
		return err
	}
	if interrupted != nil && report.N < len(problems) {
		return &interruptedError{fmt.Sprintf("the evaluation was interrupted after %d of %d problems; the report is of those", report.N, len(problems)), interrupted}
	}
	return e.check(report)
}

func (e *evalCmd) problems() ([]problem, error) {
	text := models.Problems()
	if e.File != "" {
		var err error
		if text, err = os.ReadFile(e.File); err != nil {
			return nil, &usageError{fmt.Errorf("read problems: %w", err)}
		}
	}
	problems, err := parseProblems(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read problems: %w", err)}
	}
	n, err := someOf(e.N, len(problems), "problems")
	return problems[:n], err
}

// parseProblems reads questions with their answers.
func parseProblems(text []byte) ([]problem, error) { return parseQuestions(text, true) }

// parseQuestions reads questions; answers says that each needs one.
func parseQuestions(text []byte, answers bool) ([]problem, error) {
	var out []problem
	err := jsonLines(text, maxProblemBytes, func(_ int, line []byte) error {
		var p struct {
			Question string   `json:"question"`
			Answer   *float64 `json:"answer"`
		}
		if err := json.Unmarshal(line, &p); err != nil {
			return err
		}
		if p.Question == "" || p.Answer == nil && answers {
			return errors.New("question or answer is missing")
		}
		q := problem{p.Question, math.NaN()}
		overwrite(&q.Answer, p.Answer)
		out = append(out, q)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there are none")
	}
	return out, nil
}

// remote measures a running server, whose models are its own. Policy, threshold and share
// go with the requests.
func (e *evalCmd) remote(ctx context.Context, p process, problems []problem) (*evalReport, error) {
	if len(e.Models) > 1 {
		return nil, usagef("--models: with --url the models are the server's; give one served name")
	}
	o, err := e.override("--limit-large-share", e.LimitLargeShare)
	if err != nil {
		return nil, err
	}
	c := newClient(e.URL)
	name, err := c.pick(ctx, strings.Join(e.Models, ""))
	if err != nil {
		return nil, err
	}
	return e.measure(ctx, p, c, name, o, problems)
}

// inProcess starts a node on a free loopback port and measures that.
func (e *evalCmd) inProcess(ctx context.Context, p process, problems []problem) (*evalReport, error) {
	cfg, name, err := e.quiet(p)
	if err != nil {
		return nil, err
	}
	var o *routing.Override
	if e.LimitLargeShare != nil {
		if len(cfg.Deployments) == 0 {
			return nil, usagef("--limit-large-share: two models or more are needed")
		}
		o = &routing.Override{MaxLargeShare: e.LimitLargeShare}
		cfg.Deployments[0].AllowOverride = true
	}
	var report *evalReport
	err = withNode(ctx, cfg, func(ctx context.Context, n *node.Node) error {
		var err error
		report, err = e.measure(ctx, p, newClient("http://"+reachable(n.Addr())), name, o, problems)
		return err
	})
	return report, err
}

// quiet is a node of the flags on a free loopback port, with a name to ask for: the
// deployment's, or that of the only model.
func (f *nodeFlags) quiet(p process) (cfg node.Config, name string, err error) {
	cfg = node.Defaults()
	cfg.Listen = "127.0.0.1:0"
	cfg.Logger = slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := f.apply(&cfg); err != nil {
		return cfg, "", err
	}
	if err := validate(&cfg); err != nil {
		return cfg, "", err
	}
	if len(cfg.Deployments) > 0 {
		return cfg, cfg.Deployments[0].Name, nil
	}
	return cfg, cfg.Models[0].Name, nil
}

// measure asks every problem and records the answers if that is wanted.
func (e *evalCmd) measure(ctx context.Context, p process, c *client, name string, o *routing.Override, problems []problem) (*evalReport, error) {
	ask := asking{client: c, name: name, override: o, maxTokens: e.MaxTokens, concurrency: e.Concurrency}
	if e.Record == "" {
		return ask.measure(ctx, p, problems, nil)
	}
	record := make([]*recorded, len(problems))
	report, err := ask.measure(ctx, p, problems, record)
	return report, errors.Join(err, writeRecord(e.Record, record))
}

// check compares a report with the bounds that were given.
func (e *evalCmd) check(r *evalReport) error {
	switch {
	case e.MinAccuracy != nil && r.Accuracy < *e.MinAccuracy:
		return &boundError{fmt.Errorf("accuracy is %.3f, the bound is at least %.3f", r.Accuracy, *e.MinAccuracy)}
	case e.MaxAccuracy != nil && r.Accuracy > *e.MaxAccuracy:
		return &boundError{fmt.Errorf("accuracy is %.3f, the bound is at most %.3f", r.Accuracy, *e.MaxAccuracy)}
	case e.MaxLargeShare != nil && r.LargeShare > *e.MaxLargeShare:
		return &boundError{fmt.Errorf("large share is %.4f, the bound is at most %.4f", r.LargeShare, *e.MaxLargeShare)}
	}
	return nil
}
