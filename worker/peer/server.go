package peer

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/panics"

	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// ServerConfig configures a Server.
type ServerConfig struct {
	Config
	// Authorize holds the names that a peer claims against its certificate
	// (r.TLS). A non-nil error refuses the stream. Nil lets everyone in, which is
	// right only in one process.
	Authorize func(r *http.Request, replica, model string) error
	// Probe connects to where a replica is, to find out whether anybody listens there
	// still: an error that is syscall.ECONNREFUSED, several times, ends a link that has lost
	// its connection. Nil, and every other answer, tells nothing. It may be slow.
	Probe func(ctx context.Context, replica string) error
}

// Server accepts streams at Path. It serves while Run runs.
type Server struct {
	cfg ServerConfig

	// nudge tells Run that a link lost its connection. Sent by handlers, one
	// pending nudge is enough, never closed.
	nudge chan struct{}

	// mu guards the fields below. Order: mu before a link's lock.
	mu      sync.Mutex
	running bool
	seats   map[string]*seat
	streams map[*stream]struct{}
	idle    chan struct{} // closed when not running and no stream is left

	refused unwelcome.Log
}

// seat is the place of one replica. Its token is held by whoever replaces or
// ends the link that sits there, so that the handler's calls stay in order.
type seat struct {
	token chan struct{} // capacity 1; full means held

	// Guarded by Server.mu.
	link    *Link
	expires time.Time // when a link without a connection ends
	probing bool      // a probe runs
	banned  uint64    // session that is refused
	users   int       // streams that look at the seat
}

// stream is one request being served.
type stream struct {
	server *Server
	w      http.ResponseWriter
	rc     *http.ResponseController
	conn   *conn // nil until the Hello was taken; guarded by Server.mu
}

// NewServer checks the configuration. It starts nothing.
func NewServer(cfg ServerConfig) (*Server, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	return &Server{
		cfg:     cfg,
		nudge:   make(chan struct{}, 1),
		seats:   make(map[string]*seat),
		streams: make(map[*stream]struct{}),
	}, nil
}

// Run lets streams in until ctx ends, and ends links that were not resumed in
// time. On return all streams have ended and all links are down. It may run
// again afterwards.
func (s *Server) Run(ctx context.Context) error {
	s.mu.Lock()
	if s.running || len(s.streams) > 0 {
		s.mu.Unlock()
		return errors.New("peer: server runs already")
	}
	s.running, s.idle = true, make(chan struct{})
	s.mu.Unlock()

	var probes conc.WaitGroup
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		timer.Reset(s.expire(time.Now()))
		s.probe(ctx, &probes)
		select {
		case <-ctx.Done():
			probes.Wait()
			s.shutdown()
			return context.Cause(ctx)
		case <-timer.C:
		case <-s.nudge:
		}
	}
}

// expire ends the links whose time is over at now and returns the time until
// the next one.
func (s *Server) expire(now time.Time) time.Duration {
	next := time.Hour
	var over []*seat
	s.mu.Lock()
	for _, st := range s.seats {
		if st.link == nil || st.link.attached() {
			continue
		}
		if d := st.expires.Sub(now); d > 0 {
			next = min(next, d)
		} else {
			over = append(over, st)
		}
	}
	s.mu.Unlock()
	for _, st := range over {
		select {
		case st.token <- struct{}{}:
			s.expireSeat(st, now)
			<-st.token
		default:
			// A stream is taking the seat. Look again soon.
			next = min(next, s.cfg.Limits.MinBackoff)
		}
	}
	return next
}

// expireSeat ends the link of st if it is still without a connection. The
// caller holds the token, so none can come.
func (s *Server) expireSeat(st *seat, now time.Time) {
	s.mu.Lock()
	l := st.link
	over := l != nil && !l.attached() && !st.expires.After(now)
	s.mu.Unlock()
	if over {
		l.kill(ErrPeerLost)
		s.retire(st)
	}
}

// retire takes a dead link off its seat and tells the owner. The caller holds
// the token, and the link has no connection.
func (s *Server) retire(st *seat) {
	s.mu.Lock()
	l := st.link
	st.link = nil
	s.vacate(st)
	s.mu.Unlock()
	if l == nil {
		return
	}
	err := l.Err()
	replica, _ := l.Peer()
	s.cfg.Log.Debug("peer link down", "peer", replica, "err", err)
	s.cfg.Handler.LinkDown(l, err)
}

