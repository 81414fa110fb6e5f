package workernode

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Config configures a Node.
type Config struct {
	// Dir has the node's files, Saved what they say at the start. The caller holds the
	// directory's lock.
	Dir   string
	Saved *identity.Saved
	// Contacts are addresses of control nodes besides those that Saved knows.
	Contacts []string
	// Listen is the cluster port, such as ":7000"; Advertise is where others reach it,
	// empty for what can be found out (link.Advertised).
	Listen, Advertise string
	// Gossip is the gossip port's address; empty takes no part in it.
	Gossip string
	// MetricsListen is where /metrics, /healthz and /readyz are served; empty for nowhere.
	MetricsListen string
	// Engine says how models run here. Its models, deployments, network, metrics and
	// logger are the node's.
	Engine engine.Config
	// Pins are the models that the node serves; without any the cluster places models on
	// it. GPUs are its devices.
	Pins []cluster.Pin
	GPUs []cluster.GPU
	// Resolve finds a model by its source: a directory, a hub id, or a name of the catalogue.
	Resolve func(source string) (engine.Model, error)
	// DrainTimeout is how long requests in flight may take to end after a stop; 0 moves
	// them at once.
	DrainTimeout time.Duration
	Build        string
	// Dial connects to control nodes and to workers: net.Dialer's.
	Dial client.Dial
	// Log may be nil.
	Log *slog.Logger
	// Cluster is what ties the node to its cluster; nil for a link.Link with the above.
	Cluster Cluster

	// listen opens the cluster port; net.Listen's.
	listen func(network, address string) (net.Listener, error)
}

// Cluster is a node's tie to its cluster. All methods are safe for concurrent use.
type Cluster interface {
	// View is the newest state that the node knows.
	View() *client.View
	Credentials() *identity.Credentials
	// Propose has a command applied and returns its index.
	Propose(ctx context.Context, c cluster.Command) (uint64, error)
	// Index is that of a state that has every change which was acknowledged before the call.
	Index(ctx context.Context) (uint64, error)
	// Measure tells the leader what the replicas have measured.
	Measure(ctx context.Context, m cluster.Measures) error
	// Drain tells the cluster that the node takes no new work.
	Drain(ctx context.Context)
	// Run keeps the node in touch until ctx ends.
	Run(ctx context.Context) error
}

func (c *Config) fill() error {
	switch {
	case c.Saved == nil && c.Cluster == nil:
		return errors.New("workernode: there is no identity")
	case c.Resolve == nil:
		return errors.New("workernode: there is no way to find models")
	case c.DrainTimeout < 0:
		return errors.New("workernode: the time to drain is negative")
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.listen == nil {
		c.listen = net.Listen
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}
