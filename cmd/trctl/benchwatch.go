package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/tokenrouter/tokenrouter/internal/bench"
)

// How often progress is shown.
const (
	barEvery  = 200 * time.Millisecond
	lineEvery = 10 * time.Second
)

// watchBench shows how far a benchmark is until ctx ends: a bar on a terminal,
// else a plain line now and then. It writes to standard error only.
func watchBench(ctx context.Context, p process, b *bench.Bench, cfg *bench.Config) {
	every := lineEvery
	show := func(q bench.Progress) { fmt.Fprintln(p.err, progressLine(q, cfg)) }
	if isTerminal(p.err) {
		bars := mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(40))
		bar := bars.AddBar(1000, mpb.BarRemoveOnComplete(),
			mpb.PrependDecorators(decor.Any(func(decor.Statistics) string { return progressLine(b.Progress(), cfg) + " " })),
			mpb.AppendDecorators(decor.Percentage()))
		every = barEvery
		show = func(q bench.Progress) { bar.SetCurrent(int64(min(999, 1000*done(q, cfg)))) }
		defer func() {
			bar.Abort(true)
			bars.Wait()
		}()
	}
	ticks := time.NewTicker(every)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			show(b.Progress())
		case <-ctx.Done():
			return
		}
	}
}

// done is the share of the run that is over.
func done(q bench.Progress, cfg *bench.Config) float64 {
	if cfg.Duration > 0 {
		return min(1, q.Elapsed.Seconds()/cfg.Duration.Seconds())
	}
	return float64(q.Done) / float64(cfg.Requests)
}

func progressLine(q bench.Progress, cfg *bench.Config) string {
	if !q.Measuring {
		return "warm-up"
	}
	of := ""
	if cfg.Requests > 0 {
		of = fmt.Sprintf("/%d", cfg.Requests)
	}
	failed := ""
	if q.Failed > 0 {
		failed = fmt.Sprintf(", %d failed", q.Failed)
	}
	return fmt.Sprintf("%d%s requests%s, %.0f tokens/s", q.Done, of, failed, float64(q.Tokens)/max(q.Elapsed.Seconds(), 1e-3))
}

// bearer sends an API key with every request.
type bearer struct{ key string }

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.key)
	return http.DefaultTransport.RoundTrip(req)
}

// readBounded reads a file of at most limit bytes.
func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("%s has more than %d bytes", path, limit)
	}
	return text, nil
}
