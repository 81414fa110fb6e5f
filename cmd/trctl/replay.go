package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/routing"
	"github.com/tokenrouter/tokenrouter/internal/node"
)

type replayCmd struct {
	File string `arg:"" help:"Requests with their answers, one a line, as trctl eval --record writes them."`
	URL  string `env:"TRCTL_URL" placeholder:"URL" help:"Replay on a running server, which must let requests override its policy; without it the models run in this process."`
	nodeFlags
	MaxShare    *float64 `name:"max-large-share" placeholder:"S" help:"Bound the share of other models in every answer."`
	Concurrency int      `default:"16" help:"Requests in flight."`
	All         bool     `help:"List answers that stay the same, too."`
	Output      string   `short:"o" enum:"text,json" default:"text" help:"Output format: ${enum}."`
}

// replayed compares a recorded answer with the one of the replay; its JSON names
// are stable. What does not part has -1.
type replayed struct {
	Line int `json:"line"`
	// TextParts is the first character that differs, TokenParts the first token that
	// another model wrote.
	TextParts  int    `json:"text_parts"`
	TokenParts int    `json:"token_parts"`
	Before     string `json:"before,omitempty"`
	After      string `json:"after,omitempty"`
	// Large are tokens of other models than the entry model, Tokens all.
	LargeBefore  int `json:"large_before"`
	LargeAfter   int `json:"large_after"`
	TokensBefore int `json:"tokens_before"`
	TokensAfter  int `json:"tokens_after"`
}

// replayReport sums them up; its JSON names are stable.
type replayReport struct {
	Policy   string     `json:"policy"`
	N        int        `json:"n"`
	Same     int        `json:"same"`
	Requests []replayed `json:"requests"`
	// Shares of the tokens that other models than the entry model wrote.
	LargeShareBefore float64 `json:"large_share_before"`
	LargeShareAfter  float64 `json:"large_share_after"`
	TokensBefore     int     `json:"tokens_before"`
	TokensAfter      int     `json:"tokens_after"`
}

// Run asks recorded requests again under another policy or threshold, with the
// same seeds, and says where the texts part and what that costs.
func (c *replayCmd) Run(ctx context.Context, p process) error {
	if c.Concurrency < 1 {
		return usagef("--concurrency must be at least 1")
	}
	if err := firstOf(checkURL(c.URL), checkShare("--max-large-share", c.MaxShare)); err != nil {
		return err
	}
	list, err := readRecord(c.File)
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	var report *replayReport
	if c.URL != "" {
		report, err = c.remote(ctx, p, list)
	} else {
		report, err = c.inProcess(ctx, p, list)
	}
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return writeJSON(p, report)
	}
	return report.write(p.out, c.All)
}

// remote asks a running server, whose models are its own.
func (c *replayCmd) remote(ctx context.Context, p process, list []*recorded) (*replayReport, error) {
	if len(c.Models) > 0 {
		return nil, usagef("--models: with --url the requests name the model")
	}
	o, err := c.override("--max-large-share", c.MaxShare)
	if err != nil {
		return nil, err
	}
	return c.replay(ctx, p, newClient(c.URL), "", o, list)
}

func (c *replayCmd) inProcess(ctx context.Context, p process, list []*recorded) (report *replayReport, err error) {
	cfg, name, err := c.quiet(p)
	if err != nil {
		return nil, err
	}
	var o *routing.Override
	if c.MaxShare != nil {
		if len(cfg.Deployments) == 0 {
			return nil, usagef("--max-large-share needs two models or more")
		}
		o = &routing.Override{MaxLargeShare: c.MaxShare}
		cfg.Deployments[0].AllowOverride = true
	}
	err = withNode(ctx, cfg, func(ctx context.Context, n *node.Node) error {
		report, err = c.replay(ctx, p, newClient("http://"+reachable(n.Addr())), name, o, list)
		return err
	})
	return report, err
}

// replay asks everything; an empty name leaves each request its own.
func (c *replayCmd) replay(ctx context.Context, p process, to *client, name string, o *routing.Override, list []*recorded) (*replayReport, error) {
	out := &replayReport{N: len(list), Requests: make([]replayed, len(list))}
	names := make([]string, len(list))
	t := newTally(name)
	bar := newProgress(ctx, p, len(list))
	start := time.Now()
	asks := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError().WithMaxGoroutines(c.Concurrency)
	for i, old := range list {
		asks.Go(func(ctx context.Context) error {
			req := old.chatRequest
			if req.Routing = o; name != "" {
				req.Model = name
			}
			r, err := to.complete(ctx, req)
			if err != nil {
				return fmt.Errorf("line %d: %w", old.line, err)
			}
			now := recordOf(req, r)
			out.Requests[i], names[i] = compareRecords(old.line, old, now), now.Policy
			bar.step(t.add(problem{Answer: math.NaN()}, r), time.Since(start))
			return nil
		})
	}
	err := asks.Wait()
	bar.end()
	if err != nil {
		return nil, err
	}
	out.Policy = names[0]
	out.sum()
	return out, nil
}

