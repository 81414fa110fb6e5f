package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/handoff"
)

// ClientConfig configures a Client.
type ClientConfig struct {
	Config
	// URL of the server, without Path: "https://host:port".
	URL string
	// Transport opens the stream; it must speak HTTP/2 (internal/h2). If it has a method
	// Drop(), that is called when its connection has fallen silent.
	Transport http.RoundTripper
	// Expect is the replica that must answer; empty takes any.
	Expect string
}

// Client keeps a link to one server while Run runs.
type Client struct {
	cfg ClientConfig
	url string
}

// NewClient checks the configuration. It starts nothing.
func NewClient(cfg ClientConfig) (*Client, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	if cfg.Transport == nil {
		return nil, errors.New("peer: ClientConfig.Transport is nil")
	}
	url := cfg.URL + Path
	if _, err := http.NewRequest(http.MethodPost, url, nil); err != nil {
		return nil, fmt.Errorf("peer: ClientConfig.URL: %w", err)
	}
	return &Client{cfg: cfg, url: url}, nil
}

// dialing is what Run remembers between two connections.
type dialing struct {
	link  *Link     // nil: the next connection makes a new one
	until time.Time // when link ends without a new connection, once it has lost one
	wait  time.Duration
	// nobody counts the dials in a row that nobody answered.
	nobody int
	// refused is the refusal that was logged last, so that it is logged once.
	refused string
}

// Run dials, keeps the link, and dials again, until ctx ends. The owner hears
// of links through its Handler. On return the stream has ended and the link is down.
func (c *Client) Run(ctx context.Context) error {
	var d dialing
	for {
		err := c.connect(ctx, &d)
		if ctx.Err() != nil {
			c.end(&d, ErrClosed)
			return context.Cause(ctx)
		}
		c.cfg.Log.Debug("peer stream ended", "peer", c.url, "err", err)
		c.settle(&d, err)
		if err := c.pause(ctx, &d); err != nil {
			c.end(&d, ErrClosed)
			return err
		}
	}
}

// settle decides what a connection's end means for the link, and the wait
// before the next one.
func (c *Client) settle(d *dialing, err error) {
	l := &c.cfg.Limits
	d.nobody++
	if !nobody(err) {
		d.nobody = 0
	}
	switch {
	case d.link != nil && d.link.strike(err):
		c.end(d, fmt.Errorf("%w: %w", ErrHostile, err))
		d.wait = l.MaxBackoff
	case errors.Is(err, ErrSessionLost):
		c.end(d, err)
		d.wait = 0
	case errors.Is(err, ErrClosed):
		c.end(d, err)
	case errors.Is(err, handoff.ErrVersion), errors.Is(err, ErrRefused) && d.link != nil && !d.link.wasUp():
		// It will not get better soon; an upgrade may be under way.
		if text := err.Error(); text != d.refused {
			d.refused = text
			c.cfg.Log.Warn("peer refused", "peer", c.url, "err", err)
		}
		d.wait = l.MaxBackoff
	}
	if d.link == nil || !d.link.wasUp() {
		return
	}
	switch {
	case d.nobody >= refusals:
		c.end(d, errEnded)
	case errors.Is(err, errAbsent):
		// Who is there now does not have the link. What follows may be a new one.
		c.end(d, fmt.Errorf("%w: %w", ErrSessionLost, err))
	case d.link.Err() != nil || !time.Now().Before(d.until):
		c.end(d, fmt.Errorf("%w: %w", ErrPeerLost, err))
	}
}

