package node

import (
	"context"
	"net"
	"net/http"
)

// Node is one process: built by New, run by Run.
type Node struct {
	cfg Config
}

// Addr is the public listener's address; nil without one.
func (n *Node) Addr() net.Addr { return nil }

// Handler is the gateway's HTTP handler, for clients in the same process. It
// answers while Run runs.
func (n *Node) Handler() http.Handler { return nil }

// Ready is closed once the node serves.
func (n *Node) Ready() <-chan struct{} { return nil }

// New loads and checks everything and starts nothing.
func New(cfg Config) (*Node, error) { return &Node{cfg: cfg}, nil }

// Run serves until ctx ends, then drains. It returns when all has been released.
func (n *Node) Run(ctx context.Context) error { return nil }