// sum fills the totals.
func (r *replayReport) sum() {
	before, after := 0, 0
	for _, q := range r.Requests {
		if q.TextParts < 0 {
			r.Same++
		}
		before += q.LargeBefore
		after += q.LargeAfter
		r.TokensBefore += q.TokensBefore
		r.TokensAfter += q.TokensAfter
	}
	r.LargeShareBefore = float64(before) / float64(max(r.TokensBefore, 1))
	r.LargeShareAfter = float64(after) / float64(max(r.TokensAfter, 1))
}

// shown is how much of a text is shown where it parts, in bytes.
const shown = 40

// compareRecords says where an answer parts from the recorded one.
func compareRecords(line int, old, now *recorded) replayed {
	q := replayed{Line: line, TextParts: -1, TokenParts: writersPart(old.Provenance, now.Provenance)}
	q.LargeBefore, q.TokensBefore = countLarge(old, now)
	q.LargeAfter, q.TokensAfter = countLarge(now, old)
	if old.Text == now.Text {
		return q
	}
	n := 0
	for n < len(old.Text) && n < len(now.Text) && old.Text[n] == now.Text[n] {
		n++
	}
	for n > 0 && n < len(old.Text) && !utf8.RuneStart(old.Text[n]) {
		n--
	}
	q.TextParts = utf8.RuneCountInString(old.Text[:n])
	q.Before, q.After = clip(old.Text[n:]), clip(now.Text[n:])
	return q
}

// clip cuts a text to what is shown of it.
func clip(s string) string {
	if len(s) <= shown {
		return s
	}
	n := shown
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// writersPart is the first token that two lists give to different models, or after
// which one of them ends; -1 if they agree.
func writersPart(a, b []span) int {
	at := 0
	for len(a) > 0 && len(b) > 0 && a[0].Model == b[0].Model {
		if a[0].N != b[0].N {
			return at + min(a[0].N, b[0].N)
		}
		at += a[0].N
		a, b = a[1:], b[1:]
	}
	if len(a) == 0 && len(b) == 0 {
		return -1
	}
	return at
}

// countLarge counts the tokens of an answer that another model than the entry model
// wrote, and all. The answer is compared with another one of the same request.
func countLarge(r, with *recorded) (large, all int) {
	entry := r.Entry
	wroteThere := func(s span) bool { return s.Model == r.Entry }
	if entry == "" || with.Entry != "" && slices.ContainsFunc(with.Provenance, wroteThere) {
		entry = with.Entry // there its entry model is the large one: a model alone beside a pair
	}
	for _, s := range r.Provenance {
		all += s.N
		if entry != "" && s.Model != entry {
			large += s.N
		}
	}
	return large, all
}

func (r *replayReport) write(w io.Writer, all bool) error {
	for _, q := range r.Requests {
		switch {
		case q.TextParts >= 0:
			fmt.Fprintf(w, "line %d: parts at character %d, token %d; large %d of %d became %d of %d\n  before %q\n  after  %q\n",
				q.Line, q.TextParts, q.TokenParts, q.LargeBefore, q.TokensBefore, q.LargeAfter, q.TokensAfter, q.Before, q.After)
		case all:
			fmt.Fprintf(w, "line %d: the same text; large %d of %d became %d of %d\n", q.Line, q.LargeBefore, q.TokensBefore, q.LargeAfter, q.TokensAfter)
		}
	}
	_, err := fmt.Fprintf(w, "policy       %s\nrequests     %d\nsame text    %d\nlarge share  %.2f %% became %.2f %%\ntokens       %d became %d\n",
		r.Policy, r.N, r.Same, 100*r.LargeShareBefore, 100*r.LargeShareAfter, r.TokensBefore, r.TokensAfter)
	return err
}

// readRecord reads a recording.
func readRecord(name string) ([]*recorded, error) {
	stat, err := os.Stat(name)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read recording: %w", err)}
	}
	if stat.Size() > maxRecordBytes {
		return nil, usagef("read recording: %s has %d bytes, the limit is %d", name, stat.Size(), maxRecordBytes)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, &usageError{fmt.Errorf("read recording: %w", err)}
	}
	list, err := parseRecord(text)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%s: %w", name, err)}
	}
	return list, nil
}

func parseRecord(text []byte) ([]*recorded, error) {
	var list []*recorded
	err := jsonLines(text, maxReplyBytes, func(n int, line []byte) error {
		var r struct {
			recorded
			Text *string `json:"text"`
		}
		if err := json.Unmarshal(line, &r); err != nil {
			return err
		}
		if r.Model == "" || len(r.Messages) == 0 {
			return errors.New("it has no model or no messages")
		}
		if r.Text == nil {
			return errors.New("it has no answer (text) to compare with; trctl eval --record writes such lines")
		}
		r.recorded.Text, r.line = *r.Text, n
		list = append(list, &r.recorded)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("there are no requests")
	}
	return list, nil
}
