package memconn

import (
	"context"
	"net"
	"sync"
)

// Listener hands out connections made by Dial. It implements net.Listener.
type Listener struct {
	// conns passes the server's ends. Dial sends and waits for Accept; never closed.
	conns chan net.Conn
	once  sync.Once
	done  chan struct{} // closed by Close
}

// Listen returns a new listener.
func Listen() *Listener {
	return &Listener{conns: make(chan net.Conn), done: make(chan struct{})}
}

// Accept waits for the next Dial. After Close it returns net.ErrClosed.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case <-l.done:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and Dial. Connections stay open. It may be called again.
func (l *Listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return nil
}

// Addr is the address of every end.
func (l *Listener) Addr() net.Addr { return Addr{} }

// Dial returns a connection once Accept has taken its other end. It returns
// net.ErrClosed after Close and the cause of ctx when that ends.
func (l *Listener) Dial(ctx context.Context) (net.Conn, error) {
	near, far := Pipe()
	select {
	case l.conns <- far:
		return near, nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
