package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/sourcegraph/conc/pool"

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
	N           int    `short:"n" name:"n" default:"100" help:"Number of problems, 0 for all."`
	Concurrency int    `default:"16" help:"Requests in flight."`
	Output      string `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`

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
	problems, err := e.problems()
	if err != nil {
		return err
	}
	if e.Concurrency < 1 || e.MaxTokens < 1 {
		return usagef("--concurrency and --max-tokens must be at least 1")
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
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
	if e.N < 0 || e.N > len(problems) {
		return nil, usagef("--n is %d, there are %d problems", e.N, len(problems))
	}
	if e.N > 0 {
		problems = problems[:e.N]
	}
	return problems, nil
}

func parseProblems(text []byte) ([]problem, error) {
	var out []problem
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, maxProblemBytes)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var p struct {
			Question string   `json:"question"`
			Answer   *float64 `json:"answer"`
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if p.Question == "" || p.Answer == nil {
			return nil, fmt.Errorf("line %d: question or answer is missing", n)
		}
		out = append(out, problem{p.Question, *p.Answer})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("there are none")
	}
	return out, nil
}

// remote measures a running server. Its models and policy are the server's.
func (e *evalCmd) remote(ctx context.Context, p process, problems []problem) (*evalReport, error) {
	if e.Policy != nil || e.Threshold != nil || e.Weights != nil || e.Trace != nil || e.Router != nil || e.Rule != nil || e.ReturnRule != nil || len(e.Models) > 1 {
		return nil, usagef("with --url the server decides about models and policy: give one served name by --models")
	}
	c := newClient(e.URL)
	name, err := c.pick(ctx, strings.Join(e.Models, ""))
	if err != nil {
		return nil, err
	}
	return e.measure(ctx, p, c, name, problems)
}

// inProcess starts a node on a free loopback port and measures that.
func (e *evalCmd) inProcess(ctx context.Context, p process, problems []problem) (*evalReport, error) {
	cfg := node.Defaults()
	cfg.Listen = "127.0.0.1:0"
	cfg.Logger = slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := e.apply(&cfg); err != nil {
		return nil, err
	}
	if err := validate(&cfg); err != nil {
		return nil, err
	}
	name := cfg.Models[0].Name
	if len(cfg.Deployments) > 0 {
		name = cfg.Deployments[0].Name
	}
	var report *evalReport
	err := withNode(ctx, cfg, func(ctx context.Context, n *node.Node) error {
		var err error
		report, err = e.measure(ctx, p, newClient("http://"+reachable(n.Addr())), name, problems)
		return err
	})
	return report, err
}

// measure asks every problem, greedily, and adds up the answers. If ctx ends
// before, the report of those answered comes with the error.
func (e *evalCmd) measure(ctx context.Context, p process, c *client, name string, problems []problem) (*evalReport, error) {
	t := newTally(name)
	bar := newProgress(ctx, p, len(problems))
	start := time.Now()
	asks := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(e.Concurrency)
	for i, q := range problems {
		asks.Go(func(ctx context.Context) error {
			// The seed is for policies that draw; the answers themselves are greedy.
			zero, seed := 0.0, int64(i)
			r, err := c.complete(ctx, chatRequest{
				Model:       name,
				Messages:    []message{{Role: "user", Content: q.Question}},
				MaxTokens:   e.MaxTokens,
				Temperature: &zero,
				Seed:        &seed,
			})
			if err != nil {
				return err
			}
			bar.step(t.add(q, r), time.Since(start))
			return nil
		})
	}
	err := asks.Wait()
	bar.end()
	return t.report(time.Since(start)), err
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
