package peertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// Tap is an http.RoundTripper between a peer.Client and its transport. It reads
// the frames of both directions and reports what breaks the protocol:
//
//   - a stream starts with a Hello and has no other;
//   - turn frames follow each other without a gap, and no later than one after
//     the newest ever sent in their session;
//   - a frame sent again is the same, byte for byte;
//   - an acknowledgement never goes back and never names a frame that was not sent;
//   - no frame goes beyond the credits.
type Tap struct {
	t    T
	next http.RoundTripper

	mu      sync.Mutex
	links   map[uint64]*wire // by the client's session
	uploads []*bytes.Buffer  // all bytes sent up, by stream
	frames  [2]int           // turn frames, by direction
	bytes   [2]int           // of turn frames with their prefixes
}

// Directions of a stream.
const (
	Up   = 0 // client to server
	Down = 1
)

// wire is what is known of one session.
type wire struct {
	sent    [2][][]byte // turn frames by Seq-1
	acked   [2]uint64   // of the frames of that direction
	allowed [2]uint64
}

// NewTap returns a tap on next that reports to t.
func NewTap(t T, next http.RoundTripper) *Tap {
	return &Tap{t: t, next: next, links: make(map[uint64]*wire)}
}

// Drop passes on that the connection has fallen silent.
func (p *Tap) Drop() {
	if d, ok := p.next.(interface{ Drop() }); ok {
		d.Drop()
	}
}

// Turns returns how many turn frames went in a direction, frames sent again
// included, and their bytes with length prefixes.
func (p *Tap) Turns(direction int) (frames, size int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.frames[direction], p.bytes[direction]
}

// RoundTrip opens a stream and listens in.
func (p *Tap) RoundTrip(req *http.Request) (*http.Response, error) {
	s := &stream{tap: p, record: new(bytes.Buffer)}
	p.mu.Lock()
	p.uploads = append(p.uploads, s.record)
	p.mu.Unlock()
	req = req.Clone(req.Context())
	req.Body = &tee{ReadCloser: req.Body, stream: s, direction: Up}
	resp, err := p.next.RoundTrip(req)
	if err == nil {
		resp.Body = &tee{ReadCloser: resp.Body, stream: s, direction: Down}
	}
	return resp, err
}

// Replay sends the bytes that stream n has sent up so far on a stream of its
// own, as a network that doubles a connection would, and reads until the server ends it.
func (p *Tap) Replay(ctx context.Context, n int, url string) error {
	p.mu.Lock()
	if n >= len(p.uploads) {
		p.mu.Unlock()
		return fmt.Errorf("no stream %d", n)
	}
	b := bytes.Clone(p.uploads[n].Bytes())
	p.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(b))
	if err != nil {
		return err
	}
	resp, err := p.next.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// stream is one request.
type stream struct {
	tap    *Tap
	record *bytes.Buffer // guarded by Tap.mu
	link   *wire
	rest   [2][]byte
	hello  [2]bool
	next   [2]uint64 // next Seq on this stream, 0: any
	failed bool      // one report a stream is enough
}

type tee struct {
	io.ReadCloser
	stream    *stream
	direction int
}

func (t *tee) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if n > 0 {
		t.stream.feed(t.direction, b[:n])
	}
	return n, err
}

// feed takes bytes of a direction and checks the frames that are complete.
func (s *stream) feed(direction int, b []byte) {
	p := s.tap
	p.mu.Lock()
	defer p.mu.Unlock()
	if direction == Up {
		s.record.Write(b)
	}
	rest := append(s.rest[direction], b...)
	for !s.failed && len(rest) >= handoff.PrefixSize {
		n := int(binary.LittleEndian.Uint32(rest)) + handoff.PrefixSize
		if len(rest) < n {
			break
		}
		if err := s.frame(direction, rest[:n]); err != nil {
			s.failed = true
			p.t.Errorf("wire, direction %d: %v", direction, err)
		}
		rest = rest[n:]
	}
	s.rest[direction] = append([]byte(nil), rest...)
}

// frame checks one frame with its prefix.
func (s *stream) frame(direction int, b []byte) error {
	var f handoff.Frame
	if err := handoff.Decode(b[handoff.PrefixSize:], &f); err != nil {
		return err
	}
	if f.Kind == handoff.KindRelease && f.Request == 0 {
		return nil // a goodbye may come at any time
	}
	if (f.Kind == handoff.KindHello) == s.hello[direction] {
		return fmt.Errorf("a %s where it must not be", f.Kind)
	}
	switch f.Kind {
	case handoff.KindHello:
		s.hello[direction] = true
		if direction == Up {
			s.link = s.tap.links[f.Session]
			if s.link == nil {
				s.link = new(wire)
				s.tap.links[f.Session] = s.link
			}
		}
		return s.ack(direction, &f)
	case handoff.KindAck:
		return s.ack(direction, &f)
	}
	return s.turn(direction, &f, b)
}

// ack takes an acknowledgement that travels in a direction: it is about frames
// of the other one.
func (s *stream) ack(direction int, f *handoff.Frame) error {
	if s.link == nil {
		return errors.New("the server speaks before the client")
	}
	other := 1 - direction
	if f.Ack < s.link.acked[other] {
		return fmt.Errorf("ack %d after %d", f.Ack, s.link.acked[other])
	}
	if f.Ack > uint64(len(s.link.sent[other])) {
		return fmt.Errorf("ack %d of %d frames", f.Ack, len(s.link.sent[other]))
	}
	s.link.acked[other] = f.Ack
	s.link.allowed[other] = max(s.link.allowed[other], f.Ack+uint64(f.Credits))
	return nil
}

func (s *stream) turn(direction int, f *handoff.Frame, b []byte) error {
	l := s.link
	if l == nil {
		return errors.New("a turn before the hello")
	}
	s.tap.frames[direction]++
	s.tap.bytes[direction] += len(b)
	n := uint64(len(l.sent[direction]))
	switch {
	case f.Seq == 0 || f.Seq > n+1:
		return fmt.Errorf("frame %d after %d", f.Seq, n)
	case s.next[direction] != 0 && f.Seq != s.next[direction]:
		return fmt.Errorf("frame %d, want %d", f.Seq, s.next[direction])
	case f.Seq > l.allowed[direction]:
		return fmt.Errorf("frame %d, but %d are allowed", f.Seq, l.allowed[direction])
	case f.Seq == n+1:
		l.sent[direction] = append(l.sent[direction], bytes.Clone(b))
	case !bytes.Equal(l.sent[direction][f.Seq-1], b):
		return fmt.Errorf("frame %d is sent again with other bytes", f.Seq)
	}
	s.next[direction] = f.Seq + 1
	return nil
}
