package unwelcome

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Bounds of what a Log remembers. Beyond them a peer, or the oldest cause of one, is
// forgotten, whose next refusal is a warning again.
const (
	maxPeers  = 256
	maxCauses = 8
)

// Log tells of refused peers. Its zero value is ready; any goroutine may use it.
type Log struct {
	mu   sync.Mutex
	seen map[string][]refused // by peer, the oldest cause first
}

// refused is what a peer was refused for, and how often.
type refused struct {
	why   string
	count int
}

// Note logs that a peer is refused: as a warning when it is the first time for this cause,
// else for debugging, with how often it was. args are further attributes.
func (l *Log) Note(log *slog.Logger, message, peer string, err error, args ...any) {
	level := slog.LevelDebug
	count := l.count(peer, cause(err))
	if count == 1 {
		level = slog.LevelWarn
	}
	log.Log(context.Background(), level, message, append([]any{"peer", peer, "err", err, "count", count}, args...)...)
}

// count counts one more refusal.
func (l *Log) count(peer, why string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := l.seen[peer]
	if i := slices.IndexFunc(list, func(r refused) bool { return r.why == why }); i >= 0 {
		list[i].count++
		return list[i].count
	}
	if l.seen == nil {
		l.seen = map[string][]refused{}
	}
	if list == nil {
		for other := range l.seen {
			if len(l.seen) < maxPeers {
				break
			}
			delete(l.seen, other)
		}
	}
	if len(list) == maxCauses {
		list = slices.Delete(list, 0, 1)
	}
	l.seen[peer] = append(list, refused{why, 1})
	return 1
}

// cause is an error's text without the addresses that the system's errors have in them:
// the port of who connects differs each time.
func cause(err error) string {
	text := err.Error()
	var op *net.OpError
	if errors.As(err, &op) {
		text = strings.Replace(text, op.Error(), op.Op+": "+op.Err.Error(), 1)
	}
	return text
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
	return Host(r.RemoteAddr)
}

// Host names who has connected from an address of which nothing else is known.
func Host(addr string) string {
	if host, _, err := net.SplitHostPort(addr); err == nil {
		return host
	}
	return addr
}
