package controltest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/sourcegraph/conc"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/alpn"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// ID is the cluster's.
const ID = "test"

// Patience bounds every wait of this package.
const Patience = 20 * time.Second

// leaderless is how long calls wait for a leader: a busy machine may hold up an election for
// long, which fails no test of something else.
const leaderless = 5 * time.Second

// Impatient is a change of configuration for tests that have no leader for a while, or whose
// nodes move: nodes say soon that there is none, as by default, and then where they are.
func Impatient(cfg *control.Config) { cfg.Patience = 0 }

// Cluster is a set of control nodes. Its methods end the test if they fail.
type Cluster struct {
	TB        testing.TB
	Authority *identity.Authority
	// CA is its certificate, PEM.
	CA []byte
	// GossipKey and Pepper are what nodes get when they join.
	GossipKey, Pepper []byte
	// Change may alter a node's configuration before it starts.
	Change func(*control.Config)

	dir   string
	nodes []*Node
	// heartbeat is short for a cluster that begins alone.
	heartbeat time.Duration
}

// Node is one control node.
type Node struct {
	*control.Node
	ID   string
	Addr string

	cluster *Cluster
	net     *network
	stop    context.CancelFunc
	running conc.WaitGroup
	// err is what Run returned, once ended is closed.
	err   error
	ended chan struct{}
}

// NeverLost is a change of configuration for tests whose nodes are but names: however long
// they take, nobody that does not beat counts as lost.
func NeverLost(cfg *control.Config) { cfg.LostAfter, cfg.SuspectAfter = time.Hour, time.Hour }

// New starts n control nodes, called c1, c2, and so on, and waits until all of them
// vote. They end with the test.
func New(tb testing.TB, n int, change func(*control.Config)) *Cluster {
	tb.Helper()
	a, err := identity.NewAuthority(ID, time.Now())
	if err != nil {
		tb.Fatal(err)
	}
	ca, _, err := a.PEM()
	if err != nil {
		tb.Fatal(err)
	}
	c := &Cluster{
		TB: tb, Authority: a, CA: ca, dir: tb.TempDir(), Change: change,
		GossipKey: []byte("0123456789abcdef0123456789abcdef"), Pepper: []byte("the-pepper-of-the-test-cluster-.."),
	}
	c.heartbeat = 300 * time.Millisecond
	if n == 1 {
		c.heartbeat /= 2
	}
	tb.Cleanup(c.close)
	for i := range n {
		c.Start(fmt.Sprintf("c%d", i+1))
	}
	c.AwaitVoters(n)
	c.Await("all nodes", func(s *state.State) bool { return len(s.Nodes) == n })
	return c
}

func (c *Cluster) close() {
	var all conc.WaitGroup
	for _, n := range c.nodes {
		all.Go(n.Stop)
	}
	all.Wait()
}

// Credentials makes a certificate and what belongs to it.
func (c *Cluster) Credentials(role cluster.Role, node string, removed func(string) bool) *identity.Credentials {
	c.TB.Helper()
	certificate, key := c.Certificate(role, node)
	out, err := identity.NewCredentials(certificate, key, [][]byte{c.CA}, removed)
	if err != nil {
		c.TB.Fatal(err)
	}
	return out
}

// Certificate makes a certificate and its key, PEM.
func (c *Cluster) Certificate(role cluster.Role, node string) (certificate, key []byte) {
	c.TB.Helper()
	signer, request, err := identity.NewKey()
	if err != nil {
		c.TB.Fatal(err)
	}
	if key, err = identity.EncodeKey(signer); err != nil {
		c.TB.Fatal(err)
	}
	certificate, err = c.Authority.Issue(request, identity.Name{Cluster: ID, Role: role, Node: node}, time.Now())
	if err != nil {
		c.TB.Fatal(err)
	}
	return certificate, key
}

// Client makes a client of the running nodes. It is closed with the test.
func (c *Cluster) Client(role cluster.Role, node string) *client.Client {
	c.TB.Helper()
	out, err := client.New(client.Config{Credentials: c.Credentials(role, node, nil), Control: c.Addrs()})
	if err != nil {
		c.TB.Fatal(err)
	}
	c.TB.Cleanup(func() { _ = out.Close() })
	return out
}

// Addrs are the running nodes' addresses.
func (c *Cluster) Addrs() (out []string) {
	for _, n := range c.nodes {
		out = append(out, n.Addr)
	}
	return out
}

