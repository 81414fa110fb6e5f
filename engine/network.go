package engine

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// Network connects an engine's replicas with each other, with those of other engines,
// and with gateways. All methods are safe for concurrent use.
type Network interface {
	// Open makes a replica reachable by its name, in place of an earlier run of the same
	// one. The caller calls serve once, which answers calls with h until ctx ends; all of
	// them have returned when it does.
	Open(replica string, h http.Handler) (serve func(ctx context.Context) error, err error)
	// Transport reaches one replica, wherever it is by then. It connects when it is used.
	Transport(replica string) (Transport, error)
	// URL is what requests to a replica begin with.
	URL(replica string) string
	// Authorize holds the names that a replica claims when it opens a link against who
	// has sent the request. May be slow.
	Authorize(r *http.Request, replica, model string) error
}

// Prober is a Network between processes, which end and fall silent.
type Prober interface {
	// Probe connects to where a replica is and lets go again. syscall.ECONNREFUSED says
	// that its process has ended.
	Probe(ctx context.Context, replica string) error
}

// Transport sends requests to one replica, in HTTP/2.
type Transport interface {
	http.RoundTripper
	Close() error
}

// network joins the replicas of one process: a name resolves to the listener of
// the replica's present run. No port is opened.
type network struct {
	mu        sync.Mutex
	listeners map[string]*memconn.Listener
}

func newNetwork() *network { return &network{listeners: map[string]*memconn.Listener{}} }

// frontGrace is how long a replica's connections may linger once it stops. The
// gateway has drained by then, and links say goodbye on their own.
const frontGrace = 20 * time.Millisecond

// Open implements Network.
func (n *network) Open(replica string, h http.Handler) (func(context.Context) error, error) {
	front, err := h2.NewServer(h2.Config{Grace: frontGrace, SameProcess: true}, h)
	if err != nil {
		return nil, err
	}
	l := memconn.Listen()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[replica] = l
	return func(ctx context.Context) error { return front.Serve(ctx, l) }, nil
}

// Transport implements Network.
func (n *network) Transport(replica string) (Transport, error) {
	return h2.NewTransport(h2.Config{SameProcess: true, Dial: func(ctx context.Context) (net.Conn, error) {
		n.mu.Lock()
		l := n.listeners[replica]
		n.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("replica %s does not listen", replica)
		}
		return l.Dial(ctx)
	}})
}

// URL implements Network.
func (n *network) URL(replica string) string { return "http://" + replica }

// Authorize implements Network: one process trusts itself.
func (n *network) Authorize(*http.Request, string, string) error { return nil }
