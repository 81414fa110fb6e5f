package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows how far an evaluation is: a bar on a terminal, else a plain
// line for every tenth of the work. It writes to standard error only.
type progress struct {
	out   io.Writer
	total int

	// Only one of the two is in use: bars with bar, or lines under mu.
	bars *mpb.Progress
	bar  *mpb.Bar

	mu    sync.Mutex
	tenth int
}

func newProgress(ctx context.Context, p process, total int) *progress {
	g := &progress{out: p.err, total: total}
	if !isTerminal(p.err) {
		return g
	}
	g.bars = mpb.NewWithContext(ctx, mpb.WithOutput(p.err), mpb.WithWidth(40))
	g.bar = g.bars.AddBar(int64(total),
		mpb.PrependDecorators(decor.Name("problems "), decor.CountersNoUnit("%d/%d")),
		mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	return g
}

// step reports that one more answer is in.
func (g *progress) step(t totals, wall time.Duration) {
	if g.bar != nil {
		g.bar.Increment()
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	tenth := 10 * t.asked / g.total
	if tenth <= g.tenth {
		return
	}
	g.tenth = tenth
	accuracy := ""
	if t.judged > 0 {
		accuracy = fmt.Sprintf(" accuracy %.3f,", float64(t.right)/float64(t.judged))
	}
	fmt.Fprintf(g.out, "%d/%d problems,%s %.0f tokens/s\n", t.asked, g.total, accuracy, float64(t.tokens)/wall.Seconds())
}

// end leaves the terminal clean, whether or not all steps came.
func (g *progress) end() {
	if g.bar == nil {
		return
	}
	if !g.bar.Completed() {
		g.bar.Abort(false)
	}
	g.bars.Wait()
}

// isTerminal says whether stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