// Nodes are the running nodes.
func (c *Cluster) Nodes() []*Node { return c.nodes }

// Node returns a running node.
func (c *Cluster) Node(id string) *Node {
	c.TB.Helper()
	for _, n := range c.nodes {
		if n.ID == id {
			return n
		}
	}
	c.TB.Fatalf("node %s does not run", id)
	return nil
}

// Start starts a node, a new one or one that was stopped, at a new address.
func (c *Cluster) Start(id string) *Node {
	c.TB.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.TB.Fatal(err)
	}
	n := &Node{ID: id, Addr: l.Addr().String(), cluster: c, net: newNetwork(l)}
	view := client.NewView()
	credentials := c.Credentials(cluster.Control, id, view.Removed)
	mux, err := alpn.New(n.net, alpn.Config{
		TLS: credentials.Server(identity.ProtocolHTTP, identity.ProtocolRaft, identity.ProtocolJoin),
	}, identity.ProtocolHTTP, identity.ProtocolRaft, identity.ProtocolJoin)
	if err != nil {
		c.TB.Fatal(err)
	}
	cfg := control.Config{
		Self:        cluster.Node{ID: id, Addr: n.Addr, Build: "test"},
		Dir:         filepath.Join(c.dir, id),
		Raft:        mux.Listener(identity.ProtocolRaft),
		Credentials: credentials, Authority: c.Authority, GossipKey: c.GossipKey, Pepper: c.Pepper,
		Contacts: c.Addrs(), View: view, Dial: n.net.dial,
		Heartbeat: c.heartbeat, Election: c.heartbeat, Lease: c.heartbeat * 2 / 3, Patience: leaderless,
		NoSync: true, Log: slog.New(slog.DiscardHandler),
	}
	if len(c.nodes) == 0 {
		cfg.Bootstrap = &cluster.Cluster{ID: ID, Name: "test", Created: time.Now().UTC(), CAs: []string{string(c.CA)}}
	}
	if c.Change != nil {
		c.Change(&cfg)
	}
	if n.Node, err = control.Open(cfg); err != nil {
		c.TB.Fatal(err)
	}
	if err := n.run(mux); err != nil {
		c.TB.Fatal(err)
	}
	c.nodes = append(c.nodes, n)
	return n
}

// run runs a node as a process would: the port outlives the node.
func (n *Node) run(mux *alpn.Mux) error {
	server, err := h2.NewServer(h2.Config{Grace: 10 * time.Millisecond}, n.Handler())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.ended = stop, make(chan struct{})
	n.running.Go(func() {
		defer close(n.ended)
		port, closePort := context.WithCancel(context.Background())
		loops := pool.New().WithErrors()
		loops.Go(func() error { return mux.Serve(port) })
		loops.Go(func() error { return n.ServeJoins(port, mux.Listener(identity.ProtocolJoin)) })
		loops.Go(func() error { return server.Serve(port, mux.Listener(identity.ProtocolHTTP)) })
		n.err = n.Run(ctx)
		closePort()
		if err := loops.Wait(); err != nil && !errors.Is(err, context.Canceled) {
			n.cluster.TB.Errorf("port of %s: %v", n.ID, err)
		}
	})
	return nil
}

// Stop ends a node in order. What Run returned is kept for Err.
func (n *Node) Stop() {
	n.stop()
	n.running.Wait()
}

// Err waits for the end of Run and returns its error.
func (n *Node) Err() error {
	select {
	case <-n.ended:
	case <-time.After(Patience):
		n.cluster.TB.Errorf("%s has not ended by itself", n.ID)
		n.stop()
	}
	n.running.Wait()
	return n.err
}

// Crash ends a node as a power cut would: nobody hears from it any more.
func (n *Node) Crash() {
	n.Isolate(true)
	n.Stop()
}

// Isolate cuts a node off from everybody, or ends that.
func (n *Node) Isolate(cut bool) { n.net.isolate(cut) }

// Drop ends a node's connections; new ones are taken.
func (n *Node) Drop() { n.net.drop() }

// Forget takes a node that has ended off the list of running ones.
func (c *Cluster) Forget(n *Node) {
	for i, other := range c.nodes {
		if other == n {
			c.nodes = append(c.nodes[:i:i], c.nodes[i+1:]...)
			return
		}
	}
}

