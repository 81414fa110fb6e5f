package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Bounds of calls.
const (
	dialTimeout = time.Second
	// maxPeers bounds the connections that are kept.
	maxPeers = 64
)

// Peers are connections to control nodes by address. All methods are safe for
// concurrent use.
type Peers struct {
	credentials *identity.Credentials
	dial        Dial
	log         *slog.Logger

	mu     sync.Mutex
	conns  map[peer]*h2.Transport
	closed bool
}

// peer is where a connection goes; node may be empty for any control node.
type peer struct{ node, addr string }

// Dial connects to an address.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// NewPeers makes the set. It connects nothing yet. dial and log may be nil.
func NewPeers(credentials *identity.Credentials, dial Dial, log *slog.Logger) *Peers {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Peers{credentials: credentials, dial: dial, log: log, conns: map[peer]*h2.Transport{}}
}

// Close ends the connections and refuses further calls.
func (p *Peers) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	var errs []error
	for _, t := range p.conns {
		errs = append(errs, t.Close())
	}
	clear(p.conns)
	return errors.Join(errs...)
}

// Reset ends the connections; calls make new ones.
func (p *Peers) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.conns {
		_ = t.Close() // its calls fail and are repeated
	}
	clear(p.conns)
}

func (p *Peers) transport(to peer) (*h2.Transport, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, h2.ErrClosed
	}
	if t := p.conns[to]; t != nil {
		return t, nil
	}
	if len(p.conns) >= maxPeers {
		// Addresses change seldom; to begin anew is simpler than to know the oldest.
		for key, t := range p.conns {
			_ = t.Close() // its calls fail and are repeated
			delete(p.conns, key)
		}
	}
	t, err := h2.NewTransport(h2.Config{
		TLS: p.credentials.Client(identity.ProtocolHTTP, to.node, cluster.Control),
		Dial: func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return p.dial(ctx, "tcp", to.addr)
		},
		HandshakeTimeout: 2 * dialTimeout,
		Log:              p.log,
	})
	if err != nil {
		return nil, err
	}
	p.conns[to] = t
	return t, nil
}

// Do sends one request. node may be empty; otherwise no other node may answer. What the other
// side answered is an error of this package or of package state; other errors say that no answer
// came, or not all of it.
func (p *Peers) Do(ctx context.Context, node, addr, method, path string, body []byte) (*http.Response, error) {
	t, err := p.transport(peer{node, addr})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, "https://"+addr+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	response, err := t.RoundTrip(request)
	if err != nil {
		return nil, fmt.Errorf("call %s at %s: %w", path, addr, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer func() { _ = response.Body.Close() }()
	problem, err := ReadProblem(response.Body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("call %s at %s: read the answer of status %d: %w", path, addr, response.StatusCode, err)
	case problem.Code == "":
		return nil, fmt.Errorf("call %s at %s: %w: status %d", path, addr, ErrInternal, response.StatusCode)
	}
	return nil, Err(problem)
}

// Call posts a value as JSON and reads the answer, of at most limit bytes.
func (p *Peers) Call(ctx context.Context, node, addr, path string, in, out any, limit int64) error {
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBadRequest, err)
	}
	return p.Send(ctx, node, addr, path, body, out, limit)
}

// Send is Call with a body that is JSON already. out may be a *[]byte, which gets the
// answer as it is.
func (p *Peers) Send(ctx context.Context, node, addr, path string, body []byte, out any, limit int64) error {
	response, err := p.Do(ctx, node, addr, http.MethodPost, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err != nil {
		return fmt.Errorf("call %s at %s: %w", path, addr, err)
	}
	if int64(len(text)) > limit {
		return fmt.Errorf("call %s at %s: %w: the answer has more than %d bytes", path, addr, ErrBadRequest, limit)
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = text
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("call %s at %s: %w: %w", path, addr, ErrBadRequest, err)
	}
	return nil
}
