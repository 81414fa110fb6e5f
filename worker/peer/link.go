package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// maxBatch is how many bytes of frames one write takes along.
const maxBatch = 64 << 10

// Link is the way to one replica. It survives lost connections (see the package
// comment). All methods are safe for concurrent use.
type Link struct {
	cfg     *Config
	session uint64 // ours

	mu   sync.Mutex
	wake sync.Cond // the writer waits here; L is &mu
	// replica, model and peerSession are the other side's, known once up.
	replica, model string
	peerSession    uint64
	version        int // of the protocol: the newest that both sides speak
	up             bool
	down           error // not nil: the link is dead
	conn           *conn // the current connection, nil while resuming
	strikes        int

	// ear listens for signs of life on the current connection.
	ear ear

	out   outbox
	sent  uint64 // last Seq that was ever written
	limit uint64 // last Seq that the other side's credits allow

	recv    uint64 // last Seq handed to the handler
	acked   uint64 // last Seq acknowledged to the other side on this connection
	granted uint64 // last Seq that we have allowed the other side
}

func newLink(cfg *Config, session uint64) *Link {
	l := &Link{cfg: cfg, session: session}
	l.wake.L = &l.mu
	l.out.first = 1
	l.ear.init(cfg.Limits.Silence)
	return l
}

// Peer names the replica at the other side and the model that it serves.
func (l *Link) Peer() (replica, model string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.replica, l.model
}

// Version is the version of the protocol that the link speaks, known once up.
func (l *Link) Version() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.version
}

// Send queues a turn frame, or a Group. It never blocks. f is copied and not changed (its
// Seq is ignored). Errors: ErrLinkFull, ErrLinkDown, ErrFrame, or those of
// handoff.Append. A frame that Send took is handled once at the other side, in
// order, unless the link goes down.
func (l *Link) Send(f *handoff.Frame) error {
	turn := f.Kind >= handoff.KindHandoff && f.Kind <= handoff.KindRelease && f.Request != 0
	if !turn && f.Kind != handoff.KindGroup {
		return fmt.Errorf("%w: %s of request %d", ErrFrame, f.Kind, f.Request)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down != nil {
		return ErrLinkDown
	}
	n := l.out.frames()
	if n >= l.cfg.Limits.OutboxFrames || (n > 0 && l.out.bytes() >= l.cfg.Limits.OutboxBytes) {
		return ErrLinkFull
	}
	if err := l.out.push(f); err != nil {
		return fmt.Errorf("send %s: %w", f.Kind, err)
	}
	l.wake.Signal()
	return nil
}

// Queued returns how many frames wait for the other side's acknowledgement.
func (l *Link) Queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.out.frames()
}

// Connected reports whether the link has a connection at the moment.
func (l *Link) Connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil && l.conn.state == connActive
}

// Err is nil while the link lives, else why it is down.
func (l *Link) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down
}

// kill marks the link dead and closes its connection.
func (l *Link) kill(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down == nil {
		l.down = err
		l.out = outbox{first: 1}
	}
	if l.conn != nil {
		l.conn.closeLocked()
	}
	l.wake.Broadcast()
}

// hello is our Hello on a new connection.
func (l *Link) hello() *handoff.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked = l.recv
	l.granted = max(l.granted, l.recv+uint64(l.cfg.Limits.Window))
	h := &handoff.Frame{
		Kind:    handoff.KindHello,
		Replica: l.cfg.Replica, Model: l.cfg.Model,
		Session: l.session, PeerSession: l.peerSession,
		Ack: l.recv, Credits: l.cfg.Limits.Window,
	}
	h.Announce()
	return h
}

