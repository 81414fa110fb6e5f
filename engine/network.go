package engine

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// network joins the replicas of one process: a name resolves to the listener of
// the replica's present run. No port is opened.
type network struct {
	mu        sync.Mutex
	listeners map[string]*memconn.Listener
}

func newNetwork() *network { return &network{listeners: map[string]*memconn.Listener{}} }

// listen makes name reachable, in place of an earlier run of the same replica.
func (n *network) listen(name string) *memconn.Listener {
	l := memconn.Listen()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[name] = l
	return l
}

// dialer returns a function that connects to name, whichever run listens then.
func (n *network) dialer(name string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		n.mu.Lock()
		l := n.listeners[name]
		n.mu.Unlock()
		if l == nil {
			return nil, fmt.Errorf("replica %s does not listen", name)
		}
		return l.Dial(ctx)
	}
}
