package bench

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"charm.land/lipgloss/v2"
	"charm.land/lipgloss/v2/table"
)

// Write prints the report for people. It uses no colours.
func (r *Report) Write(w io.Writer) error {
	var b strings.Builder
	r.writeSetup(&b)
	r.writeTotals(&b)
	b.WriteString(r.spreads())
	b.WriteByte('\n')
	if r.sampled() {
		fmt.Fprintf(&b, "Some percentiles are from a uniform sample of %d values.\n", MaxSamples)
	}
	if n := r.Finish["stop"]; r.IgnoreEOS && n > 0 {
		fmt.Fprintf(&b, "%d answers ended by themselves: the server does not ignore the end token.\n", n)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(&b, "%d × %s\n", f.Count, describe(f.Kind, f.Status, f.Code, f.Message))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func line(b *strings.Builder, name, format string, args ...any) {
	fmt.Fprintf(b, "%-9s %s\n", name, fmt.Sprintf(format, args...))
}

func (r *Report) writeSetup(b *strings.Builder) {
	cpu := r.Machine.CPU
	if cpu == "" {
		cpu = "unknown CPU"
	}
	line(b, "server", "%s, model %s, %s", r.URL, r.Model, r.Endpoint)
	line(b, "client", "trctl %s on %s, %d cores, %s/%s", r.Build.Version, cpu, r.Machine.Cores, r.Machine.OS, r.Machine.Arch)
	load := fmt.Sprintf("closed loop, concurrency %d", r.Concurrency)
	if r.Loop == "open" {
		load = fmt.Sprintf("open loop, %g requests/s, %s, at most %d in flight", r.Rate, r.Arrivals, r.Concurrency)
	}
	line(b, "load", "%s, requests before that to warm up: %d", load, r.Warmup)
	asks := []string{r.Prompts}
	if r.MaxTokens > 0 {
		asks = append(asks, fmt.Sprintf("at most %d tokens", r.MaxTokens))
	}
	if r.IgnoreEOS {
		asks = append(asks, "end token ignored")
	}
	if r.Temperature != nil {
		asks = append(asks, fmt.Sprintf("temperature %g", *r.Temperature))
	}
	if !r.Stream {
		asks = append(asks, "not streamed")
	}
	line(b, "requests", "%s", strings.Join(asks, ", "))
}

func (r *Report) writeTotals(b *strings.Builder) {
	ended := fmt.Sprintf("%d succeeded, %d failed in %.2f s", r.Succeeded, r.Failed, r.WallS)
	if r.Interrupted {
		ended += ", interrupted"
	}
	line(b, "ended", "%s", ended)
	line(b, "speed", "%.1f output tokens/s, %.2f requests/s", r.OutputTokensPerS, r.RequestsPerS)
	counted := "counted by the server"
	if n := r.Succeeded - r.CountedByServer; n > 0 {
		counted = fmt.Sprintf("not counted by the server in %d of %d answers, there a piece is a token", n, r.Succeeded)
	}
	if r.Uncounted > 0 {
		counted += fmt.Sprintf("; answers without any count: %d", r.Uncounted)
	}
	line(b, "tokens", "%d output, %d input (%s)", r.OutputTokens, r.InputTokens, counted)
	if r.TokensPerPiece > 0 {
		line(b, "pieces", "%.2f tokens each, %.2f in a read", r.TokensPerPiece, r.PiecesPerRead)
	}
	var finish []string
	for _, name := range slices.Sorted(maps.Keys(r.Finish)) {
		finish = append(finish, fmt.Sprintf("%s %d", name, r.Finish[name]))
	}
	if len(finish) > 0 {
		line(b, "finish", "%s", strings.Join(finish, ", "))
	}
	if x := r.Routing; x != nil {
		var parts []string
		for _, m := range x.Models {
			parts = append(parts, fmt.Sprintf("%s %d (%.1f %%)", m.Name, m.Tokens, 100*m.Share))
		}
		policy := ""
		if x.Policy != "" {
			policy = ", policy " + x.Policy
		}
		line(b, "routing", "%s; large share %.2f %%%s", strings.Join(parts, ", "), 100*x.LargeShare, policy)
	}
}

// row is one row of the table.
type row struct {
	name   string
	spread *Spread
	digits int
}

func (r *Report) rows() []row {
	return []row{
		{"tokens/s per user", r.PerUser, 1},
		{"TTFT, ms", r.TTFT, 2},
		{"inter-token, ms", r.InterToken, 2},
		{"time per token, ms", r.PerToken, 2},
		{"latency, ms", r.Latency, 1},
		{"start delay, ms", r.StartDelay, 2},
		{"input tokens", r.InputLength, 0},
		{"output tokens", r.OutputLength, 0},
	}
}

func (r *Report) sampled() bool {
	return slices.ContainsFunc(r.rows(), func(x row) bool { return x.spread != nil && x.spread.Kept < x.spread.Count })
}

// spreads is the table of all series that have samples.
func (r *Report) spreads() string {
	t := table.New().
		Border(lipgloss.NormalBorder()).
		Headers("", "mean", "p50", "p90", "p99", "max", "samples").
		StyleFunc(func(_, column int) lipgloss.Style {
			style := lipgloss.NewStyle().Padding(0, 1)
			if column > 0 {
				style = style.Align(lipgloss.Right)
			}
			return style
		})
	for _, x := range r.rows() {
		if x.spread == nil {
			continue
		}
		cells := []string{x.name}
		for _, v := range []float64{x.spread.Mean, x.spread.P50, x.spread.P90, x.spread.P99, x.spread.Max} {
			cells = append(cells, fmt.Sprintf("%.*f", x.digits, v))
		}
		t.Row(append(cells, fmt.Sprint(x.spread.Count))...)
	}
	return t.String()
}
