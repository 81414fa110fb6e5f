package h2

//lint:file-ignore SA1019 see transport.go.

import (
	"context"
	"sync"
	"time"

	"github.com/sourcegraph/conc"
	"golang.org/x/net/http2"

	"github.com/tokenrouter/tokenrouter/internal/pulse"
)

// Of Config.Silence: how often the other side is asked for a sign of life, how often the
// time is looked at, and how much lateness is allowed for.
const (
	askEvery = 100 * time.Millisecond
	askTick  = askEvery / 2
	mostLate = time.Second
)

// watch watches over a connection of the Transport until that ends, in goroutines that
// Close waits for. The caller holds mu, and the Transport is not closed.
func (t *Transport) watch(cc *http2.ClientConn) {
	if t.cfg.Silence == 0 {
		return
	}
	now := time.Now()
	w := &watch{cc: cc, pulse: pulse.New(pulse.Config{Every: askEvery, Tick: askTick, Limit: t.cfg.Silence, Most: mostLate}, now)}
	t.watches.Go(func() {
		ctx, cancel := context.WithCancel(context.Background())
		var both conc.WaitGroup
		both.Go(func() {
			defer cancel()
			w.ask(ctx)
		})
		both.Go(func() {
			defer cancel()
			if w.silent(ctx, t.ended) {
				t.cfg.Log.Warn("connection given up: the other side is silent", "after", t.cfg.Silence)
				_ = cc.Close() // its streams end
			}
		})
		both.Wait()
	})
}

// watch is what is known of one connection.
type watch struct {
	cc *http2.ClientConn

	mu    sync.Mutex
	pulse *pulse.Watch
}

// ask asks for signs of life until ctx or the connection ends.
func (w *watch) ask(ctx context.Context) {
	timer := time.NewTimer(askEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(askEvery)
		if w.cc.Ping(ctx) != nil {
			return
		}
		w.mu.Lock()
		w.pulse.Heard(time.Now())
		w.mu.Unlock()
	}
}

// silent returns when the other side has been silent for too long, or false when ctx, the
// Transport or the connection ends.
func (w *watch) silent(ctx context.Context, ended <-chan struct{}) bool {
	ticker := time.NewTicker(askTick)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return false
		case <-ended:
			return false
		}
		w.mu.Lock()
		silent := w.pulse.Tick(time.Now())
		w.mu.Unlock()
		if silent {
			return true
		}
	}
}
