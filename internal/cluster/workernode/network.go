package workernode

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
	"github.com/tokenrouter/tokenrouter/worker/peer"
)

const (
	// dialTimeout bounds connecting to another worker.
	dialTimeout = time.Second
	// probeTimeout bounds finding out whether anybody listens where a worker was.
	probeTimeout = 200 * time.Millisecond
	// knownWithin is how long a link waits for the state to have its replica, which may
	// be newer than what this node has.
	knownWithin = time.Second
	// callGrace is how long calls of a replica that has ended may take to end.
	callGrace = 50 * time.Millisecond
)

// errUnknownReplica says that the state has no such replica, or not on that node.
var errUnknownReplica = errors.New("workernode: the replica is not on that node")

// network is engine.Network over the cluster port.
type network struct {
	view        *client.View
	credentials *identity.Credentials
	dial        client.Dial
	log         *slog.Logger

	// traces answers on trace.Path.
	traces http.Handler

	// refused tells of callers that have no business here.
	refused unwelcome.Log

	mu    sync.Mutex
	seats map[string]*seat // by replica
}

func newNetwork(view *client.View, credentials *identity.Credentials, dial client.Dial, log *slog.Logger) *network {
	return &network{view: view, credentials: credentials, dial: dial, log: log, seats: map[string]*seat{}}
}

// Open implements engine.Network.
func (n *network) Open(replica string, h http.Handler) (func(context.Context) error, error) {
	s := &seat{handler: h, calls: map[*call]struct{}{}}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seats[replica] = s
	return func(ctx context.Context) error {
		<-ctx.Done()
		n.mu.Lock()
		if n.seats[replica] == s {
			delete(n.seats, replica)
		}
		n.mu.Unlock()
		s.end()
		return context.Cause(ctx)
	}, nil
}

// Transport implements engine.Network.
func (n *network) Transport(replica string) (engine.Transport, error) {
	return h2.NewTransport(h2.Config{
		Dial:             func(ctx context.Context) (net.Conn, error) { return n.connect(ctx, replica) },
		HandshakeTimeout: 2 * dialTimeout, Log: n.log,
	})
}

// connect connects to the node that has a replica now.
func (n *network) connect(ctx context.Context, replica string) (net.Conn, error) {
	conn, node, err := n.reach(ctx, replica, dialTimeout)
	if err != nil {
		return nil, err
	}
	return tls.Client(conn, n.credentials.Client(identity.ProtocolHTTP, node, cluster.Worker)), nil
}

// Probe implements engine.Prober.
func (n *network) Probe(ctx context.Context, replica string) error {
	conn, _, err := n.reach(ctx, replica, probeTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}

// reach dials the node that has a replica now.
func (n *network) reach(ctx context.Context, replica string, timeout time.Duration) (conn net.Conn, nodeID string, err error) {
	s := n.view.State()
	r, ok := s.Replica(replica)
	if !ok {
		return nil, "", fmt.Errorf("replica %s: %w", replica, state.ErrNotFound)
	}
	node, ok := s.Node(r.Node)
	if !ok {
		return nil, "", fmt.Errorf("node %s: %w", r.Node, state.ErrNotFound)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err = n.dial(ctx, "tcp", node.Addr)
	return conn, node.ID, err
}

// URL implements engine.Network.
func (n *network) URL(replica string) string { return "https://" + replica }

// Authorize implements engine.Network: the state must have the replica on the node whose
// certificate the connection has shown.
func (n *network) Authorize(r *http.Request, replica, model string) error {
	peer, err := identity.PeerName(r.TLS)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), knownWithin)
	defer cancel()
	_, err = n.view.WaitFor(ctx, func(s *state.State) bool {
		known, ok := s.Replica(replica)
		return ok && known.Node == peer.Node && known.Model == model
	})
	if err != nil {
		return fmt.Errorf("%w: %s, which serves %s, on %s %s", errUnknownReplica, replica, model, peer.Role, peer.Node)
	}
	return nil
}

// ServeHTTP gives a call to the replica that its host names. Gateways ask for answers,
// workers link. Control nodes ask what is remembered of requests.
func (n *network) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	peerName, err := identity.PeerName(r.TLS)
	role := cluster.Gateway
	switch r.URL.Path {
	case peer.Path:
		role = cluster.Worker
	case trace.Path:
		role = cluster.Control
	}
	switch {
	case r.URL.Path != peer.Path && r.URL.Path != generate.Path && r.URL.Path != trace.Path:
		http.NotFound(w, r)
		return
	case err != nil || peerName.Role != role || n.view.Removed(peerName.Node):
		n.refused.Note(n.log, "call refused", unwelcome.Peer(r), cmp.Or(err, fmt.Errorf("%s is for a %s that the cluster has", r.URL.Path, role)), "role", string(peerName.Role))
		http.Error(w, "forbidden", http.StatusForbidden)
		return
	case r.URL.Path == trace.Path:
		n.traces.ServeHTTP(w, r)
		return
	}
	n.mu.Lock()
	s := n.seats[r.Host]
	n.mu.Unlock()
	if s == nil || !s.serve(w, r, peerName.Node) {
		absent(w)
	}
}

// absent answers calls for a replica that does not run here now.
func absent(w http.ResponseWriter) {
	e := generate.Error{Code: generate.CodeUnavailable, Message: "the replica does not run here", Retryable: true}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.HTTPStatus())
	_ = json.NewEncoder(w).Encode(e) // the caller is gone if this fails
}

// watchRemoved ends the calls of nodes that are removed from the cluster, until ctx ends.
func (n *network) watchRemoved(ctx context.Context) error {
	for {
		changed := n.view.Changed()
		n.mu.Lock()
		for _, s := range n.seats {
			s.cut(n.view.Removed)
		}
		n.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// seat is where a replica's run is called.
type seat struct {
	handler http.Handler

	mu    sync.Mutex
	ended bool
	calls map[*call]struct{}
	all   sync.WaitGroup // of calls; Add with mu held and ended false
}

// call is one request that is being served.
type call struct {
	node   string
	cancel context.CancelFunc
	rc     *http.ResponseController
}

// abort ends reads and writes of a call for good.
func (c *call) abort() {
	c.cancel()
	// A failure means that the stream is gone already.
	_ = c.rc.SetReadDeadline(time.Unix(1, 0))
	_ = c.rc.SetWriteDeadline(time.Unix(1, 0))
}

// serve reports false if the run has ended.
func (s *seat) serve(w http.ResponseWriter, r *http.Request, node string) bool {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	c := &call{node: node, cancel: cancel, rc: http.NewResponseController(w)}
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false
	}
	s.calls[c] = struct{}{}
	s.all.Add(1)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.calls, c)
		s.mu.Unlock()
		s.all.Done()
	}()
	s.handler.ServeHTTP(w, r.WithContext(ctx))
	return true
}

// end lets the calls see the end, waits for them a moment, and cuts what is left.
func (s *seat) end() {
	s.mu.Lock()
	s.ended = true
	for c := range s.calls {
		c.cancel()
	}
	s.mu.Unlock()
	timer := time.AfterFunc(callGrace, func() { s.cut(func(string) bool { return true }) })
	defer timer.Stop()
	s.all.Wait()
}

// cut ends the calls of some nodes at once.
func (s *seat) cut(which func(node string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.calls {
		if which(c.node) {
			c.abort()
		}
	}
}
