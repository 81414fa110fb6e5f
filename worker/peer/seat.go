package peer

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"time"
)

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
