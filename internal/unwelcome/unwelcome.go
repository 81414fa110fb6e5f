package unwelcome

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
)

// maxPeers bounds the peers that a Log remembers. Beyond it one is forgotten, whose next
// refusal is a warning again.
const maxPeers = 256

// Log tells of refused peers. Its zero value is ready; any goroutine may use it.
type Log struct {
	mu   sync.Mutex
	seen map[string]*refused
}

// refused is what a peer was refused for last, and how often.
type refused struct {
	why   string
	count int
}

// Note logs that a peer is refused: as a warning when it is the first time or for another
// reason than before, else for debugging, with how often it was. args are further
// attributes.
func (l *Log) Note(log *slog.Logger, message, peer string, err error, args ...any) {
	level := slog.LevelDebug
	l.mu.Lock()
	r := l.seen[peer]
	if r == nil || r.why != err.Error() {
		level = slog.LevelWarn
		if l.seen == nil {
			l.seen = map[string]*refused{}
		}
		for other := range l.seen {
			if len(l.seen) < maxPeers {
				break
			}
			delete(l.seen, other)
		}
		r = &refused{why: err.Error()}
		l.seen[peer] = r
	}
	r.count++
	count := r.count
	l.mu.Unlock()
	log.Log(context.Background(), level, message, append([]any{"peer", peer, "err", err, "count", count}, args...)...)
}

// Forget says that a peer was let in: its next refusal is news.
func (l *Log) Forget(peer string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, peer)
}

// Peer names who sent a request: by its certificate, or without one by its host, since
// the port differs each time.
func Peer(r *http.Request) string {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if name := r.TLS.PeerCertificates[0].Subject.CommonName; name != "" {
			return name
		}
	}
	if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		return host
	}
	return r.RemoteAddr
}
