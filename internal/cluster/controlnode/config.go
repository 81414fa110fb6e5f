package controlnode

import (
	"errors"
	"log/slog"
	"net"

	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// Config configures a Node.
type Config struct {
	// Dir has the node's files, Saved what they say at the start. The caller holds the
	// directory's lock.
	Dir   string
	Saved *identity.Saved
	// Listen is the cluster port, such as ":7000".
	Listen string
	// Advertise is where others reach it: a host, with or without a port. Empty means what
	// can be found out (link.Advertised).
	Advertise string
	// Contacts are addresses of other control nodes, besides those that Saved knows: what
	// a node needs of which all have moved at once.
	Contacts []string
	// Gossip is the gossip port's address; empty means that there is none.
	Gossip string
	// Admin gives the connections of operators: a Unix socket's, which only they can open,
	// or a TCP port's, where they show an admin's certificate. The Node closes it. May be
	// nil.
	Admin net.Listener
	// MetricsListen is where /metrics, /healthz and /readyz are served; empty for nowhere.
	MetricsListen string
	Build         string
	// Log may be nil.
	Log *slog.Logger
	// Change may alter what the consensus is configured with, in tests. May be nil.
	Change func(*control.Config)
}

func (c *Config) fill() error {
	if c.Saved == nil || c.Dir == "" {
		return errors.New("controlnode: there is no identity, or no directory")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}
