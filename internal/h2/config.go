package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// Protocol is the ALPN name.
const Protocol = "h2"

// Sizes and times of every connection.
const (
	connWindow       = 64 << 20
	streamWindow     = 256 << 10
	maxFrame         = 64 << 10
	maxHeaderBytes   = 32 << 10
	readIdle         = 2 * time.Second
	pingTimeout      = time.Second
	writeByteTimeout = 5 * time.Second
)

var (
	// ErrPlaintext is returned for a connection that is neither TLS nor in memory.
	ErrPlaintext = errors.New("h2: refusing HTTP/2 without TLS on a network")
	// ErrProtocol is returned when the other side did not agree to ALPN "h2".
	ErrProtocol = errors.New("h2: the other side does not speak h2")
	// ErrHandshake is returned for a connection that could not be secured. Nothing that its
	// other side may have said is known to be of whom it should be.
	ErrHandshake = errors.New("secure connection")
	// ErrClosed is returned by a Transport after Close.
	ErrClosed = errors.New("h2: transport is closed")
)

// Config configures a Server or a Transport. Zero values take the defaults.
type Config struct {
	// TLS makes the connections TLS. The package adds ALPN and the minimum
	// version. Without it, connections must be *tls.Conn already or in memory.
	TLS *tls.Config
	// Dial connects a Transport to its server. A Server does not use it.
	Dial func(ctx context.Context) (net.Conn, error)
	// MaxStreams bounds the open streams of one connection: 1024. A client waits
	// for its turn beyond that, once it has seen the server's bound; until then it
	// takes 100 for granted, and more than the bound are refused.
	MaxStreams int
	// MaxConns bounds the open connections of a Server: 1024. More are closed at once.
	MaxConns int
	// HandshakeTimeout bounds the TLS handshake: 3 s.
	HandshakeTimeout time.Duration
	// Grace is how long Serve waits for open streams after its ctx has ended: 500 ms.
	Grace time.Duration
	// Silence is how long a Transport's connection may leave pings unanswered before it is
	// given up and its streams end; longer while answers come late, or this process is
	// late itself (package pulse). It finds a lost server within Silence and 50 ms. 0 leaves
	// it to the library's pings: 2 s without a frame, then 1 s for an answer.
	Silence time.Duration
	// SameProcess says that both ends are in one process. Then a connection is never given up for being silent or slow: the
	// other end cannot be lost alone, and a process that gets little time is late at both.
	SameProcess bool
	// Log gets refused connections at Warn, the library's words at Debug. Nil discards.
	Log *slog.Logger
}

func (c *Config) fill() error {
	if c.MaxStreams < 0 || c.MaxConns < 0 || c.HandshakeTimeout < 0 || c.Grace < 0 || c.Silence < 0 {
		return errors.New("h2: Config has a negative value")
	}
	if c.SameProcess && c.Silence > 0 {
		return errors.New("h2: Config has both SameProcess and Silence")
	}
	if c.MaxStreams == 0 {
		c.MaxStreams = 1024
	}
	if c.MaxConns == 0 {
		c.MaxConns = 1024
	}
	if c.HandshakeTimeout == 0 {
		c.HandshakeTimeout = 3 * time.Second
	}
	if c.Grace == 0 {
		c.Grace = 500 * time.Millisecond
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.TLS != nil {
		c.TLS = c.TLS.Clone()
		c.TLS.NextProtos = []string{Protocol}
		c.TLS.MinVersion = tls.VersionTLS13
	}
	return nil
}

// tuning is the same for both ends.
func (c *Config) tuning() *http.HTTP2Config {
	t := &http.HTTP2Config{
		MaxConcurrentStreams:          c.MaxStreams,
		StrictMaxConcurrentRequests:   true,
		MaxReadFrameSize:              maxFrame,
		MaxReceiveBufferPerConnection: connWindow,
		MaxReceiveBufferPerStream:     streamWindow,
	}
	if !c.SameProcess {
		t.SendPingTimeout, t.PingTimeout, t.WriteByteTimeout = readIdle, pingTimeout, writeByteTimeout
	}
	return t
}

// secure finishes the handshake of a TLS connection and refuses one that does
// not speak h2, or that is neither TLS nor in memory.
func (c *Config) secure(ctx context.Context, nc net.Conn) error {
	tc, ok := nc.(*tls.Conn)
	if !ok {
		if !memconn.Is(nc) {
			return ErrPlaintext
		}
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.HandshakeTimeout)
	defer cancel()
	if err := tc.HandshakeContext(ctx); err != nil {
		return err
	}
	if tc.ConnectionState().NegotiatedProtocol != Protocol {
		return ErrProtocol
	}
	return nil
}
