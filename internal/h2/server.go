package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sourcegraph/conc"
	"golang.org/x/net/http2"

	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// Server serves a handler over HTTP/2.
type Server struct {
	cfg     Config
	handler http.Handler
}

// NewServer checks the configuration. It starts nothing.
func NewServer(cfg Config, handler http.Handler) (*Server, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if handler == nil {
		return nil, errors.New("h2: handler is nil")
	}
	return &Server{cfg: cfg, handler: handler}, nil
}

// Serve accepts connections until ctx ends, then tells the clients to go away,
// waits Config.Grace for open streams and closes what is left. Requests see ctx
// end; their TLS field is set exactly if the connection is TLS. On return the listener and all connections are closed and all handlers
// have returned. It returns the cause of ctx, or the listener's error.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	r := &run{cfg: &s.cfg, open: make(map[net.Conn]struct{}), busy: make(map[net.Conn]struct{})}
	r.http = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.handle(s.handler, w, req) }),
		HTTP2:             s.cfg.tuning(),
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: s.cfg.HandshakeTimeout,
		ErrorLog:          slog.NewLogLogger(s.cfg.Log.Handler(), slog.LevelDebug),
		ConnState:         r.state,
	}
	//lint:ignore SA1019 net/http cannot serve HTTP/2 on a connection that is not from its own listener.
	r.http2 = new(http2.Server)
	//lint:ignore SA1019 as above; it ties the server to r.http for Shutdown.
	if err := http2.ConfigureServer(r.http, r.http2); err != nil {
		return fmt.Errorf("configure: %w", err)
	}
	stop := context.AfterFunc(ctx, func() {
		// It only ends Accept; Close is called again below with its error.
		_ = l.Close()
	})
	defer stop()
	var conns conc.WaitGroup
	err := r.accept(ctx, l, &conns)
	if cerr := l.Close(); err == nil && cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = cerr
	}
	r.drain()
	conns.Wait()
	r.handlers.Wait()
	return err
}

// run is one call of Serve.
type run struct {
	cfg  *Config
	http *http.Server
	//lint:ignore SA1019 see Serve.
	http2 *http2.Server

	mu     sync.Mutex
	open   map[net.Conn]struct{} // accepted
	busy   map[net.Conn]struct{} // with open streams; the connection may be the TLS one
	idle   chan struct{}         // closed when busy is empty, nil until drain
	closed bool                  // no new connection starts
	ended  bool                  // no new handler starts

	// refused goes by hosts.
	refused unwelcome.Log

	handlers sync.WaitGroup // Add with mu held and ended false
}

// accept serves connections until the listener ends.
func (r *run) accept(ctx context.Context, l net.Listener, conns *conc.WaitGroup) error {
	const minWait, maxWait = 5 * time.Millisecond, time.Second
	wait := minWait
	for {
		nc, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = nc.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil {
			var ne net.Error
			if errors.Is(err, net.ErrClosed) || !errors.As(err, &ne) {
				return fmt.Errorf("accept: %w", err)
			}
			// Out of files, most likely: more may be free later.
			r.cfg.Log.Warn("accept", "err", err)
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
			wait = min(2*wait, maxWait)
			continue
		}
		wait = minWait
		if !r.add(nc) {
			r.refuse(nc, errTooMany)
			_ = nc.Close()
			continue
		}
		conns.Go(func() { r.serve(ctx, nc) })
	}
}

// errTooMany says that a server has Config.MaxConns connections.
var errTooMany = errors.New("too many connections")

// refuse tells of a connection that is not served.
func (r *run) refuse(nc net.Conn, err error) {
	remote := nc.RemoteAddr().String()
	r.refused.Note(r.cfg.Log, "connection refused", unwelcome.Host(remote), err, "addr", remote)
}

func (r *run) add(nc net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.open) >= r.cfg.MaxConns {
		return false
	}
	r.open[nc] = struct{}{}
	return true
}

func (r *run) remove(nc net.Conn) {
	_ = nc.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, nc)
}

// state notes which connections have open streams. The library calls it.
func (r *run) state(nc net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if state == http.StateActive {
		r.busy[nc] = struct{}{}
		return
	}
	delete(r.busy, nc)
	if len(r.busy) == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

// serve runs one connection to its end.
func (r *run) serve(ctx context.Context, nc net.Conn) {
	defer r.remove(nc)
	conn := nc
	if r.cfg.TLS != nil {
		conn = tls.Server(nc, r.cfg.TLS)
	}
	if err := r.cfg.secure(ctx, conn); err != nil {
		if ctx.Err() == nil {
			r.refuse(nc, err)
		}
		return
	}
	// ServeConn tells of no last state if it ends with open streams.
	defer r.state(conn, http.StateClosed)
	handler := r.http.Handler
	if tc, ok := conn.(*tls.Conn); ok {
		// The library leaves out the TLS state of a request that claims the scheme
		// "http", which would then look like one from this process.
		state := tc.ConnectionState()
		handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			req.TLS = &state
			r.http.Handler.ServeHTTP(w, req)
		})
	}
	//lint:ignore SA1019 see Serve.
	r.http2.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, BaseConfig: r.http, Handler: handler})
}

// handle lets Serve wait for handlers, which the library does not.
func (r *run) handle(h http.Handler, w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		panic(http.ErrAbortHandler) // resets the stream without a word
	}
	r.handlers.Add(1)
	r.mu.Unlock()
	defer r.handlers.Done()
	h.ServeHTTP(w, req)
}

// flushTime is left to the last frames of a stream that has ended, and to the
// word to go away.
const flushTime = 10 * time.Millisecond

// drain tells the clients to go away, waits for open streams up to Grace, and
// closes all connections.
func (r *run) drain() {
	idle := make(chan struct{})
	r.mu.Lock()
	r.closed = true
	if len(r.busy) == 0 {
		close(idle)
	} else {
		r.idle = idle
	}
	none := len(r.open) == 0
	r.mu.Unlock()

	// There are no listeners or connections of its own, so Shutdown returns at
	// once. It makes every HTTP/2 connection send GOAWAY.
	_ = r.http.Shutdown(context.Background())
	timer := time.NewTimer(r.cfg.Grace)
	defer timer.Stop()
	select {
	case <-idle:
		if !none {
			timer.Reset(flushTime)
			<-timer.C
		}
	case <-timer.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for nc := range r.open {
		// Its serve loop ends, and with it the contexts of its requests.
		_ = nc.Close()
	}
}
