package node

import (
	"context"
	"errors"
	"net"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/internal/listen"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
)

// Node is one process: built by New, run by Run.
type Node struct {
	engine   *engine.Engine
	gateway  *gateway.Gateway
	listener net.Listener
}

// errNotReady is what /readyz says until the first token can be made.
var errNotReady = errors.New("the replicas and their links are starting")

// New loads and checks everything and opens the public listener, so that a port
// in use is an error here. It starts nothing.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cfg.Metrics = metrics
	n := new(Node)
	if n.engine, err = engine.Load(cfg.Config); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.engine.Close())
		}
	}()
	if n.listener, err = open(cfg.Listen); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.listener.Close())
		}
	}()
	n.gateway, err = gateway.New(gateway.Config{
		Deployments: n.engine.Served(), MaxInFlight: cfg.MaxQueue,
		AllowOrigins: cfg.AllowOrigins, AllowHosts: cfg.AllowHosts,
		Metrics: metrics, ServeMetrics: private(n.listener.Addr()), Logger: cfg.Logger, Version: cfg.Version,
		DrainTimeout: max(cfg.DrainTimeout, 1), // 0 would mean the gateway's default
		Ready: func() error {
			select {
			case <-n.engine.Ready():
				return nil
			default:
				return errNotReady
			}
		},
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// open opens the public listener, in memory if there is no address.
func open(address string) (net.Listener, error) {
	if address == "" {
		return memconn.Listen(), nil
	}
	return listen.TCP(listen.Public, address)
}

// private says that only this machine reaches the address. Elsewhere the public
// port has no metrics: they name models and tell how much they are used.
func private(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return !ok || tcp.IP.IsLoopback()
}

// Addr is the public listener's address.
func (n *Node) Addr() net.Addr { return n.listener.Addr() }

// Plan is where the models' memory goes.
func (n *Node) Plan() engine.Plan { return n.engine.Plan() }

// Ready is closed once the node serves.
func (n *Node) Ready() <-chan struct{} { return n.engine.Ready() }

// Run serves until ctx ends, then drains. It returns when all has been released.
//
// Stop order: the gateway refuses new requests and waits for those in flight,
// which need every replica; then the engine stops.
func (n *Node) Run(ctx context.Context) error {
	replicas, stopReplicas := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReplicas()
	front, stopFront := context.WithCancel(ctx)
	defer stopFront()
	back := pool.New().WithErrors()
	back.Go(func() error {
		defer stopFront() // an engine that ends by itself leaves nothing to serve
		return n.engine.Run(replicas)
	})
	err := n.gateway.Run(front, n.listener)
	stopReplicas()
	return errors.Join(err, back.Wait())
}
