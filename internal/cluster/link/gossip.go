package link

import (
	"fmt"
	"log/slog"
	"net"

	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/listen"
	"github.com/tokenrouter/tokenrouter/membership"
)

// OpenGossip opens a node's gossip port. addr is where the others reach the node, whose
// host is that of the gossip too unless bind names one. It finds the others by the
// state.
func OpenGossip(saved *identity.Saved, bind, addr string, view *client.View, log *slog.Logger) (*membership.Membership, error) {
	cfg := membership.Config{
		Node: saved.Node, Role: saved.Role, Cluster: saved.Cluster, Key: saved.GossipKey, Bind: bind, Log: log,
		Seeds: func() (out []string) {
			for id, n := range view.State().AllNodes() {
				if id != saved.Node && !n.Lost {
					out = append(out, n.Gossip)
				}
			}
			return out
		},
	}
	host, port, err := net.SplitHostPort(bind)
	if err != nil {
		return nil, fmt.Errorf("gossip port: %w: %q must be host:port", ErrAddress, bind)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		own, _, err := net.SplitHostPort(addr)
		if err != nil {
			return nil, fmt.Errorf("gossip port: %w: %q must be host:port", ErrAddress, addr)
		}
		cfg.Advertise = net.JoinHostPort(own, port)
	}
	m, err := membership.Open(cfg)
	if err != nil {
		return nil, listen.Failed(listen.Gossip, bind, err)
	}
	return m, nil
}
