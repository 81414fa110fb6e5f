package gatewaynode

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/tokenrouter/tokenrouter/control/client"
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
	// Listen is the public address, such as ":8000"; Advertise is what the cluster is told
	// of it, empty for what can be found out (link.Advertised).
	Listen, Advertise string
	// TLSCert and TLSKey are PEM files of the public port's certificate, read again when
	// they change. Empty serves plain HTTP.
	TLSCert, TLSKey string
	// Gossip is the gossip port's address; empty takes no part in it.
	Gossip string
	// MetricsListen is where /metrics is served; empty for the public port while that is
	// loopback, and for nowhere else.
	MetricsListen string
	// MaxInFlight bounds the answers in flight, AllowOrigins and AllowHosts are who may use
	// the API besides: as in gateway.Config.
	MaxInFlight              int
	AllowOrigins, AllowHosts []string
	// DrainTimeout is how long requests in flight may take to end after a stop; 0 cuts
	// them at once.
	DrainTimeout time.Duration
	Build        string
	// Dial connects to control nodes and to workers: net.Dialer's.
	Dial client.Dial
	// Log may be nil.
	Log *slog.Logger
}

func (c *Config) fill() error {
	switch {
	case c.Saved == nil || c.Dir == "":
		return errors.New("gatewaynode: there is no identity, or no directory")
	case (c.TLSCert == "") != (c.TLSKey == ""):
		return errors.New("gatewaynode: a certificate needs its key, and a key its certificate")
	case c.DrainTimeout < 0:
		return errors.New("gatewaynode: the time to drain is negative")
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}