// attach takes the other side's Hello and makes c the active connection of the
// link. It reports whether the link is new.
func (l *Link) attach(c *conn, h *handoff.Frame) (fresh bool, err error) {
	version, err := h.Agree()
	if err != nil {
		return false, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.up && h.Session != l.peerSession:
		return false, ErrSessionLost
	case h.PeerSession != 0 && h.PeerSession != l.session:
		return false, fmt.Errorf("%w: hello is for another session", ErrProtocol)
	case l.up && (h.Replica != l.replica || h.Model != l.model || version != l.version):
		return false, fmt.Errorf("%w: hello changes the replica's name, model or version", ErrProtocol)
	}
	if err := l.ackLocked(h.Ack, h.Credits); err != nil {
		return false, err
	}
	fresh = !l.up
	l.up = true
	l.replica, l.model, l.peerSession, l.version = h.Replica, h.Model, h.Session, version
	l.conn, c.next = c, l.out.first
	if c.state == connOpening {
		c.state = connActive
	}
	l.wake.Broadcast()
	return fresh, nil
}

// ackLocked takes an acknowledgement with credits.
func (l *Link) ackLocked(seq uint64, credits uint32) error {
	if l.down != nil {
		return ErrLinkDown
	}
	if seq < l.out.first-1 {
		// Only a replayed stream can say so: the other side's count never falls.
		return fmt.Errorf("%w: ack %d, but %d was acknowledged", errReplayed, seq, l.out.first-1)
	}
	if seq > l.sent {
		return fmt.Errorf("%w: ack %d, but only %d was sent", ErrProtocol, seq, l.sent)
	}
	l.out.ack(seq)
	if l.conn != nil {
		l.conn.next = max(l.conn.next, l.out.first)
	}
	l.limit = seq + uint64(credits)
	return nil
}

// errReplayed is a protocol error that costs no strike: an honest peer's bytes,
// played again by the network, can cause it.
var errReplayed = fmt.Errorf("%w: replayed", ErrProtocol)

// receive decides whether the frame with number seq is handled. Numbers that
// were handled are dropped; a skipped number is a protocol error.
func (l *Link) receive(seq uint64) (handle bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.down != nil:
		return false, ErrLinkDown
	case seq == 0:
		return false, fmt.Errorf("%w: frame without a number", ErrProtocol)
	case seq <= l.recv:
		return false, nil
	case seq != l.recv+1:
		return false, fmt.Errorf("%w: frame %d follows %d", ErrProtocol, seq, l.recv)
	case seq > l.granted:
		return false, fmt.Errorf("%w: frame %d, but only %d was granted", ErrProtocol, seq, l.granted)
	}
	// Counted before it is handled, so that the acknowledgement can go along with
	// what the handler sends. The reader handles it in any case.
	l.recv = seq
	return true, nil
}

// ackNow wakes the writer if something is to be acknowledged and either the
// reader is dry or a quarter of the window has come in.
func (l *Link) ackNow(dry bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	pending := l.recv - l.acked
	if pending == 0 || l.conn == nil {
		return
	}
	if dry || pending >= uint64(max(1, l.cfg.Limits.Window/4)) {
		l.conn.ackDue = true
		l.wake.Signal()
	}
}

// strike counts a protocol error and reports whether it was one too many.
func (l *Link) strike(err error) bool {
	if !errors.Is(err, ErrProtocol) || errors.Is(err, errReplayed) {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.strikes++
	return l.strikes >= MaxStrikes
}

// wasUp reports whether the owner has heard of the link.
func (l *Link) wasUp() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

// attached reports whether the link has a connection, in any state.
func (l *Link) attached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn != nil
}

// evict closes the link's connection, if any, and waits until no call of the
// handler can come from it.
func (l *Link) evict(ctx context.Context) error {
	l.mu.Lock()
	c := l.conn
	if c != nil {
		c.closeLocked()
	}
	l.mu.Unlock()
	if c == nil {
		return nil
	}
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// resumes reports whether a Hello continues this link.
func (l *Link) resumes(h *handoff.Frame) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.down == nil && h.Session == l.peerSession && (h.PeerSession == 0 || h.PeerSession == l.session)
}
