package peer

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/sourcegraph/conc"

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