// Await waits until ok holds for the state of every running node.
func (c *Cluster) Await(what string, ok func(*state.State) bool) {
	c.TB.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	for _, n := range c.nodes {
		if _, err := n.View().WaitFor(ctx, ok); err != nil {
			c.TB.Fatalf("waited for %s at %s: %v", what, n.ID, err)
		}
	}
}

// AwaitVoters waits until the leader has that many voters, and all running nodes know
// of all of them.
func (c *Cluster) AwaitVoters(want int) {
	c.TB.Helper()
	voters := func(node *Node) (n int) {
		for _, s := range node.Status().Servers {
			if s.Voter {
				n++
			}
		}
		return n
	}
	c.Poll(fmt.Sprintf("%d voters", want), func() bool {
		if voters(c.Leader()) != want {
			return false
		}
		// One that does not know of a voter gives it no vote: without the leader, which told
		// that one and not this one, there might never be another.
		for _, node := range c.nodes {
			if voters(node) != want {
				return false
			}
		}
		return true
	})
}

// Leader waits for a leader among the running nodes and returns it.
func (c *Cluster) Leader() (leader *Node) {
	c.TB.Helper()
	c.Poll("a leader", func() bool {
		for _, n := range c.nodes {
			if _, self := n.Leader(); self {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

// Follower waits for a leader and returns another node.
func (c *Cluster) Follower() *Node {
	c.TB.Helper()
	leader := c.Leader()
	for _, n := range c.nodes {
		if n != leader {
			return n
		}
	}
	c.TB.Fatal("there is no follower")
	return nil
}

// Poll waits until ok.
func (c *Cluster) Poll(what string, ok func() bool) {
	c.TB.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(Patience); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			c.TB.Fatalf("waited for %s in vain", what)
		}
	}
}

// Propose has a command applied at any node, however long that takes, and returns its
// index.
func (c *Cluster) Propose(n *Node, kind cluster.Kind, body any) uint64 {
	c.TB.Helper()
	command, err := cluster.NewCommand(kind, fmt.Sprintf("test/%d", time.Now().UnixNano()), time.Now(), body)
	if err != nil {
		c.TB.Fatal(err)
	}
	var index uint64
	c.led(string(kind), func() (err error) {
		index, err = n.Propose(context.Background(), command)
		return err
	})
	return index
}

// Backup takes a backup at the leader.
func (c *Cluster) Backup() (backup []byte) {
	c.TB.Helper()
	c.led("backup", func() (err error) {
		backup, err = c.Leader().Backup(context.Background())
		return err
	})
	return backup
}

// Restore restores a backup at the leader.
func (c *Cluster) Restore(backup []byte) {
	c.TB.Helper()
	c.led("restore", func() error { return c.Leader().Restore(context.Background(), backup) })
}

// led does what may be repeated until there is a leader for it: on a busy machine one of several nodes may lose its place.
func (c *Cluster) led(what string, do func() error) {
	c.TB.Helper()
	c.Poll(what, func() bool {
		err := do()
		if err != nil && !errors.Is(err, control.ErrNoLeader) {
			c.TB.Fatalf("%s: %v", what, err)
		}
		return err == nil
	})
}

// network is one node's connections, which can be cut.
type network struct {
	net.Listener
	mu    sync.Mutex
	cut   bool
	conns map[net.Conn]struct{}
}

var errCut = errors.New("controltest: the node is cut off")

func newNetwork(l net.Listener) *network {
	return &network{Listener: l, conns: map[net.Conn]struct{}{}}
}

func (n *network) Accept() (net.Conn, error) {
	for {
		conn, err := n.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if out, err := n.track(conn); err == nil {
			return out, nil
		}
	}
}

func (n *network) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	n.mu.Lock()
	cut := n.cut
	n.mu.Unlock()
	if cut {
		return nil, errCut
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return n.track(conn)
}

func (n *network) track(conn net.Conn) (net.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.cut {
		_ = conn.Close()
		return nil, errCut
	}
	n.conns[conn] = struct{}{}
	return &tracked{conn, n}, nil
}

func (n *network) isolate(cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut = cut
	if cut {
		n.close()
	}
}

func (n *network) drop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.close()
}

// close needs mu.
func (n *network) close() {
	for conn := range n.conns {
		_ = conn.Close()
	}
	clear(n.conns)
}

type tracked struct {
	net.Conn
	network *network
}

func (t *tracked) Close() error {
	t.network.mu.Lock()
	delete(t.network.conns, t.Conn)
	t.network.mu.Unlock()
	return t.Conn.Close()
}
