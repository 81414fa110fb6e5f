package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/protocol"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Config configures a Node. Zero times take the defaults.
type Config struct {
	// Self is what the cluster is told of this node at every start: ID, Addr (where
	// the others reach its cluster port), Gossip, Build. Role and the versions that it
	// speaks are set.
	Self cluster.Node
	// Dir has the log and the snapshots. It is made if need be.
	Dir string
	// Raft gives the connections of the protocol identity.ProtocolRaft (package
	// internal/alpn). It must accept until Run has returned.
	Raft net.Listener
	// Credentials are the node's, whose check for removed nodes should be
	// View.Removed. Authority signs certificates.
	Credentials *identity.Credentials
	Authority   *identity.Authority
	// GossipKey and Pepper are given to nodes that join.
	GossipKey, Pepper []byte
	// GossipGeneration is that of GossipKey.
	GossipGeneration uint64
	// Gossip are the generations of the gossip's keys that this node holds. Nil for a node
	// that takes no part in the gossip.
	Gossip func() []uint64
	// Bootstrap makes a new cluster, if Dir is empty. Without it a new node waits to
	// be taken in by the others.
	Bootstrap *cluster.Cluster
	// Contacts are addresses of other control nodes, to announce this one to.
	Contacts []string
	// View gets the state. Nil for a View of the Node's own.
	View *client.View

	// Heartbeat is how long a follower hears nothing before it stands for election,
	// Election how long an election may take: 500 ms both. Lease is how long a leader
	// that hears no majority still leads: 250 ms.
	Heartbeat, Election, Lease time.Duration
	// Patience is how long Propose waits for a leader: 750 ms.
	Patience time.Duration
	// RefusedAfter is how long the other control nodes must refuse this node's certificate,
	// while it has no leader, before it says that it is not welcome: 10 s.
	RefusedAfter time.Duration
	// LostAfter is how long a node is not heard before it counts as lost: 2 s.
	// SuspectAfter is enough if the gossip says too that it is dead: 750 ms.
	LostAfter, SuspectAfter time.Duration
	// Tune is how often the leader looks whether measured times and routing have drifted
	// from what thresholds were solved from: 2 s.
	Tune time.Duration
	// Dead says that the gossip takes a node for dead. May be nil.
	Dead func(node string) bool
	// Dial connects to other control nodes: net.Dialer's.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
	// SnapshotEntries is the number of log entries after which a snapshot is taken,
	// and about that many are kept before it: 2048.
	SnapshotEntries uint64
	// NoSync leaves out fsync. It loses data at a power cut; for tests.
	NoSync bool
	// Log may be nil.
	Log *slog.Logger
}

// fill checks the configuration and sets the defaults.
func (c *Config) fill() error {
	switch {
	case c.Credentials == nil || c.Authority == nil:
		return errors.New("control: there are no credentials, or no authority")
	case c.Raft == nil:
		return errors.New("control: there is no listener for raft")
	case c.Dir == "":
		return errors.New("control: there is no directory")
	case c.Credentials.Name().Role != cluster.Control:
		return fmt.Errorf("control: the certificate is of a %s", c.Credentials.Name().Role)
	case c.Self.ID != c.Credentials.Name().Node:
		return fmt.Errorf("control: the node is %q and its certificate is of %q", c.Self.ID, c.Credentials.Name().Node)
	case c.Bootstrap != nil && c.Bootstrap.ID != c.Credentials.Name().Cluster:
		return fmt.Errorf("control: the cluster is %q and the certificate is of %q", c.Bootstrap.ID, c.Credentials.Name().Cluster)
	}
	if _, _, err := net.SplitHostPort(c.Self.Addr); err != nil {
		return fmt.Errorf("control: the node's address %q must be host:port", c.Self.Addr)
	}
	c.Self.Role = cluster.Control
	c.Self.Speak(protocol.Cluster())
	for _, d := range []struct {
		time  *time.Duration
		value time.Duration
	}{
		{&c.Heartbeat, 500 * time.Millisecond}, {&c.Election, 500 * time.Millisecond}, {&c.Lease, 250 * time.Millisecond},
		{&c.Patience, 750 * time.Millisecond}, {&c.LostAfter, 2 * time.Second}, {&c.SuspectAfter, 750 * time.Millisecond},
		{&c.Tune, cluster.MeasureEvery}, {&c.RefusedAfter, 10 * time.Second},
	} {
		if *d.time < 0 {
			return errors.New("control: a time is negative")
		}
		if *d.time == 0 {
			*d.time = d.value
		}
	}
	// Followers hear from the leader every tenth to fifth of Heartbeat.
	if c.Lease > c.Heartbeat || c.Lease < c.Heartbeat/3 || c.Election < c.Heartbeat {
		return fmt.Errorf("control: with a heartbeat of %s the lease must be a third to the whole of it, and the election not shorter; they are %s and %s",
			c.Heartbeat, c.Lease, c.Election)
	}
	if c.SnapshotEntries == 0 {
		c.SnapshotEntries = 2048
	}
	if c.View == nil {
		c.View = client.NewView()
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Dead == nil {
		c.Dead = func(string) bool { return false }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}