// vacate forgets a seat that nobody needs. The caller holds mu.
func (s *Server) vacate(st *seat) {
	if st.link != nil || st.users > 0 || st.banned != 0 {
		return
	}
	for name, other := range s.seats {
		if other == st {
			delete(s.seats, name)
			return
		}
	}
}

// shutdown says goodbye on every stream, waits for all, and ends the links.
func (s *Server) shutdown() {
	s.mu.Lock()
	s.running = false
	for st := range s.streams {
		if st.conn != nil {
			st.conn.leave(codeClosing)
		} else {
			st.abort()
		}
	}
	if len(s.streams) == 0 {
		close(s.idle)
	}
	idle := s.idle
	s.mu.Unlock()

	timer := time.NewTimer(s.cfg.Limits.Grace)
	defer timer.Stop()
	select {
	case <-idle:
	case <-timer.C:
		s.mu.Lock()
		for st := range s.streams {
			st.abort()
		}
		s.mu.Unlock()
		<-idle
	}
	s.mu.Lock()
	all := make([]*seat, 0, len(s.seats))
	for _, st := range s.seats {
		st.banned = 0
		all = append(all, st)
	}
	s.mu.Unlock()
	for _, st := range all {
		st.token <- struct{}{}
		if st.link != nil {
			st.link.kill(ErrClosed)
		}
		s.retire(st)
		<-st.token
	}
}

// ServeHTTP serves one stream.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.ProtoMajor != 2:
		http.Error(w, "HTTP/2 only", http.StatusHTTPVersionNotSupported)
		return
	case r.Method != http.MethodPost:
		http.Error(w, "POST only", http.StatusMethodNotAllowed)
		return
	}
	st := &stream{server: s, w: w, rc: http.NewResponseController(w)}
	if !s.enter(st) {
		http.Error(w, "not running", http.StatusServiceUnavailable)
		return
	}
	defer s.exit(st)
	// The client's RoundTrip returns only when it has the header.
	w.Header().Set("Content-Type", ContentType)
	w.WriteHeader(http.StatusOK)
	if err := st.rc.Flush(); err != nil {
		return
	}
	if err := st.serve(r); err != nil && r.Context().Err() == nil {
		s.cfg.Log.Debug("peer stream ended", "addr", r.RemoteAddr, "err", err)
	}
}

func (s *Server) enter(st *stream) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.running {
		return false
	}
	s.streams[st] = struct{}{}
	return true
}

func (s *Server) exit(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st)
	if !s.running && len(s.streams) == 0 {
		close(s.idle)
	}
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

func (s *Server) sit(replica string) (*seat, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.seats[replica]
	if st == nil {
		if len(s.seats) >= s.cfg.Limits.MaxPeers {
			return nil, fmt.Errorf("peer %q: %d peers are known already", replica, len(s.seats))
		}
		st = &seat{token: make(chan struct{}, 1)}
		s.seats[replica] = st
	}
	st.users++
	return st, nil
}

func (s *Server) leaveSeat(st *seat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st.users--
	s.vacate(st)
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

// punish counts a strike if err is the peer's fault, and bans the session after
// the last one.
func (s *Server) punish(place *seat, l *Link, err error) {
	if !l.strike(err) {
		return
	}
	l.mu.Lock()
	session := l.peerSession
	l.mu.Unlock()
	s.mu.Lock()
	place.banned = session
	s.mu.Unlock()
	l.kill(fmt.Errorf("%w: %w", ErrHostile, err))
}

// lost tells Run that the seat's link has no connection. A dead link is retired
// there too, once its time is over.
func (s *Server) lost(place *seat) {
	s.mu.Lock()
	if place.link != nil && place.link.Err() != nil {
		place.expires = time.Time{}
	}
	s.mu.Unlock()
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// newSession draws a session number that is not 0.
func newSession() uint64 {
	var b [8]byte
	for {
		// crypto/rand.Read never fails.
		_, _ = rand.Read(b[:])
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}
