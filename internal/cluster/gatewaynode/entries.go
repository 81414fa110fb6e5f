package gatewaynode

import (
	"context"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/membership"
)

const (
	// dialTimeout bounds connecting to a worker.
	dialTimeout = time.Second
	// silentAfter is how long a worker may leave pings unanswered before its requests move:
	// longer than for links between workers, which come back by themselves.
	silentAfter = 550 * time.Millisecond
)

// entries are the replicas that requests may go to. One goroutine calls its methods;
// what they return is safe for concurrent use. An entry stays the same from one state
// to the next, so that the gateway keeps what it knows of it.
type entries struct {
	credentials *identity.Credentials
	dial        client.Dial
	log         *slog.Logger
	workers     map[string]*worker // by node
	known       map[place]*entry
}

// place is a replica on a node.
type place struct{ replica, node string }

func newEntries(credentials *identity.Credentials, dial client.Dial, log *slog.Logger) *entries {
	return &entries{credentials: credentials, dial: dial, log: log, workers: map[string]*worker{}, known: map[place]*entry{}}
}

// worker is one worker's connection, for all its replicas.
type worker struct {
	addr      string
	transport *h2.Transport
	// inFlight are this gateway's requests there, others are about those of others.
	inFlight, others atomic.Int64
}

// of returns the entry of a replica, on a worker that the state has.
func (e *entries) of(r *cluster.Replica, n *cluster.Node) (*entry, error) {
	w := e.workers[n.ID]
	if w != nil && w.addr != n.Addr {
		e.drop(n.ID, "it has moved to "+n.Addr)
		w = nil
	}
	if w == nil {
		var err error
		if w, err = e.connect(n); err != nil {
			return nil, err
		}
	}
	at := place{r.ID, n.ID}
	if known := e.known[at]; known != nil && known.worker == w {
		return known, nil
	}
	out := &entry{Entry: session.NewEntryClient(r.ID, w.transport, "https://"+r.ID), worker: w}
	e.known[at] = out
	return out, nil
}

// connect makes the transport to a worker. It connects with the first request.
func (e *entries) connect(n *cluster.Node) (*worker, error) {
	addr := n.Addr
	t, err := h2.NewTransport(h2.Config{
		TLS: e.credentials.Client(identity.ProtocolHTTP, n.ID, cluster.Worker),
		Dial: func(ctx context.Context) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return e.dial(ctx, "tcp", addr)
		},
		HandshakeTimeout: 2 * dialTimeout,
		Silence:          silentAfter,
		Log:              e.log,
	})
	if err != nil {
		return nil, err
	}
	w := &worker{addr: addr, transport: t}
	e.workers[n.ID] = w
	return w, nil
}

// sweep closes the connections to workers that a state has no more, and forgets
// replicas that are gone. Requests in flight at a worker that was removed move.
func (e *entries) sweep(s *state.State) {
	for id := range e.workers {
		if _, ok := s.Node(id); !ok {
			e.drop(id, "it was removed")
		}
	}
	for at := range e.known {
		if r, ok := s.Replica(at.replica); !ok || r.Node != at.node {
			delete(e.known, at)
		}
	}
}

func (e *entries) drop(node, why string) {
	e.log.Info("worker let go", "node", node, "reason", why)
	_ = e.workers[node].transport.Close() // its requests move
	delete(e.workers, node)
	for at := range e.known {
		if at.node == node {
			delete(e.known, at)
		}
	}
}

// close ends all connections.
func (e *entries) close() {
	for id := range e.workers {
		_ = e.workers[id].transport.Close() // nothing is in flight
	}
	clear(e.workers)
	clear(e.known)
}

// deadLoad stands for a worker that the gossip takes for dead, or of which nobody can say
// whether it serves: it is picked last.
const deadLoad = 1 << 20

// hear takes what the gossip says of the workers.
func (e *entries) hear(members map[string]membership.Member) {
	for id, w := range e.workers {
		m, seen := members[id]
		switch {
		case !seen:
			w.others.Store(0)
		case m.State != membership.Alive:
			w.others.Store(deadLoad)
		default:
			w.others.Store(max(0, int64(m.Load.Live+m.Load.Waiting)-w.inFlight.Load()))
		}
	}
}

// entry is a replica with the load of its worker.
type entry struct {
	session.Entry
	worker *worker
	// last says that it is the last resort.
	last atomic.Bool
}

// Others implements session.Loaded.
func (e *entry) Others() int64 {
	if e.last.Load() {
		return deadLoad
	}
	return e.worker.others.Load()
}

// Generate implements session.Entry.
func (e *entry) Generate(ctx context.Context, r *generate.Request) (session.Stream, error) {
	e.worker.inFlight.Add(1)
	s, err := e.Entry.Generate(ctx, r)
	if err != nil {
		e.worker.inFlight.Add(-1)
		return nil, err
	}
	return &counted{Stream: s, worker: e.worker}, nil
}

// counted is a stream that counts until it is closed.
type counted struct {
	session.Stream
	worker *worker
	closed atomic.Bool
}

// Close implements session.Stream.
func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.worker.inFlight.Add(-1)
	}
	return c.Stream.Close()
}
