package workernode

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/api/trace"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/engine"
	"github.com/tokenrouter/tokenrouter/internal/alpn"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/listen"
)

// Node is a worker's process: built by New, run by Run.
type Node struct {
	cfg     Config
	name    string
	addr    string
	cluster Cluster
	engine  *engine.Engine
	net     *network
	mux     *alpn.Mux
	front   *h2.Server
	// metrics is nil without Config.MetricsListen.
	metrics  net.Listener
	registry *prometheus.Registry
	// words belongs to follow.
	words vocabularies
	ward  *ward
	// refused are the reports of replicas that the engine is not told of.
	refused atomic.Pointer[[]cluster.ReplicaReport]
	// changed has room for one value: wake sends without blocking, report receives.
	changed chan struct{}
	// draining says that Run was told to end.
	draining atomic.Bool
	// ready is closed when every replica that is placed here serves for the first time.
	ready chan struct{}
	// opened are closed in reverse order if New fails.
	opened []func() error
}

// New opens the ports, so that what is wrong with them is an error here. It connects
// nothing and loads nothing; call Run, or Close if there is no Run.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, words: vocabularies{}, registry: prometheus.NewRegistry(), changed: make(chan struct{}, 1), ready: make(chan struct{})}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	n.ward = newWard(n.registry, cfg.GPUs)
	port, err := n.openPorts()
	if err != nil {
		return nil, err
	}
	if n.cluster = cfg.Cluster; n.cluster == nil {
		l, err := n.join()
		if err != nil {
			return nil, err
		}
		n.cluster = l
		n.opened = append(n.opened, l.Close)
	}
	n.name = n.cluster.Credentials().Name().Node
	n.recallFaults()
	n.mux, err = alpn.New(port, alpn.Config{TLS: n.cluster.Credentials().Server(identity.ProtocolHTTP), Log: cfg.Log}, identity.ProtocolHTTP)
	if err != nil {
		return nil, err
	}
	n.net = newNetwork(n.cluster.View(), n.cluster.Credentials(), cfg.Dial, cfg.Log)
	if n.front, err = h2.NewServer(h2.Config{Log: cfg.Log}, n.net); err != nil {
		return nil, err
	}
	own := cfg.Engine
	own.Models, own.Deployments, own.GPUs = nil, nil, nil
	own.Network, own.Notify, own.Metrics, own.Logger, own.DrainTimeout = n.net, n.wake, n.registry, cfg.Log, cfg.DrainTimeout
	own.Watched, own.Quarantine = watched(cfg.GPUs), n.condemned
	if n.engine, err = engine.Load(own); err != nil {
		return nil, err
	}
	n.opened = append(n.opened, n.engine.Close)
	n.net.traces = trace.Handler(n.engine.Trace)
	return n, nil
}

// joined is a link.Link as Cluster.
type joined struct{ *link.Link }

// Propose implements Cluster.
func (j joined) Propose(ctx context.Context, c cluster.Command) (uint64, error) {
	return j.Client().Propose(ctx, c)
}

// Index implements Cluster.
func (j joined) Index(ctx context.Context) (uint64, error) { return j.Client().Index(ctx) }

// Measure implements Cluster.
func (j joined) Measure(ctx context.Context, m cluster.Measures) error {
	return j.Client().Measure(ctx, m)
}

// join makes the node's link to its cluster.
func (n *Node) join() (joined, error) {
	l, err := link.New(link.Config{
		Dir: n.cfg.Dir, Saved: n.cfg.Saved, Contacts: n.cfg.Contacts, Gossip: n.cfg.Gossip,
		Self:    cluster.Node{Addr: n.addr, Build: n.cfg.Build, GPUs: n.cfg.GPUs, Pins: n.cfg.Pins},
		Serving: n.reports, Loads: n.loads, Dial: n.cfg.Dial, Log: n.cfg.Log,
	})
	return joined{l}, err
}

// openPorts opens the cluster port and that of the metrics.
func (n *Node) openPorts() (net.Listener, error) {
	port, err := n.cfg.listen("tcp", n.cfg.Listen)
	if err != nil {
		return nil, listen.Failed(listen.Cluster, n.cfg.Listen, err)
	}
	n.opened = append(n.opened, port.Close)
	contact := ""
	if known := slices.Clone(n.cfg.Contacts); len(known) > 0 {
		contact = known[0]
	} else if n.cfg.Saved != nil && len(n.cfg.Saved.Control) > 0 {
		contact = n.cfg.Saved.Control[0]
	}
	if n.addr, err = link.Advertised(n.cfg.Advertise, port.Addr(), contact); err != nil {
		return nil, err
	}
	if n.cfg.MetricsListen != "" {
		if n.metrics, err = listen.TCP(listen.Metrics, n.cfg.MetricsListen); err != nil {
			return nil, err
		}
		n.opened = append(n.opened, n.metrics.Close)
	}
	return port, nil
}

