package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/internal/bench"
	"github.com/tokenrouter/tokenrouter/models"
)

// Bounds on the files that a benchmark reads.
const (
	maxPromptFileBytes = 1 << 30
	maxKeyBytes        = 64 << 10
)

type benchCmd struct {
	URL        string `env:"TRCTL_URL" default:"http://127.0.0.1:8000" placeholder:"URL" help:"Address of an OpenAI-compatible server (${default})."`
	Model      string `placeholder:"NAME" help:"Model to ask (the server's first)."`
	APIKeyFile string `name:"api-key-file" placeholder:"FILE" help:"File that holds the API key."`
	Endpoint   string `enum:"chat,completions" default:"chat" help:"API to use: ${enum}."`

	Concurrency int           `placeholder:"N" help:"Closed loop: workers, each sends its next request when its last one ends (1). Open loop: most requests in flight (1024)."`
	Rate        float64       `placeholder:"R" help:"Open loop: requests per second, whether or not earlier ones have ended."`
	Arrivals    string        `enum:"poisson,constant" default:"poisson" help:"How the open loop spaces requests: ${enum}."`
	Requests    int           `short:"n" placeholder:"N" help:"Requests to measure (100, unless --duration is given)."`
	Duration    time.Duration `placeholder:"D" help:"Start requests for this long instead, then wait for those in flight."`
	Warmup      *int          `placeholder:"N" help:"Requests sent before, not measured (one each for up to 16 workers)."`
	Timeout     time.Duration `default:"10m" help:"Bound of one request, 0 for none."`

	File         string   `env:"TRCTL_BENCH_FILE" placeholder:"FILE" help:"Prompts, one {\"prompt\"}, {\"messages\"} or {\"prompt_ids\"} a line (the embedded 500 problems)."`
	InputTokens  int      `placeholder:"N" help:"Generated prompts of about this length instead, all different."`
	PromptIDs    bool     `name:"prompt-ids" help:"Generated prompts are token ids, of exactly that length (needs --endpoint completions)."`
	Vocab        int      `default:"512" help:"Generated ids are below this."`
	OutputTokens int      `placeholder:"N" help:"Another name of --max-tokens; exact with --ignore-eos."`
	MaxTokens    int      `placeholder:"N" help:"Bound of an answer in tokens (the server's)."`
	IgnoreEOS    bool     `name:"ignore-eos" help:"Ask the server to go on after an end token."`
	Temperature  *float64 `placeholder:"T" help:"Sampling temperature (the server's default)."`
	Seed         *int64   `placeholder:"S" help:"Seed of generated prompts and arrivals (0). If given, request i also carries the sampling seed S+i."`
	Stream       bool     `negatable:"" default:"true" help:"Ask for streams."`

	MaxErrorRate float64 `default:"0" help:"Exit with 4 when a larger share of the requests fails."`
	Output       string  `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// Run measures and prints the report. An interrupted run prints what it has.
func (c *benchCmd) Run(ctx context.Context, p process, line *kong.Context) error {
	cfg, err := c.config()
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	if cfg.Model == "" {
		if cfg.Model, err = c.firstModel(ctx, cfg.Key); err != nil {
			return err
		}
	}
	b, err := bench.New(cfg)
	if err != nil {
		return &usageError{err}
	}
	report, err := runBench(ctx, p, b, &cfg)
	if report == nil || report.Requests == 0 && err != nil {
		if errors.Is(err, bench.ErrWarmup) {
			return &serverError{err}
		}
		return err
	}
	report.Command = commandLine(line.Args)
	if err := errors.Join(err, c.print(p, report)); err != nil {
		return err
	}
	if report.ErrorRate > c.MaxErrorRate {
		return &boundError{fmt.Errorf("%d of %d requests failed, the bound is a share of %g", report.Failed, report.Requests, c.MaxErrorRate)}
	}
	return nil
}

func (c *benchCmd) print(p process, report *bench.Report) error {
	if c.Output == "json" {
		return writeJSON(p, report)
	}
	return report.Write(p.out)
}

// config is what the flags mean.
func (c *benchCmd) config() (bench.Config, error) {
	cfg := bench.Config{
		URL: c.URL, Model: c.Model, Endpoint: bench.Endpoint(c.Endpoint),
		Rate: c.Rate, Arrivals: bench.Arrivals(c.Arrivals), Concurrency: c.Concurrency,
		Requests: c.Requests, Duration: c.Duration, Timeout: c.Timeout,
		Stream: c.Stream, MaxTokens: c.MaxTokens, IgnoreEOS: c.IgnoreEOS, Temperature: c.Temperature,
	}
	if c.Concurrency == 0 && c.Rate == 0 {
		cfg.Concurrency = 1
	}
	if c.Requests == 0 && c.Duration == 0 {
		cfg.Requests = 100
	}
	if c.Seed != nil {
		cfg.Seed, cfg.SendSeed = *c.Seed, true
	}
	cfg.Warmup = min(cfg.Concurrency, 16)
	if c.Rate > 0 {
		cfg.Warmup = 1
	}
	overwrite(&cfg.Warmup, c.Warmup)
	switch {
	case c.OutputTokens != 0 && c.MaxTokens != 0:
		return cfg, usagef("--output-tokens and --max-tokens mean the same; give one")
	case c.OutputTokens != 0:
		cfg.MaxTokens = c.OutputTokens
	}
	if c.MaxErrorRate < 0 || c.MaxErrorRate > 1 {
		return cfg, usagef("--max-error-rate is %g, it is a share between 0 and 1", c.MaxErrorRate)
	}
	if c.APIKeyFile != "" {
		key, err := readBounded(c.APIKeyFile, maxKeyBytes)
		if err != nil {
			return cfg, &usageError{fmt.Errorf("read the API key: %w", err)}
		}
		cfg.Key = strings.TrimSpace(string(key))
	}
	var err error
	if cfg.Prompts, err = c.prompts(); err != nil {
		return cfg, &usageError{err}
	}
	// The model may still be asked for; all else is checked before that.
	trial := cfg
	if trial.Model == "" {
		trial.Model = "any"
	}
	if _, err := bench.New(trial); err != nil {
		return cfg, &usageError{err}
	}
	return cfg, nil
}

func (c *benchCmd) prompts() (bench.Prompts, error) {
	endpoint := bench.Endpoint(c.Endpoint)
	switch {
	case c.File != "" && c.InputTokens != 0:
		return bench.Prompts{}, errors.New("--file and --input-tokens exclude each other")
	case c.PromptIDs && c.InputTokens == 0:
		return bench.Prompts{}, errors.New("--prompt-ids needs --input-tokens")
	case c.InputTokens != 0:
		s := bench.Synthetic{InputTokens: c.InputTokens, IDs: c.PromptIDs, Vocab: c.Vocab}
		if c.Seed != nil {
			s.Seed = uint64(*c.Seed)
		}
		return bench.Generate(s, endpoint)
	case c.File != "":
		text, err := readBounded(c.File, maxPromptFileBytes)
		if err != nil {
			return bench.Prompts{}, fmt.Errorf("read prompts: %w", err)
		}
		return bench.ParsePrompts(text, endpoint, "file "+c.File)
	}
	return bench.ParsePrompts(models.Problems(), endpoint, "the embedded problems")
}

// firstModel is the first model that the server lists.
func (c *benchCmd) firstModel(ctx context.Context, key string) (string, error) {
	asks := newClient(c.URL)
	if key != "" {
		asks.http.Transport = bearer{key}
	}
	return asks.pick(ctx, "")
}

// runBench runs b and shows on standard error how far it is.
func runBench(ctx context.Context, p process, b *bench.Bench, cfg *bench.Config) (*bench.Report, error) {
	var report *bench.Report
	watched, end := context.WithCancel(ctx)
	defer end()
	group := pool.New().WithErrors().WithFirstError()
	group.Go(func() error {
		defer end()
		var err error
		report, err = b.Run(ctx)
		return err
	})
	group.Go(func() error {
		watchBench(watched, p, b, cfg)
		return nil
	})
	err := group.Wait()
	return report, err
}

// commandLine is the command as a shell would take it.
func commandLine(args []string) string {
	words := []string{"trctl"}
	for _, a := range args {
		if a == "" || strings.ContainsFunc(a, func(r rune) bool {
			return !strings.ContainsRune("-_./:=,@%+", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
		}) {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}
