package h2

//lint:file-ignore SA1019 net/http keeps its connections to itself; we must close and replace ours.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/sourcegraph/conc"
	"golang.org/x/net/http2"
)

// Transport is an http.RoundTripper with one connection to one server, made
// when it is needed and again after it has failed. The host of a request's URL
// names the server but does not pick it: Config.Dial does.
type Transport struct {
	cfg   Config
	http2 *http2.Transport

	// dialing is held (full) by the one that connects. Capacity 1.
	dialing chan struct{}

	mu   sync.Mutex
	conn *http2.ClientConn // takes new requests; nil if none
	// old have been told to go away; their last streams are still open.
	old    []*http2.ClientConn
	abort  context.CancelCauseFunc // ends the dial in progress, nil without one
	closed bool
	// ended is closed by Close; watches are then over.
	ended   chan struct{}
	watches conc.WaitGroup // Go with mu held and closed false
}

// NewTransport checks the configuration. It connects nothing.
func NewTransport(cfg Config) (*Transport, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if cfg.Dial == nil {
		return nil, errors.New("h2: Config.Dial is nil")
	}
	t2, err := http2.ConfigureTransports(&http.Transport{
		HTTP2:                  cfg.tuning(),
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeaderBytes,
		TLSClientConfig:        new(tls.Config),
	})
	if err != nil {
		return nil, fmt.Errorf("configure: %w", err)
	}
	return &Transport{cfg: cfg, http2: t2, dialing: make(chan struct{}, 1), ended: make(chan struct{})}, nil
}

// RoundTrip sends one request. It returns when the response's header is there.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	cc, err := t.get(req.Context())
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	return cc.RoundTrip(req)
}

// Close closes the connection, ends its streams and refuses further requests.
func (t *Transport) Close() error {
	defer t.watches.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed {
		close(t.ended)
	}
	t.closed = true
	if t.abort != nil {
		t.abort(ErrClosed)
	}
	var err error
	for _, cc := range append(t.old, t.conn) {
		if cc != nil {
			err = errors.Join(err, cc.Close())
		}
	}
	t.conn, t.old = nil, nil
	return err
}

// Drop closes the connection, if there is one, and ends its streams. The next request
// makes a new one.
func (t *Transport) Drop() {
	t.mu.Lock()
	cc := t.conn
	t.conn = nil
	t.mu.Unlock()
	if cc != nil {
		_ = cc.Close() // it is not used any more
	}
}

// get returns the connection, made first if need be. It makes no reservation:
// with strict streams the library counts the reservations of those that wait,
// and more of them than streams would wait for each other for ever.
func (t *Transport) get(ctx context.Context) (*http2.ClientConn, error) {
	if cc, err := t.current(); cc != nil || err != nil {
		return cc, err
	}
	select {
	case t.dialing <- struct{}{}:
		defer func() { <-t.dialing }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// Another request may have connected meanwhile.
	if cc, err := t.current(); cc != nil || err != nil {
		return cc, err
	}
	nc, err := t.dial(ctx)
	if err != nil {
		return nil, err
	}
	cc, err := t.http2.NewClientConn(nc)
	if err != nil {
		_ = nc.Close()
		return nil, fmt.Errorf("open connection: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = cc.Close()
		return nil, ErrClosed
	}
	t.conn = cc
	t.watch(cc)
	return cc, nil
}

// current returns the connection if there is a good one.
func (t *Transport) current() (*http2.ClientConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, ErrClosed
	case t.conn == nil:
		return nil, nil
	// A connection that died before its first request would take one, to fail it, for ever.
	case !t.conn.State().Closed && t.conn.CanTakeNewRequest():
		return t.conn, nil
	}
	still := t.old[:0]
	for _, cc := range append(t.old, t.conn) {
		if !cc.State().Closed {
			still = append(still, cc)
		}
	}
	t.conn, t.old = nil, still
	return nil, nil
}

// dial connects and secures the connection. It ends with ctx or with Close. The
// caller holds the dialing token.
func (t *Transport) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t.setAbort(cancel)
	defer t.setAbort(nil)
	nc, err := t.cfg.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	if t.cfg.TLS != nil {
		nc = tls.Client(nc, t.cfg.TLS)
	}
	if err := t.cfg.secure(ctx, nc); err != nil {
		_ = nc.Close()
		if cause := context.Cause(ctx); errors.Is(cause, ErrClosed) {
			err = cause // and not that some context was cancelled
		}
		return nil, fmt.Errorf("%w: %w", ErrHandshake, err)
	}
	return nc, nil
}

func (t *Transport) setAbort(cancel context.CancelCauseFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abort = cancel
	if t.closed && cancel != nil {
		cancel(ErrClosed)
	}
}
