package peer

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// Path is where a Server is mounted.
const Path = "/v1/internal/peer"

// ContentType is the media type of the stream, both ways.
const ContentType = "application/vnd.tokenrouter.handoff"

// MaxStrikes is how many protocol errors a session may make before it is refused.
const MaxStrikes = 3

var (
	// ErrLinkFull is returned by Send when the outbox has reached its bound. The
	// frame was not taken. The owner may finish the token elsewhere or fail the request.
	ErrLinkFull = errors.New("peer: outbox is full")
	// ErrLinkDown is returned by Send on a link that is down.
	ErrLinkDown = errors.New("peer: link is down")
	// ErrFrame is returned by Send for a frame that is not a turn of a request.
	ErrFrame = errors.New("peer: not a turn frame of a request")
	// ErrSessionLost ends a link whose other side has forgotten it (it restarted,
	// or gave it up). What it had is gone.
	ErrSessionLost = errors.New("peer: the other side lost the session")
	// ErrPeerLost ends a link that was not resumed within Limits.ResumeFor, or whose other
	// side is known to have ended.
	ErrPeerLost = errors.New("peer: connection lost and not resumed in time")
	// ErrClosed ends a link because this side stops, or the other side says that it does.
	ErrClosed = errors.New("peer: closed")
	// ErrHostile ends a link whose peer broke the protocol MaxStrikes times.
	ErrHostile = errors.New("peer: too many protocol errors")
	// ErrProtocol is one protocol error: it ends the connection, not the link.
	ErrProtocol = errors.New("peer: protocol error")
	// ErrRefused says that the other side ended the stream; the text has its code.
	ErrRefused = errors.New("peer: refused")
)

// Handler is the owner of links. For one link the calls come one at a time and
// in order: LinkUp, HandleFrame as frames arrive, LinkDown last. Calls for
// different links are concurrent. All of them may call Send. None may block for
// long: the link's reader waits. A panic in a call of a Server ends the link; one
// in a call of a Client goes on through Client.Run.
type Handler interface {
	// LinkUp says that l is ready and nothing was sent on it yet.
	LinkUp(l *Link)
	// HandleFrame takes a turn frame. f and its slices are valid only during the
	// call; f.First may be kept.
	HandleFrame(l *Link, f *handoff.Frame)
	// LinkDown says that l is dead. err is ErrSessionLost, ErrPeerLost, ErrClosed,
	// ErrHostile, or wraps one of them. Frames not acknowledged may or may not
	// have been handled.
	LinkDown(l *Link, err error)
}

// Limits bound a link. The zero value of a field takes the default named with it.
type Limits struct {
	// OutboxFrames and OutboxBytes bound what Send queues, unacknowledged frames
	// included: 8192 frames, 8 MiB. One frame is always taken by an empty outbox.
	OutboxFrames int
	OutboxBytes  int
	// Window is how many frames the other side may send beyond the last
	// acknowledged one: 1024.
	Window uint32
	// ResumeFor is how long a link without a connection waits for a new one: 200 ms. It is
	// longer while the other side is late with its signs of life. A side that is known to
	// have ended is not waited for.
	ResumeFor time.Duration
	// Silence is how long a connection may bring nothing before it counts as lost, if the
	// other side gives signs of life while it has nothing to say; longer while those come
	// late (package pulse). The same value makes this side give them. 0 means none of both,
	// which is right in one process; SilentAfter is meant for networks. Connections have
	// the pings of HTTP/2 besides.
	Silence time.Duration
	// HelloTimeout bounds connecting and the exchange of Hellos: 3 s.
	HelloTimeout time.Duration
	// Grace bounds the goodbye of a stream that ends: 100 ms.
	Grace time.Duration
	// MinBackoff and MaxBackoff bound the wait between two dials, which doubles
	// and is jittered by up to half: 5 ms to 500 ms.
	MinBackoff, MaxBackoff time.Duration
	// MaxPeers bounds the replicas that a Server knows: 1024.
	MaxPeers int
}

// Of the signs of life that a link's sides give each other.
const (
	// SilentAfter is the Limits.Silence of links over a network: a peer that pauses for
	// 300 ms is not silent yet, and one that has gone is given up, with ResumeFor, within
	// 700 ms.
	SilentAfter = 450 * time.Millisecond
	// beatEvery is how often a sign goes out, beatTick how often the time is looked at.
	beatEvery = 100 * time.Millisecond
	beatTick  = beatEvery / 2
	// mostLate bounds what lateness is allowed for.
	mostLate = time.Second
	// refusals are the dials in a row that nobody answered, by which it is known that the
	// other side's process has ended.
	refusals = 3
)

// Config is what a Server and a Client have in common.
type Config struct {
	// Replica and Model name this side in its Hello. At most handoff.MaxName bytes each.
	Replica, Model string
	Handler        Handler
	Limits         Limits
	// Log gets changes of state. Nil discards them.
	Log *slog.Logger
}

func (c *Config) fill() error {
	l := &c.Limits
	def(&l.OutboxFrames, 8192)
	def(&l.OutboxBytes, 8<<20)
	def(&l.Window, 1024)
	def(&l.ResumeFor, 200*time.Millisecond)
	def(&l.HelloTimeout, 3*time.Second)
	def(&l.Grace, 100*time.Millisecond)
	def(&l.MinBackoff, 5*time.Millisecond)
	def(&l.MaxBackoff, 500*time.Millisecond)
	def(&l.MaxPeers, 1024)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Handler == nil {
		return errors.New("peer: Config.Handler is nil")
	}
	if c.Replica == "" {
		return errors.New("peer: Config.Replica is empty")
	}
	hello := handoff.Frame{Kind: handoff.KindHello, Session: 1, Replica: c.Replica, Model: c.Model}
	hello.Announce()
	if _, err := handoff.Append(nil, &hello); err != nil {
		return fmt.Errorf("peer: Config names: %w", err)
	}
	if l.OutboxFrames < 0 || l.OutboxBytes < 0 || l.ResumeFor < 0 || l.Silence < 0 || l.HelloTimeout < 0 || l.Grace < 0 ||
		l.MinBackoff < 0 || l.MaxBackoff < l.MinBackoff || l.MaxPeers < 0 {
		return errors.New("peer: Config.Limits has a negative value or MaxBackoff below MinBackoff")
	}
	return nil
}

func def[T int | uint32 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

// Codes of the goodbye that ends a stream.
const (
	codeVersion     = "version_mismatch"
	codeSessionLost = "session_lost"
	codeRefused     = "refused"
	codeBadFrame    = "bad_frame"
	codeReplaced    = "replaced"
	codeClosing     = "closing"
	codeBusy        = "too_many_peers"
	codeTimeout     = "timeout"
)

// goodbye is the frame that ends a stream.
func goodbye(code string) *handoff.Frame {
	return &handoff.Frame{Kind: handoff.KindRelease, Done: handoff.DoneError, Code: code}
}

// isGoodbye reports whether f speaks of the link and not of a request.
func isGoodbye(f *handoff.Frame) bool { return f.Kind == handoff.KindRelease && f.Request == 0 }

// refusal turns the code of a goodbye into an error.
func refusal(code string) error {
	switch code {
	case codeClosing:
		return fmt.Errorf("%w by the other side", ErrClosed)
	case codeSessionLost:
		return ErrSessionLost
	}
	return fmt.Errorf("%w with code %q", ErrRefused, code)
}
