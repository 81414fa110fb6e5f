package http1

import (
	"crypto/tls"
	"net"
	"sync/atomic"
)

// Config says how refusals are answered.
type Config struct {
	// Answer makes the body of a refusal's answer, in JSON. It is called once for each,
	// from the goroutine of its connection. It must not be nil.
	Answer func(Refusal) []byte
}

// Refusal is a request that is refused, by this package or by net/http before a handler.
type Refusal struct {
	Status int
	// Why is a sentence for the client. It has nothing of the request in it.
	Why    string
	Remote net.Addr
}

// listener hands out judged connections.
type listener struct {
	net.Listener
	cfg Config
}

// Listen makes a listener whose HTTP/1 connections are judged. Connections are judged unless they are
// a *tls.Conn which has agreed on "h2" already: a listener of TLS must do its handshakes
// itself if it offers that, as package alpn does.
func Listen(l net.Listener, cfg Config) net.Listener {
	return &listener{Listener: l, cfg: cfg}
}

// Accept is net.Listener's.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	secured, isTLS := c.(*tls.Conn)
	switch {
	case !isTLS:
		return &conn{Conn: c, cfg: &l.cfg}, nil
	case secured.ConnectionState().NegotiatedProtocol == "h2":
		return c, nil
	}
	return &tlsConn{conn: conn{Conn: c, cfg: &l.cfg}, secured: secured}, nil
}

// conn judges what is read. Like any connection of net/http it is read by one goroutine at
// a time and written by one at a time, perhaps another.
type conn struct {
	net.Conn
	cfg *Config
	// scanner and told belong to whoever reads. told counts the bytes of poison that were read.
	scanner scanner
	told    int
	// refused is a Reason, set once.
	refused atomic.Uint32
	// rude says that the client perhaps goes on sending what nobody will read.
	rude atomic.Bool
}

// poison makes net/http refuse a request or its body wherever the bytes before it end: a
// CR that is not the end of a line, a control character, and the end of a head. No byte of
// a line, a header, the size of a chunk or its end may be one of the first two, and no
// empty line begins with them.
const poison = "\r\x00\r\n\r\n"

// Read is net.Conn's. From a refused byte on it returns poison and then zeros for ever,
// at once, so that it neither ends an earlier request, which an error would do, nor a
// deadline matters.
func (c *conn) Read(p []byte) (int, error) {
	if c.refused.Load() != 0 {
		return c.readPoison(p), nil
	}
	n, err := c.Conn.Read(p)
	good, why := c.scanner.scan(p[:n])
	if why == 0 {
		return n, err
	}
	c.refused.Store(uint32(why))
	c.rude.Store(true)
	return good + c.readPoison(p[good:]), nil
}

func (c *conn) readPoison(p []byte) int {
	n := copy(p, poison[c.told:])
	c.told += n
	clear(p[n:])
	return len(p)
}

// CloseWrite ends the answers and leaves the connection open to be read, which net/http
// does after some errors.
func (c *conn) CloseWrite() error {
	if w, ok := c.Conn.(writeCloser); ok {
		return w.CloseWrite()
	}
	return nil
}

type writeCloser interface{ CloseWrite() error }

// tlsConn has the method by which net/http knows that a connection is TLS.
type tlsConn struct {
	conn
	secured *tls.Conn
}

// ConnectionState is that of the TLS connection.
func (c *tlsConn) ConnectionState() tls.ConnectionState { return c.secured.ConnectionState() }
