package memconn

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// BufferBytes is the capacity of each direction of a connection.
const BufferBytes = 256 << 10

// Pipe returns two connected ends. What one writes the other reads.
func Pipe() (net.Conn, net.Conn) {
	ab, ba := newHalf(), newHalf()
	return &conn{in: ba, out: ab}, &conn{in: ab, out: ba}
}

// Is reports whether c is an end made by this package, or a wrapper of one that
// keeps its addresses.
func Is(c net.Conn) bool {
	_, ok := c.LocalAddr().(Addr)
	return ok
}

// conn is one end.
type conn struct {
	in, out *half
}

func (c *conn) Read(p []byte) (int, error)  { return c.in.read(p) }
func (c *conn) Write(p []byte) (int, error) { return c.out.write(p) }

// Close ends both directions. The other end reads what was written, then io.EOF.
func (c *conn) Close() error {
	c.in.closeReader()
	c.out.closeWriter()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return Addr{} }
func (c *conn) RemoteAddr() net.Addr { return Addr{} }

func (c *conn) SetDeadline(t time.Time) error {
	if err := c.SetReadDeadline(t); err != nil {
		return err
	}
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error  { return c.in.setDeadline(&c.in.reader, t) }
func (c *conn) SetWriteDeadline(t time.Time) error { return c.out.setDeadline(&c.out.writer, t) }

// Addr is the address of every end.
type Addr struct{}

// Network names the network.
func (Addr) Network() string { return "memory" }

// String is the same for all ends.
func (Addr) String() string { return "memory" }

// side is the reading or the writing side of a half.
type side struct {
	wake   sync.Cond // L is the half's lock; broadcast on every change that may end a wait
	closed bool
	late   bool        // the deadline has passed
	timer  *time.Timer // of the deadline, nil without one
	round  uint64      // tells a timer that fires late that its deadline was replaced
}

// half is one direction: a ring buffer.
type half struct {
	mu     sync.Mutex
	reader side
	writer side
	buf    []byte // ring, grows to BufferBytes
	from   int    // index of the first byte
	n      int    // bytes held
}

func newHalf() *half {
	h := new(half)
	h.reader.wake.L, h.writer.wake.L = &h.mu, &h.mu
	return h
}

func (h *half) read(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		switch {
		case h.reader.closed:
			return 0, io.ErrClosedPipe
		case h.reader.late:
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case h.n > 0:
			k := h.pop(p)
			h.writer.wake.Broadcast()
			return k, nil
		case h.writer.closed:
			return 0, io.EOF
		}
		h.reader.wake.Wait()
	}
}

func (h *half) write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	done := 0
	for {
		switch {
		case h.writer.closed:
			return done, io.ErrClosedPipe
		case h.reader.closed:
			return done, io.ErrClosedPipe
		case h.writer.late:
			return done, os.ErrDeadlineExceeded
		case done == len(p):
			return done, nil
		case h.n < BufferBytes:
			done += h.push(p[done:])
			h.reader.wake.Broadcast()
			if done == len(p) {
				return done, nil
			}
		default:
			h.writer.wake.Wait()
		}
	}
}

// pop moves up to len(p) bytes out of the ring.
func (h *half) pop(p []byte) int {
	total := 0
	for h.n > 0 && total < len(p) {
		k := copy(p[total:], h.buf[h.from:min(h.from+h.n, len(h.buf))])
		h.from, h.n, total = (h.from+k)%len(h.buf), h.n-k, total+k
	}
	return total
}

// push moves up to len(p) bytes into the ring.
func (h *half) push(p []byte) int {
	p = p[:min(len(p), BufferBytes-h.n)]
	if h.n+len(p) > len(h.buf) {
		h.grow(h.n + len(p))
	}
	total := 0
	for total < len(p) {
		at := (h.from + h.n) % len(h.buf)
		k := copy(h.buf[at:min(at+len(h.buf)-h.n, len(h.buf))], p[total:])
		h.n, total = h.n+k, total+k
	}
	return total
}

// grow makes room for n bytes.
func (h *half) grow(n int) {
	size := max(4096, len(h.buf))
	for size < n {
		size *= 2
	}
	buf := make([]byte, min(size, BufferBytes))
	held := h.n
	h.pop(buf)
	h.buf, h.from, h.n = buf, 0, held
}

func (h *half) closeReader() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reader.end()
	h.buf, h.from, h.n = nil, 0, 0
	h.wakeAll()
}

func (h *half) closeWriter() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.writer.end()
	h.wakeAll()
}

func (s *side) end() {
	s.closed = true
	if s.timer != nil {
		s.timer.Stop()
	}
}

func (h *half) wakeAll() {
	h.reader.wake.Broadcast()
	h.writer.wake.Broadcast()
}

func (h *half) setDeadline(s *side, t time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s.closed {
		return io.ErrClosedPipe
	}
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	s.round++
	s.late = false
	if t.IsZero() {
		return nil
	}
	wait := time.Until(t)
	if wait <= 0 {
		s.late = true
		s.wake.Broadcast()
		return nil
	}
	round := s.round
	s.timer = time.AfterFunc(wait, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		if s.round == round {
			s.late = true
			s.wake.Broadcast()
		}
	})
	return nil
}
