package main

import (
	"fmt"
	"io"
	"sync"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// loading shows how much of each model's weights is on its GPU: bars on a
// terminal, else a line for every quarter. It is safe for concurrent use.
type loading struct {
	out io.Writer

	mu     sync.Mutex
	bars   *mpb.Progress // nil unless on a terminal
	models map[string]*loadingModel
}

type loadingModel struct {
	bar *mpb.Bar
	// most is the largest number of bytes reported: reports come from several
	// goroutines and may overtake each other.
	most    int64
	quarter int64
}

func newLoading(p process) *loading {
	l := &loading{out: p.err, models: map[string]*loadingModel{}}
	if isTerminal(p.err) {
		l.bars = mpb.New(mpb.WithOutput(p.err), mpb.WithWidth(40))
	}
	return l
}

// report is engine.Config.Progress.
func (l *loading) report(model string, done, total int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.models[model]
	if m == nil || done < m.most && m.most == total { // the first report, or that of a restart
		m = &loadingModel{}
		if l.bars != nil {
			m.bar = l.bars.AddBar(total,
				mpb.PrependDecorators(decor.Name(model+" "), decor.CountersKibiByte("% .1f / % .1f")),
				mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1000(0), "% .1f")))
		}
		l.models[model] = m
	}
	if done <= m.most || total <= 0 {
		return
	}
	m.most = done
	if m.bar != nil {
		m.bar.SetCurrent(done)
		return
	}
	if quarter := 4 * done / total; quarter > m.quarter {
		m.quarter = quarter
		fmt.Fprintf(l.out, "%s: %.1f of %.1f GiB of weights on the GPU\n", model, float64(done)/(1<<30), float64(total)/(1<<30))
	}
}

// end leaves the terminal clean, whether or not all reports came.
func (l *loading) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.bars == nil {
		return
	}
	for _, m := range l.models {
		if m.bar != nil && !m.bar.Completed() {
			m.bar.Abort(false)
		}
	}
	l.bars.Wait()
	l.bars = nil // a restarted replica's reports are lines
}
