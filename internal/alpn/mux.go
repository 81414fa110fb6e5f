package alpn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// Defaults of Config.
const (
	DefaultHandshakeTimeout = 3 * time.Second
	DefaultMaxPending       = 128
)

// Config configures a Mux. Zero values take the defaults.
type Config struct {
	// TLS has the protocols in NextProtos or GetConfigForClient, and checks peers.
	TLS *tls.Config
	// HandshakeTimeout bounds a handshake.
	HandshakeTimeout time.Duration
	// MaxPending bounds the handshakes that are going on; more wait in the kernel.
	MaxPending int
	// Plaintext is sent to clients that do not speak TLS. Nil sends nothing.
	Plaintext []byte
	// Refused is told of every handshake that fails. May be nil.
	Refused func(remote net.Addr, err error)
	// Log may be nil.
	Log *slog.Logger
}

// Mux accepts connections for several listeners.
type Mux struct {
	cfg       Config
	under     net.Listener
	listeners map[string]*listener
	// refused goes by hosts, and forgets none: others there may be let in meanwhile.
	refused unwelcome.Log
}

// New makes a Mux over a listener for the protocols. It starts nothing.
func New(under net.Listener, cfg Config, protocols ...string) (*Mux, error) {
	if cfg.TLS == nil {
		return nil, errors.New("alpn: there is no TLS configuration")
	}
	if cfg.HandshakeTimeout == 0 {
		cfg.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if cfg.MaxPending == 0 {
		cfg.MaxPending = DefaultMaxPending
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	m := &Mux{cfg: cfg, under: under, listeners: map[string]*listener{}}
	for _, p := range protocols {
		m.listeners[p] = &listener{addr: under.Addr(), conns: make(chan net.Conn), closed: make(chan struct{})}
	}
	return m, nil
}

// Listener is the one of a protocol that New was given. Its connections are *tls.Conn
// after the handshake.
func (m *Mux) Listener(protocol string) net.Listener { return m.listeners[protocol] }

// Serve accepts until ctx ends. On return the listener under it and the protocols'
// listeners are closed.
func (m *Mux) Serve(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = m.under.Close() }) // it ends Accept
	defer stop()
	var handshakes conc.WaitGroup
	err := m.accept(ctx, &handshakes)
	if cerr := m.under.Close(); err == nil && cerr != nil && !errors.Is(cerr, net.ErrClosed) {
		err = cerr
	}
	for _, l := range m.listeners {
		_ = l.Close()
	}
	handshakes.Wait()
	return err
}

func (m *Mux) accept(ctx context.Context, handshakes *conc.WaitGroup) error {
	pending := make(chan struct{}, m.cfg.MaxPending)
	for {
		select {
		case pending <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		conn, err := m.under.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return context.Cause(ctx)
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("alpn: accept: %w", err)
			}
			// Out of files, most likely: more may be free later.
			m.cfg.Log.Warn("accept", "err", err)
			<-pending
			if !pause(ctx, 50*time.Millisecond) {
				return context.Cause(ctx)
			}
			continue
		}
		handshakes.Go(func() {
			ready := m.handshake(ctx, conn)
			<-pending
			if ready != nil {
				m.deliver(ctx, ready)
			}
		})
	}
}

// handshake returns nil for a connection that is refused and closed.
func (m *Mux) handshake(ctx context.Context, conn net.Conn) *tls.Conn {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.HandshakeTimeout)
	defer cancel()
	secured := tls.Server(conn, m.cfg.TLS)
	err := secured.HandshakeContext(ctx)
	if err == nil {
		if m.listeners[secured.ConnectionState().NegotiatedProtocol] != nil {
			return secured
		}
		err = fmt.Errorf("alpn: nobody speaks %.32q here", secured.ConnectionState().NegotiatedProtocol)
	}
	var foreign tls.RecordHeaderError
	if errors.As(err, &foreign) && foreign.Conn != nil && len(m.cfg.Plaintext) > 0 && conn.SetWriteDeadline(time.Now().Add(m.cfg.HandshakeTimeout)) == nil {
		_, _ = conn.Write(m.cfg.Plaintext) // a favour; it may have gone
	}
	_ = conn.Close()
	remote := conn.RemoteAddr().String()
	m.refused.Note(m.cfg.Log, "connection refused", unwelcome.Host(remote), err, "addr", remote)
	if m.cfg.Refused != nil {
		m.cfg.Refused(conn.RemoteAddr(), err)
	}
	return nil
}

// deliver gives a connection to its protocol's listener, which may be closed.
func (m *Mux) deliver(ctx context.Context, conn *tls.Conn) {
	l := m.listeners[conn.ConnectionState().NegotiatedProtocol]
	select {
	case l.conns <- conn:
	case <-l.closed:
		_ = conn.Close()
	case <-ctx.Done():
		_ = conn.Close()
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// listener is one protocol's.
type listener struct {
	addr   net.Addr
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }
