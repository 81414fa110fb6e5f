package membership

import (
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// KeySize is the size of the gossip key, in bytes: AES-256.
const KeySize = 32

// Config configures a Membership.
type Config struct {
	// Node is the node's ID, Role its role.
	Node string
	Role cluster.Role
	// Cluster is the cluster's ID: gossip of others is dropped.
	Cluster string
	// Key encrypts the gossip; it has KeySize bytes.
	Key []byte
	// Bind is the address to listen on, TCP and UDP, host:port. Advertise is where the
	// others reach it; empty takes Bind's, which must then name an interface.
	Bind, Advertise string
	// Seeds lists gossip addresses of other nodes, such as those in the state. It is
	// asked again and again. May be nil.
	Seeds func() []string
	// Probe is how often another node is asked whether it is there: 200 ms. A node
	// that has died is noticed after about five of them.
	Probe time.Duration
	// Log may be nil.
	Log *slog.Logger
}

func (c *Config) fill() error {
	switch {
	case c.Node == "" || len(c.Node) > cluster.MaxID:
		return fmt.Errorf("membership: the node's ID must have 1 to %d bytes", cluster.MaxID)
	case c.Cluster == "":
		return errors.New("membership: the cluster has no ID")
	case len(c.Key) != KeySize:
		return fmt.Errorf("membership: the gossip key has %d bytes, it must have %d", len(c.Key), KeySize)
	case c.Probe < 0:
		return errors.New("membership: Probe is negative")
	}
	if c.Probe == 0 {
		c.Probe = 200 * time.Millisecond
	}
	if c.Seeds == nil {
		c.Seeds = func() []string { return nil }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// library is the configuration as the library wants it.
func (c *Config) library() (*memberlist.Config, error) {
	bind, err := net.ResolveTCPAddr("tcp", c.Bind)
	if err != nil {
		return nil, fmt.Errorf("membership: bind address: %w", err)
	}
	out := memberlist.DefaultLANConfig()
	out.Name, out.Label = c.Node, c.Cluster
	if out.Keyring, err = memberlist.NewKeyring(nil, c.Key); err != nil {
		return nil, fmt.Errorf("membership: the key: %w", err)
	}
	out.BindAddr, out.BindPort = "0.0.0.0", bind.Port
	if bind.IP != nil {
		out.BindAddr = bind.IP.String()
	}
	out.AdvertisePort = bind.Port
	if c.Advertise != "" {
		advertise, err := net.ResolveTCPAddr("tcp", c.Advertise)
		if err != nil {
			return nil, fmt.Errorf("membership: advertised address: %w", err)
		}
		out.AdvertiseAddr, out.AdvertisePort = advertise.IP.String(), advertise.Port
	}
	out.ProbeInterval, out.ProbeTimeout = c.Probe, c.Probe/2
	out.GossipInterval, out.SuspicionMult = c.Probe/4, 3
	out.PushPullInterval = 50 * c.Probe
	out.TCPTimeout = 2 * time.Second
	// A node may come back under its name at another address, at once.
	out.DeadNodeReclaimTime = time.Millisecond
	out.EnableCompression = false
	out.GossipVerifyIncoming, out.GossipVerifyOutgoing = true, true
	out.Logger = log.New(logWriter{c.Log}, "", 0)
	return out, nil
}
