package peer

import (
	"context"
	"time"

	"github.com/sourcegraph/conc"
)

// probeAgain is the time between two probes of a peer that was there.
const probeAgain = 20 * time.Millisecond

// probe has a look at the other sides of links that have lost their connections: those
// whose process has ended are not waited for.
func (s *Server) probe(ctx context.Context, probes *conc.WaitGroup) {
	if s.cfg.Probe == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, st := range s.seats {
		if st.link == nil || st.probing || st.link.attached() || st.link.Err() != nil {
			continue
		}
		st.probing = true
		l := st.link
		probes.Go(func() { s.probeSeat(ctx, name, st, l) })
	}
}

// probeSeat probes until l has a connection again, is down, or nobody listens any more.
func (s *Server) probeSeat(ctx context.Context, replica string, st *seat, l *Link) {
	ctx, cancel := context.WithTimeout(ctx, l.resumeFor())
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	refused := 0
	for refused < refusals && l.lost() {
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		if nobody(s.cfg.Probe(ctx, replica)) {
			refused++
			timer.Reset(s.cfg.Limits.MinBackoff)
			continue
		}
		// It lives, or is about to end: a process that is killed closes one thing after
		// another.
		refused = 0
		timer.Reset(probeAgain)
	}
	s.mu.Lock()
	st.probing = false
	if refused >= refusals && st.link == l && !l.attached() {
		s.cfg.Log.Debug("peer has ended", "peer", replica)
		st.expires = time.Time{}
	}
	s.mu.Unlock()
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// lost says that the link lives and has no connection.
func (l *Link) lost() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conn == nil && l.down == nil
}
