package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/pulse"
)

// errSilent ends a connection that brought nothing for too long.
var errSilent = errors.New("the other side is silent")

// ear listens for signs of life on a link's connections, one after another. Bytes are
// signs, whatever they say.
type ear struct {
	mu    sync.Mutex
	watch *pulse.Watch // nil if there is no limit to silence
	// reading says that somebody waits for bytes. While the owner is busy with what came,
	// nothing is held against the other side.
	reading bool
	// armed says that the other side gives signs when it has nothing to say. One of an
	// older build does not.
	armed bool
}

func (e *ear) init(silence time.Duration) {
	if silence > 0 {
		e.watch = pulse.New(pulse.Config{Every: beatEvery, Tick: beatTick, Limit: silence, Most: mostLate}, time.Now())
	}
}

// begin is called for every new connection.
func (e *ear) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watch.Begin(time.Now())
}

// arm notes that the other side gives signs of life.
func (e *ear) arm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.armed && e.watch != nil {
		e.armed = true
		e.watch.Excuse(time.Now())
	}
}

// silent is called every beatTick while there is a connection. It reports whether the
// other side has been silent for too long.
func (e *ear) silent() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.watch.Tick(time.Now()) && e.armed && e.reading
}

// slack is by how much waits for the other side are to be longer now.
func (e *ear) slack() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watch == nil || !e.armed {
		return 0
	}
	return e.watch.Slack()
}

// on returns r with an ear on it, for the connection that begins now.
func (e *ear) on(r io.Reader) io.Reader {
	if e.watch == nil {
		return r
	}
	return &heard{e, r}
}

type heard struct {
	ear *ear
	r   io.Reader
}

func (h *heard) Read(p []byte) (int, error) {
	h.ear.note(true, false)
	n, err := h.r.Read(p)
	h.ear.note(false, n > 0)
	return n, err
}

// note is called before and after a read.
func (e *ear) note(reading, came bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reading = reading
	switch {
	case came && e.armed:
		e.watch.Heard(time.Now())
	case reading:
		e.watch.Excuse(time.Now())
	}
}

// guard gives signs of life on the connection, and calls end, once, when the other side
// is silent for too long. It returns after that, or when ctx ends.
func (c *conn) guard(ctx context.Context, end func()) {
	l := c.link
	if l.cfg.Limits.Silence == 0 {
		return
	}
	l.ear.begin()
	ticker := time.NewTicker(beatTick)
	defer ticker.Stop()
	for odd := true; ; odd = !odd {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if odd {
			c.giveSign()
		}
		if l.ear.silent() {
			l.cfg.Log.Debug("peer is silent", "peer", l.name(), "for", l.cfg.Limits.Silence+l.ear.slack())
			end()
			return
		}
	}
}

// giveSign makes the writer write something.
func (c *conn) giveSign() {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	if c.state == connActive {
		c.beat = true
		c.link.wake.Broadcast()
	}
}

func (l *Link) name() string {
	name, _ := l.Peer()
	return name
}

// resumeFor is how long the link may be without a connection from now on.
func (l *Link) resumeFor() time.Duration { return l.cfg.Limits.ResumeFor + l.ear.slack() }

// nobody says that a dial was refused: no process listens there.
func nobody(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

// errEnded says how it is known that there is nothing to wait for.
var errEnded = fmt.Errorf("%w: nobody listens there", ErrPeerLost)

// source is a reader that may be exchanged between two reads.
type source struct{ r io.Reader }

func (s *source) Read(p []byte) (int, error) { return s.r.Read(p) }
