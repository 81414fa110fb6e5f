package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/http1"
)

// Bounds of the public HTTP server.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 75 * time.Second
	maxHeaders    = 32 << 10 // bytes
	// closeTimeout is how long connections may take to close once no request runs.
	closeTimeout = 2 * time.Second
)

// Gateway serves the public API. It is safe for concurrent use.
type Gateway struct {
	cfg       Config
	metrics   *metrics
	admission *admission
	perKey    concurrency
	// fresh is nil without Config.Source.
	fresh   *freshness
	started time.Time
	// table is what is deployed now; a request keeps the one that it began with.
	table   atomic.Pointer[session.Table]
	handler http.Handler
	// paths are the patterns of all routes. The router reports the path itself
	// for one that does not exist, which must not become a label.
	paths map[string]bool
}

// New checks the configuration and builds a gateway. It starts nothing. Errors
// wrap ErrConfig, or are the metrics registry's.
func New(cfg Config) (*Gateway, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, err
	}
	if cfg.Session.Metrics = nil; cfg.Metrics != nil {
		if cfg.Session.Metrics, err = session.NewMetrics(cfg.Metrics, subsystem); err != nil {
			return nil, err
		}
	}
	cfg.Session = cfg.Session.WithDefaults()
	g := &Gateway{cfg: cfg, metrics: m, admission: newAdmission(cfg.MaxInFlight), started: time.Now()}
	if cfg.Source != nil {
		g.fresh = &freshness{source: cfg.Source}
	}
	if err := g.Apply(cfg.Deployments); err != nil {
		return nil, err
	}
	g.handler = g.routes()
	return g, nil
}

// Apply replaces what is deployed. Requests in flight end with what they began
// with, once an entry has taken them. Calls must not overlap. Errors wrap ErrConfig and change nothing.
func (g *Gateway) Apply(deployments []session.Deployment) error {
	t, err := session.NewTable(deployments, g.table.Load(), g.started)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	t.Supersede(g.table.Swap(t))
	return nil
}

// Handler returns the public API. Run serves it too; Handler is for a server
// of the caller's, which then has to refuse malformed HTTP/1 itself.
func (g *Gateway) Handler() http.Handler { return g.handler }

// Run serves the public API on the listeners until ctx ends, then drains: new
// requests get 503 and Connection: close, those in flight go on for at most
// DrainTimeout and are then ended with an error. It closes the listeners and
// returns when nothing runs any more, nil after a drain. It may be called once.
//
// HTTP/1 is judged by package http1, which says what a listener of TLS must do to
// offer HTTP/2 besides.
func (g *Gateway) Run(ctx context.Context, listeners ...net.Listener) error {
	srv := &http.Server{
		Handler:           g.handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaders,
		ErrorLog:          slog.NewLogLogger(g.cfg.Logger.Handler(), slog.LevelWarn),
	}
	p := pool.New().WithErrors()
	stopped, stop := context.WithCancel(ctx)
	defer stop()
	for _, ln := range listeners {
		p.Go(func() error {
			defer stop() // a listener that ends by itself ends the others
			if err := srv.Serve(http1.Listen(ln, http1.Config{Answer: g.refuse})); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve the public API: %w", err)
			}
			return nil
		})
	}
	p.Go(func() error {
		<-stopped.Done()
		g.drain(context.WithoutCancel(ctx), srv)
		return nil
	})
	return p.Wait()
}

// drain lets the requests in flight end, then closes the server. The listener
// stays open meanwhile, so that clients are told rather than cut off.
func (g *Gateway) drain(ctx context.Context, srv *http.Server) {
	g.admission.drain()
	srv.SetKeepAlivesEnabled(false)
	waiting, cancel := context.WithTimeout(ctx, g.cfg.DrainTimeout)
	g.admission.wait(waiting)
	cancel()
	g.admission.stop()
	closing, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	if srv.Shutdown(closing) != nil {
		_ = srv.Close() // what is left are connections without a request
	}
}
