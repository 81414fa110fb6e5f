package peer

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/panics"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// stream is one request being served.
type stream struct {
	server *Server
	w      http.ResponseWriter
	rc     *http.ResponseController
	conn   *conn // nil until the Hello was taken; guarded by Server.mu
}

// abort unblocks reads and writes of the stream for good.
func (st *stream) abort() {
	// A failure means that the stream is gone already.
	_ = st.rc.SetReadDeadline(time.Unix(1, 0))
	_ = st.rc.SetWriteDeadline(time.Unix(1, 0))
}

// refuse writes a goodbye outside of a link.
func (st *stream) refuse(code string) {
	b, err := handoff.AppendFramed(nil, goodbye(code))
	if err != nil {
		return
	}
	_ = st.rc.SetWriteDeadline(time.Now().Add(st.server.cfg.Limits.Grace))
	if _, err := st.w.Write(b); err == nil {
		_ = st.rc.Flush()
	}
}

// serve runs the stream to its end.
func (st *stream) serve(r *http.Request) error {
	s := st.server
	_ = st.rc.SetReadDeadline(time.Now().Add(s.cfg.Limits.HelloTimeout))
	body := &source{r.Body}
	rd := handoff.NewReader(body)
	var hello handoff.Frame
	if err := rd.Next(&hello); err != nil {
		st.refuseHello(r, err)
		return fmt.Errorf("read hello: %w", err)
	}
	if hello.Kind != handoff.KindHello {
		st.refuse(codeBadFrame)
		return fmt.Errorf("%w: first frame is a %s", ErrProtocol, hello.Kind)
	}
	if s.cfg.Authorize != nil {
		if err := s.cfg.Authorize(r, hello.Replica, hello.Model); err != nil {
			s.refused.Note(s.cfg.Log, "peer refused", hello.Replica, err)
			st.refuse(codeRefused)
			return fmt.Errorf("authorize %q: %w", hello.Replica, err)
		}
	}
	s.refused.Forget(hello.Replica)
	s.refused.Forget(unwelcome.Peer(r))
	_ = st.rc.SetReadDeadline(time.Time{})
	place, err := s.sit(hello.Replica)
	if err != nil {
		st.refuse(codeBusy)
		return err
	}
	defer s.leaveSeat(place)
	c, err := st.adopt(r.Context(), place, &hello)
	if err != nil {
		return err
	}
	body.r = c.link.ear.on(r.Body)
	return st.run(place, c, rd)
}

// refuseHello answers a first frame that could not be read.
func (st *stream) refuseHello(r *http.Request, err error) {
	s := st.server
	if !errors.Is(err, handoff.ErrVersion) {
		st.refuse(codeBadFrame)
		return
	}
	s.refused.Note(s.cfg.Log, "peer refused", unwelcome.Peer(r), err, "addr", r.RemoteAddr)
	// Our Hello tells the other side our number.
	h := newLink(&s.cfg.Config, newSession()).hello()
	if b, err := handoff.AppendFramed(nil, h); err == nil {
		if _, err := st.w.Write(b); err == nil {
			st.refuse(codeVersion)
		}
	}
}

// adopt makes the stream the connection of the seat's link, or of a new link.
func (st *stream) adopt(ctx context.Context, place *seat, hello *handoff.Frame) (*conn, error) {
	s := st.server
	select {
	case place.token <- struct{}{}:
		defer func() { <-place.token }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	l, banned := place.link, place.banned
	s.mu.Unlock()
	if banned != 0 && banned == hello.Session {
		st.refuse(codeRefused)
		return nil, fmt.Errorf("%w: session of %q", ErrHostile, hello.Replica)
	}
	if l != nil {
		if err := l.evict(ctx); err != nil {
			return nil, err
		}
		if !l.resumes(hello) {
			l.kill(ErrSessionLost)
			s.retire(place)
			l = nil
		}
	}
	if l == nil {
		if hello.PeerSession != 0 {
			st.refuse(codeSessionLost)
			return nil, fmt.Errorf("%w: %q resumes an unknown one", ErrSessionLost, hello.Replica)
		}
		l = newLink(&s.cfg.Config, newSession())
	}
	return st.attach(place, l, hello)
}

// attach answers the Hello and makes the stream the connection of l. The caller
// holds the token.
func (st *stream) attach(place *seat, l *Link, hello *handoff.Frame) (*conn, error) {
	s := st.server
	c, err := newConn(l, l.hello(), st.abort)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if !s.running {
		s.mu.Unlock()
		st.refuse(codeClosing)
		return nil, ErrClosed
	}
	fresh, err := l.attach(c, hello)
	if err == nil {
		place.link, st.conn = l, c
	}
	s.mu.Unlock()
	if err != nil {
		s.punish(place, l, err)
		st.refuse(codeBadFrame)
		s.lost(place)
		return nil, err
	}
	if fresh {
		s.cfg.Log.Debug("peer link up", "peer", hello.Replica, "version", l.Version())
		s.cfg.Handler.LinkUp(l)
	}
	return c, nil
}

// run reads and writes until the stream ends, then decides what becomes of the link.
func (st *stream) run(place *seat, c *conn, rd *handoff.Reader) error {
	s := st.server
	var writer conc.WaitGroup
	writer.Go(func() { st.write(c) })
	guarded, stop := context.WithCancel(context.Background()) // ends with the read below
	defer stop()
	silent := false
	writer.Go(func() { c.guard(guarded, func() { silent = true; st.abort() }) })
	var err error
	// The HTTP/2 library would swallow a panic and leave the link attached.
	if caught := panics.Try(func() { err = c.read(rd) }); caught != nil {
		s.cfg.Log.Error("peer handler panicked", "err", caught.AsError())
		err = fmt.Errorf("%w: handler panicked", ErrClosed)
	}
	if errors.Is(err, ErrProtocol) {
		c.leave(codeBadFrame)
	} else {
		c.stopWriting()
	}
	_ = st.rc.SetWriteDeadline(time.Now().Add(s.cfg.Limits.Grace))
	stop()
	writer.Wait()
	if silent {
		err = errSilent
	}

	s.mu.Lock()
	st.conn = nil
	closing := !s.running
	place.expires = time.Now().Add(c.link.resumeFor())
	s.mu.Unlock()
	switch {
	case errors.Is(err, ErrClosed):
		c.link.kill(err)
	case closing:
		c.link.kill(ErrClosed)
	}
	s.punish(place, c.link, err)
	c.part()
	s.lost(place)
	return err
}

// write is the stream's writer.
func (st *stream) write(c *conn) {
	var buf []byte
	for {
		b, err := c.batch(buf)
		if err != nil {
			break
		}
		buf = b
		if _, err = st.w.Write(b); err == nil {
			err = st.rc.Flush()
		}
		if err != nil {
			break
		}
	}
	_ = st.rc.SetReadDeadline(time.Unix(1, 0))
}
