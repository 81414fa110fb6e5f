package control

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
)

// Bounds of the consensus' connections.
const (
	// maxUnanswered is how many bytes may come between two of our own writes. The
	// library reads a message whole before it answers, and believes the lengths in it.
	maxUnanswered = 32 << 20
	// maxEntries bounds the entries of one message, so that it stays far below
	// maxUnanswered: an entry is at most cluster.MaxCommand.
	maxEntries = 16
	// maxConns bounds the connections that one control node may have to this one.
	maxConns = 32
)

// Why a connection is refused, besides its certificate.
var (
	errNoControl = errors.New("control: it is no control node")
	errRemoved   = errors.New("control: it was removed from the cluster")
	errTooMany   = errors.New("control: it has too many connections, or this node ends")
)

// errFlood ends a connection that sends too much.
var errFlood = fmt.Errorf("control: more than %d bytes came without an answer from here", maxUnanswered)

// stream carries the library's messages over the cluster port.
type stream struct {
	net.Listener
	self        raft.ServerID
	advertised  advertised
	credentials *identity.Credentials
	dial        client.Dial
	view        *client.View
	book        *book
	log         *slog.Logger
	// refused belongs to Accept.
	refused unwelcome.Log

	// hungUp gets the node of every connection that ends from its side. Capacity 16;
	// what is too much is dropped, for one word of a node is enough.
	hungUp chan string

	// dialing ends with fence.
	dialing     context.Context
	stopDialing context.CancelFunc

	mu sync.Mutex
	// open are the connections, those that were accepted and those that were dialed.
	open map[*capped]struct{}
	// fenced says that there are to be no connections any more.
	fenced bool
}

func newStream(cfg *Config, b *book) *stream {
	dialing, stop := context.WithCancel(context.Background())
	return &stream{
		dialing: dialing, stopDialing: stop,
		Listener: cfg.Raft, self: raft.ServerID(cfg.Self.ID), advertised: advertised(target(cfg.Self.ID, cfg.Self.Addr)), credentials: cfg.Credentials, dial: cfg.Dial, view: cfg.View, book: b, log: cfg.Log,
		hungUp: make(chan string, 16), open: map[*capped]struct{}{},
	}
}

// Accept returns the next connection. The handshake has made sure that it is of a
// control node.
func (s *stream) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, peer, err := s.admit(conn)
		if err != nil {
			s.refused.Note(s.log, "raft connection refused", peer, err, "addr", conn.RemoteAddr().String())
			_ = conn.Close()
			continue
		}
		s.refused.Forget(peer)
		return c, nil
	}
}

// admit says who has connected, and why it is refused.
func (s *stream) admit(conn net.Conn) (c *capped, peer string, err error) {
	peer = unwelcome.Host(conn.RemoteAddr().String())
	name, err := peerOf(conn)
	if err != nil {
		return nil, peer, err
	}
	peer = name.Node
	c = &capped{Conn: conn, stream: s, node: name.Node}
	switch {
	case name.Role != cluster.Control:
		err = errNoControl
	case s.add(c):
	case s.view.Removed(name.Node):
		err = errRemoved
	default:
		err = errTooMany
	}
	return c, peer, err
}

// add takes a connection, unless there must be no more of them. Who was removed is refused
// under the lock: the one who closes the connections of removed nodes, once the state says
// so, takes it as well, and would miss one that was judged before and is noted after.
func (s *stream) add(c *capped) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fenced || !c.dialed && s.view.Removed(c.node) {
		return false
	}
	n := 0
	for o := range s.open {
		if o.node == c.node && !o.dialed {
			n++
		}
	}
	if n >= maxConns && !c.dialed {
		return false
	}
	s.open[c] = struct{}{}
	return true
}

func (s *stream) remove(c *capped) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, c)
}

// closeAll closes the accepted connections of the nodes that doomed names.
func (s *stream) closeAll(doomed func(node string) bool) {
	s.closeThose(func(c *capped) bool { return !c.dialed && doomed(c.node) })
}

func (s *stream) closeThose(doomed func(*capped) bool) {
	s.mu.Lock()
	var list []*capped
	for c := range s.open {
		if doomed(c) {
			list = append(list, c)
		}
	}
	s.mu.Unlock()
	for _, c := range list {
		_ = c.Close()
	}
}

// fence closes all connections, and lets no others come or go out. The library waits for
// answers for up to 10 s, from nodes that have fallen silent as well, before it ends.
func (s *stream) fence() {
	s.mu.Lock()
	s.fenced = true
	s.mu.Unlock()
	s.stopDialing()
	s.closeThose(func(*capped) bool { return true })
}

// target joins a node with its address, so that no other node may answer there.
func target(node, addr string) raft.ServerAddress { return raft.ServerAddress(node + "/" + addr) }

// ServerAddr is where a control node is. The library asks before every dial: it has
// the address of the time when the node was taken in. It asks for this node's too, which
// it tells the others: that must not wait until the state has it.
func (s *stream) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if id == s.self {
		return raft.ServerAddress(s.advertised), nil
	}
	addr, ok := s.book.find(string(id))
	if !ok {
		return "", fmt.Errorf("control: the address of node %q is not known", id)
	}
	return target(string(id), addr), nil
}

// Dial connects to a control node, also to one that was removed. The library dials the members
// of the consensus alone, so that nobody else is told what is in the log; and one that was
// removed while it was a member may be needed: until it is taken out, the others are perhaps no
// majority without its vote, and could not take it out either.
func (s *stream) Dial(address raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	node, addr, ok := strings.Cut(string(address), "/")
	if !ok || node == "" {
		return nil, fmt.Errorf("control: the address %q is of no node", address)
	}
	ctx, cancel := context.WithTimeout(s.dialing, timeout)
	defer cancel()
	conn, err := s.dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	secured := tls.Client(conn, s.credentials.ClientOfMember(node))
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c := &capped{Conn: secured, stream: s, node: node, dialed: true}
	if !s.add(c) {
		_ = secured.Close()
		return nil, net.ErrClosed
	}
	return c, nil
}

// Addr is this node's as the others have it.
func (s *stream) Addr() net.Addr { return s.advertised }

// advertised is a target as a net.Addr.
type advertised string

func (advertised) Network() string  { return "tcp" }
func (a advertised) String() string { return string(a) }

// peerOf is who is on the other side.
func peerOf(conn net.Conn) (identity.Name, error) {
	secured, ok := conn.(*tls.Conn)
	if !ok {
		return identity.Name{}, errors.New("control: a raft connection without TLS")
	}
	state := secured.ConnectionState()
	return identity.PeerName(&state)
}

// capped is a connection that ends when too much is read between two writes.
type capped struct {
	net.Conn
	stream *stream
	node   string
	// dialed tells it from those that were accepted.
	dialed bool
	// unanswered counts the bytes read since the last write.
	unanswered atomic.Int64
}

func (c *capped) Read(p []byte) (int, error) {
	left := maxUnanswered - c.unanswered.Load()
	if left <= 0 {
		if !c.dialed {
			c.stream.log.Warn("raft connection ended", "peer", c.node, "err", errFlood)
		}
		_ = c.Close()
		return 0, errFlood
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), left)])
	c.unanswered.Add(int64(n))
	if err != nil && !c.dialed && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
		select {
		case c.stream.hungUp <- c.node:
		default:
		}
	}
	return n, err
}

func (c *capped) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.unanswered.Store(0)
	}
	return n, err
}

func (c *capped) Close() error {
	c.stream.remove(c)
	return c.Conn.Close()
}