// Close releases a Node that was not run.
func (n *Node) Close() error {
	var errs []error
	for i := len(n.opened) - 1; i >= 0; i-- {
		if err := n.opened[i](); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	n.opened = nil
	return errors.Join(errs...)
}

// Addr is where others reach the cluster port.
func (n *Node) Addr() string { return n.addr }

// MetricsAddr is the address of /metrics, nil if it is not served.
func (n *Node) MetricsAddr() net.Addr {
	if n.metrics == nil {
		return nil
	}
	return n.metrics.Addr()
}

// State is the newest state that the node knows.
func (n *Node) State() *state.State { return n.cluster.View().State() }

// Ready is closed when the node serves all that is placed on it, for the first time.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// loads are the heartbeat's; the gossip gets their sum.
func (n *Node) loads() map[string]cluster.Load {
	if n.engine == nil {
		return nil
	}
	out := n.engine.Loads()
	if l, ok := n.cluster.(joined); ok && l.Gossip() != nil {
		var sum cluster.Load
		for _, load := range out {
			sum.Live, sum.Waiting, sum.KV = sum.Live+load.Live, sum.Waiting+load.Waiting, max(sum.KV, load.KV)
		}
		l.Gossip().Tell(sum)
	}
	return out
}

// Run serves until ctx ends, then drains, and has released everything when it returns.
// It returns nil after a drain, link.ErrRemoved if the node was removed, or why it
// cannot go on.
//
// Stop order: the cluster hears of the drain, so that nothing new comes; the replicas end
// what they have or let it go, for which they need each other; then the engine ends, and
// with it the links; then the port closes, and the node leaves.
func (n *Node) Run(ctx context.Context) error {
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBack()
	front, stopFront := context.WithCancelCause(ctx)
	defer stopFront(nil)
	working, stopWork := context.WithCancel(back)
	defer stopWork()

	loops := pool.New().WithContext(back).WithCancelOnError().WithFirstError()
	for _, loop := range []func(context.Context) error{
		n.cluster.Run, n.follow, n.report, n.tellFaults, n.measure, n.awaitReady, n.mux.Serve, n.net.watchRemoved, n.serveMetrics,
		func(ctx context.Context) error { return n.front.Serve(ctx, n.mux.Listener(identity.ProtocolHTTP)) },
	} {
		loops.Go(func(ctx context.Context) error {
			err := loop(ctx)
			stopFront(err) // a loop that ends by itself leaves nothing to serve
			return err
		})
	}
	work := pool.New().WithErrors()
	work.Go(func() error {
		err := n.engine.Run(working)
		stopFront(err)
		return err
	})
	<-front.Done()
	if ctx.Err() != nil {
		n.drain(back)
	}
	stopWork()
	err := work.Wait()
	n.lastWords(back)
	stopBack()
	if lerr := loops.Wait(); lerr != nil && !errors.Is(lerr, context.Canceled) {
		err = errors.Join(err, lerr)
	}
	return err
}

// drain lets the replicas end. It returns when they have, or when something else ends the node.
func (n *Node) drain(ctx context.Context) {
	n.draining.Store(true)
	n.cfg.Log.Info("draining", "node", n.name, "within", n.cfg.DrainTimeout)
	told := pool.New()
	defer told.Wait()
	told.Go(func() { n.cluster.Drain(ctx) })
	n.engine.Drain()
	select {
	case <-n.engine.Drained():
	case <-ctx.Done():
	}
}

// awaitReady closes ready when every replica that is placed here serves.
func (n *Node) awaitReady(ctx context.Context) error {
	// Without control nodes the state does not change when a replica does.
	ticker := time.NewTicker(readyEvery)
	defer ticker.Stop()
	for {
		changed := n.cluster.View().Changed()
		if n.unready() == "" {
			close(n.ready)
			<-ctx.Done()
			return context.Cause(ctx)
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// readyEvery is how often a node that is not ready looks at its replicas.
const readyEvery = 200 * time.Millisecond