// pause waits before the next dial: not at all after a lost session, else
// with doubled and jittered steps, and no longer than the link may resume.
func (c *Client) pause(ctx context.Context, d *dialing) error {
	wait := d.wait
	d.wait = min(max(2*d.wait, c.cfg.Limits.MinBackoff), c.cfg.Limits.MaxBackoff)
	if wait == 0 {
		return nil
	}
	wait -= time.Duration(rand.Int64N(int64(wait)/2 + 1))
	if d.link != nil && d.link.wasUp() {
		wait = min(wait, time.Until(d.until))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// end declares the link dead.
func (c *Client) end(d *dialing, err error) {
	l := d.link
	d.link = nil
	if l == nil || !l.wasUp() {
		return
	}
	l.kill(err)
	replica, _ := l.Peer()
	c.cfg.Log.Debug("peer link down", "peer", replica, "err", l.Err())
	c.cfg.Handler.LinkDown(l, l.Err())
}

var (
	errHelloTimeout = fmt.Errorf("no hello in time: %w", context.DeadlineExceeded)
	errOver         = errors.New("stream is over")
	// errAbsent says that the other side's process does not run its server, yet or any more.
	errAbsent = errors.New("the server does not run")
)

// connect opens one stream and serves it to its end.
func (c *Client) connect(ctx context.Context, d *dialing) error {
	timeout := c.cfg.Limits.HelloTimeout
	if d.link == nil {
		d.link = newLink(&c.cfg.Config, newSession())
	} else if d.link.wasUp() {
		timeout = min(timeout, time.Until(d.until))
	}
	// The stream outlives ctx by the time of a goodbye.
	stream, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(errOver)
	drop := func(why error) {
		cancel(why)
		if t, ok := c.cfg.Transport.(interface{ Drop() }); ok {
			t.Drop() // another stream on that connection would be as silent
		}
	}
	hello := time.AfterFunc(timeout, func() { drop(errHelloTimeout) })
	defer hello.Stop()
	cn, err := newConn(d.link, d.link.hello(), func() { cancel(errOver) })
	if err != nil {
		return err
	}
	defer cn.part()
	body := &upload{conn: cn, done: make(chan struct{})}
	left := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(left)
		cn.leave(codeClosing)
		body.wait(c.cfg.Limits.Grace)
		cancel(ErrClosed)
	})
	defer func() {
		if !stop() {
			<-left
		}
	}()

	req, err := http.NewRequestWithContext(stream, http.MethodPost, c.url, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", ContentType)
	resp, err := c.cfg.Transport.RoundTrip(req)
	if err != nil {
		return errors.Join(fmt.Errorf("open stream to %s: %w", c.url, err), cause(stream))
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusServiceUnavailable:
		return fmt.Errorf("open stream to %s: %w", c.url, errAbsent)
	default:
		return fmt.Errorf("open stream to %s: %w: status %d", c.url, ErrRefused, resp.StatusCode)
	}
	err = c.serve(cn, handoff.NewReader(d.link.ear.on(resp.Body)), d, opening{hello, func() { drop(errSilent) }})
	if errors.Is(err, ErrProtocol) {
		cn.leave(codeBadFrame)
		body.wait(c.cfg.Limits.Grace)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		err = errors.Join(err, cause(stream))
	}
	return err
}

// cause is why the stream was cancelled, if it was.
func cause(stream context.Context) error {
	if err := context.Cause(stream); !errors.Is(err, errOver) {
		return err
	}
	return nil
}

// opening is what a stream has besides its bytes: timeout ends it before there is a
// Hello, end does so when it is silent.
type opening struct {
	timeout *time.Timer
	end     func()
}

// serve takes the server's Hello and reads until the stream ends.
func (c *Client) serve(cn *conn, r *handoff.Reader, d *dialing, o opening) error {
	var h handoff.Frame
	if err := r.Next(&h); err != nil {
		return fmt.Errorf("read hello: %w", decodeError(err))
	}
	switch {
	case isGoodbye(&h):
		return refusal(h.Code)
	case h.Kind != handoff.KindHello:
		return fmt.Errorf("%w: first frame is a %s", ErrProtocol, h.Kind)
	case c.cfg.Expect != "" && h.Replica != c.cfg.Expect:
		return fmt.Errorf("%w: replica %q answers, not %q", ErrRefused, h.Replica, c.cfg.Expect)
	}
	fresh, err := d.link.attach(cn, &h)
	if err != nil {
		return err
	}
	o.timeout.Stop()
	d.wait, d.refused = 0, ""
	defer func() { d.until = time.Now().Add(d.link.resumeFor()) }()
	var guard conc.WaitGroup
	defer guard.Wait()
	guarded, stop := context.WithCancel(context.Background()) // ends with the read below
	defer stop()
	guard.Go(func() { cn.guard(guarded, o.end) })
	if fresh {
		c.cfg.Log.Debug("peer link up", "peer", h.Replica, "version", d.link.Version())
		c.cfg.Handler.LinkUp(d.link)
	}
	return cn.read(r)
}

// upload is the request's body. The transport's goroutine that reads it is the
// link's writer.
type upload struct {
	conn *conn
	buf  []byte // of the batch
	rest []byte // not read yet; in buf's memory
	once sync.Once
	done chan struct{} // closed by Close
}

// Read gives the next batch, or what is left of the last one.
func (u *upload) Read(p []byte) (int, error) {
	if len(u.rest) == 0 {
		b, err := u.conn.batch(u.buf)
		if err != nil {
			return 0, err
		}
		u.buf, u.rest = b, b
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// Close ends the writer.
func (u *upload) Close() error {
	u.once.Do(func() {
		u.conn.stopWriting()
		close(u.done)
	})
	return nil
}

// wait waits until the transport has read all it will, at most for d.
func (u *upload) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-u.done:
	case <-timer.C:
	}
}
