package peer

import (
	"errors"
	"fmt"
	"io"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// connState is the state of one connection of a link.
type connState uint8

const (
	connOpening connState = iota // Hello goes out, turn frames wait
	connActive                   // turn frames flow
	connLeaving                  // a goodbye goes out, then the writer ends
	connClosed                   // nothing goes out
)

// conn is one stream of a link. The fields are guarded by the link's lock but
// for pending, which belongs to the writer.
//
//	reader goroutine: Hello, then read until it fails
//	writer goroutine: batch until it returns io.EOF
type conn struct {
	link   *Link
	state  connState
	hello  []byte // first bytes to go out, nil afterwards
	code   string // of the goodbye
	next   uint64 // next Seq to send
	ackDue bool
	beat   bool // an Ack goes out even if there is nothing new to acknowledge
	// shut unblocks reader and writer by force. It is called with the link's lock
	// held, at most once, and never after gone.
	shut func()
	// gone is closed by the reader's goroutine when no call of the handler can
	// come from this connection any more.
	gone chan struct{}
}

func newConn(l *Link, hello *handoff.Frame, shut func()) (*conn, error) {
	b, err := handoff.AppendFramed(nil, hello)
	if err != nil {
		return nil, err
	}
	return &conn{link: l, hello: b, shut: shut, gone: make(chan struct{})}, nil
}

// leave makes the writer send a goodbye and end. It does nothing on a
// connection that leaves or is closed.
func (c *conn) leave(code string) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.state < connLeaving {
		c.state, c.code = connLeaving, code
		c.link.wake.Broadcast()
	}
}

// closeLocked ends the connection by force. The caller holds the link's lock.
func (c *conn) closeLocked() {
	c.state = connClosed
	if c.shut != nil {
		c.shut()
		c.shut = nil
	}
	c.link.wake.Broadcast()
}

// part ends the connection for its link: no call of the handler comes from it
// any more. Only the reader's goroutine calls it, once.
func (c *conn) part() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.state, c.shut = connClosed, nil
	if c.link.conn == c {
		c.link.conn = nil
	}
	c.link.wake.Broadcast()
	close(c.gone)
}

// stopWriting lets the writer end without a word.
func (c *conn) stopWriting() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.state < connLeaving {
		c.state = connClosed
		c.link.wake.Broadcast()
	}
}

// batch waits until something is to be written and returns it in buf's memory:
// the Hello; or an acknowledgement and all frames that may be sent. It returns
// io.EOF after the goodbye or on a closed connection.
func (c *conn) batch(buf []byte) ([]byte, error) {
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	buf = buf[:0]
	for {
		switch {
		case c.state == connClosed:
			return nil, io.EOF
		case c.hello != nil:
			buf, c.hello = append(buf, c.hello...), nil
			return buf, nil
		case c.state == connActive:
			if buf = c.collect(buf); len(buf) > 0 {
				return buf, nil
			}
		case c.state == connLeaving:
			c.state = connClosed
			return handoff.AppendFramed(buf, goodbye(c.code))
		}
		l.wake.Wait()
	}
}

// collect appends what may be sent now.
func (c *conn) collect(buf []byte) []byte {
	l := c.link
	more := c.next <= min(l.limit, l.out.last())
	if c.beat || l.recv > l.acked && (c.ackDue || more) {
		ack := handoff.Frame{Kind: handoff.KindAck, Ack: l.recv, Credits: l.cfg.Limits.Window}
		if b, err := handoff.AppendFramed(buf, &ack); err == nil {
			buf = b
			l.acked = l.recv
			l.granted = max(l.granted, l.recv+uint64(l.cfg.Limits.Window))
		}
	}
	c.ackDue, c.beat = false, false
	if more {
		buf, c.next = l.out.take(buf, c.next, l.limit, maxBatch)
		l.sent = max(l.sent, c.next-1)
	}
	return buf
}

// read handles frames until the stream ends. The error says why: ErrProtocol
// for a bad peer, refusal's for a goodbye, else the connection's.
func (c *conn) read(r *handoff.Reader) error {
	l := c.link
	var f handoff.Frame
	for {
		if r.Buffered() == 0 {
			l.ackNow(true)
		}
		if err := r.Next(&f); err != nil {
			return decodeError(err)
		}
		switch {
		case f.Kind == handoff.KindHello:
			return fmt.Errorf("%w: second hello", ErrProtocol)
		case f.Kind == handoff.KindAck:
			l.mu.Lock()
			if f.Ack == l.out.first-1 {
				l.ear.arm() // nothing new is acknowledged: it is a sign of life
			}
			err := l.ackLocked(f.Ack, f.Credits)
			if err == nil && c.next <= min(l.limit, l.out.last()) {
				l.wake.Signal()
			}
			l.mu.Unlock()
			if err != nil {
				return err
			}
		case isGoodbye(&f):
			return refusal(f.Code)
		default:
			handle, err := l.receive(f.Seq)
			if err != nil {
				return err
			}
			if handle {
				l.cfg.Handler.HandleFrame(l, &f)
				l.ackNow(false)
			}
		}
	}
}

// decodeError sorts the errors of handoff.Reader: what the peer wrote is a
// protocol error, a connection that broke is not. A frame cut by the end of
// the stream is a broken connection too.
func decodeError(err error) error {
	for _, bad := range []error{handoff.ErrTooLarge, handoff.ErrMalformed, handoff.ErrKind} {
		if errors.Is(err, bad) {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	}
	return err
}
