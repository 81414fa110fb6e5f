package gatewaynode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/gateway/quota"
	"github.com/tokenrouter/tokenrouter/internal/alpn"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/listen"
	"github.com/tokenrouter/tokenrouter/internal/plainhttp"
	"github.com/tokenrouter/tokenrouter/internal/vllmnames"
)

// Node is a gateway's process: built by New, run by Run.
type Node struct {
	cfg     Config
	link    *link.Link
	gateway *gateway.Gateway
	keys    *keys
	public  net.Listener
	// secured has the connections of public if they are TLS, else it is nil.
	secured *alpn.Mux
	// metrics is nil if they have no port of their own.
	metrics  net.Listener
	registry *prometheus.Registry

	// progress is how far what is served has come.
	progress *progress
	// entries and facts belong to the loop that follows the state.
	entries *entries
	facts   facts

	// serving says that some deployment has an entry; ready is closed when that is so for
	// the first time.
	serving atomic.Bool
	ready   chan struct{}
	// leader is whom the last heartbeat was answered by; newLeader has capacity 1.
	leader    atomic.Pointer[string]
	newLeader chan struct{}
	// opened are closed in reverse order if New fails.
	opened []func() error
}

var (
	errNoState   = errors.New("the cluster's state is not known yet")
	errDraining  = errors.New("an operator drains the gateway")
	errNoEntries = errors.New("no deployment has a replica that serves")
)

// New opens the ports, so that what is wrong with them is an error here. It connects
// nothing; call Run, or Close if there is no Run.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, facts: facts{}, progress: newProgress(), ready: make(chan struct{}), newLeader: make(chan struct{}, 1), registry: prometheus.NewRegistry()}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	n.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	address, err := n.openPorts()
	if err != nil {
		return nil, err
	}
	n.link, err = link.New(link.Config{
		Dir: cfg.Dir, Saved: cfg.Saved, Contacts: cfg.Contacts, Gossip: cfg.Gossip,
		// Nobody calls a gateway but its clients.
		Self:  cluster.Node{Addr: address, Public: address, Build: cfg.Build},
		Heard: n.heard, Dial: cfg.Dial, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	n.opened = append(n.opened, n.link.Close)
	n.entries = newEntries(n.link.Credentials(), cfg.Dial, cfg.Log)
	n.keys = &keys{pepper: cfg.Saved.Pepper, book: quota.NewBook(quota.Config{
		Gateway: cfg.Saved.Node, Lessor: lessor{n.link.Client()}, Gateways: func() int { return gateways(n.link.View().State()) },
	})}
	n.gateway, err = gateway.New(gateway.Config{
		MaxInFlight: cfg.MaxInFlight, AllowOrigins: cfg.AllowOrigins, AllowHosts: cfg.AllowHosts,
		Keys: n.keys, Source: source{n.link.Client(), n.progress}, Ready: n.isReady, Metrics: n.registry, ServeMetrics: n.metrics == nil && loopback(n.public.Addr()),
		DrainTimeout: max(cfg.DrainTimeout, 1), // 0 would mean the gateway's default
		Logger:       cfg.Log, Version: cfg.Build,
	})
	if err != nil {
		return nil, err
	}
	return n, n.registry.Register(n.viewAge())
}

// openPorts opens the public port and that of the metrics, and returns what the cluster
// is told of the first.
func (n *Node) openPorts() (address string, err error) {
	l, err := listen.TCP(listen.Public, n.cfg.Listen)
	if err != nil {
		return "", err
	}
	n.opened = append(n.opened, l.Close)
	n.public = l
	if n.cfg.TLSCert != "" {
		c, err := newCertificate(n.cfg.TLSCert, n.cfg.TLSKey, n.cfg.Log)
		if err != nil {
			return "", err
		}
		if n.secured, err = c.secure(l); err != nil {
			return "", err
		}
	}
	contact := ""
	if known := slices.Concat(n.cfg.Contacts, n.cfg.Saved.Control); len(known) > 0 {
		contact = known[0]
	}
	if address, err = link.Advertised(n.cfg.Advertise, l.Addr(), contact); err != nil {
		return "", err
	}
	if n.cfg.MetricsListen != "" {
		if n.metrics, err = listen.TCP(listen.Metrics, n.cfg.MetricsListen); err != nil {
			return "", err
		}
		n.opened = append(n.opened, n.metrics.Close)
	}
	return address, nil
}

// loopback says that only this machine reaches the address. Elsewhere the public port
// has no metrics: they name models and tell how much they are used.
func loopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// viewAge tells how old the state is that the gateway serves by.
func (n *Node) viewAge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "trctl", Subsystem: "gateway", Name: "placement_age_seconds",
		Help: "Time since a control node with a leader has confirmed the state that is served by; -1 for never.",
	}, func() float64 {
		age, ok := n.link.View().Age()
		if !ok {
			return -1
		}
		return age.Seconds()
	})
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

// Addr is the public port's address.
func (n *Node) Addr() net.Addr { return n.public.Addr() }

// MetricsAddr is the address of /metrics, nil if it has no port of its own.
func (n *Node) MetricsAddr() net.Addr {
	if n.metrics == nil {
		return nil
	}
	return n.metrics.Addr()
}

// Ready is closed once some deployment has an entry.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// isReady is what /readyz asks.
func (n *Node) isReady() error {
	s := n.link.View().State()
	if _, exists := s.Cluster(); !exists {
		return errNoState
	}
	if own, ok := s.Node(n.cfg.Saved.Node); ok && own.Draining {
		return errDraining // so that load balancers send it nothing new
	}
	if !n.serving.Load() {
		return errNoEntries
	}
	return nil
}

// Run serves until ctx ends, then drains, and has released everything when it returns.
// It returns nil after a drain, link.ErrRemoved if the node was removed, link.ErrElsewhere
// if another process has started as the node, or why it cannot go on.
//
// Stop order: the gateway refuses new requests and waits for those in flight, which
// need the connections to the workers; then those close, and the node leaves.
func (n *Node) Run(ctx context.Context) error {
	back, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBack()
	front, stopFront := context.WithCancelCause(ctx)
	defer stopFront(nil)
	loops := pool.New().WithContext(back).WithCancelOnError().WithFirstError()
	for _, loop := range []func(context.Context) error{n.link.Run, n.follow, n.lease, n.serveMetrics, n.handshakes} {
		loops.Go(func(ctx context.Context) error {
			err := loop(ctx)
			stopFront(err) // a loop that ends by itself leaves nothing to serve
			return err
		})
	}
	loops.Go(func(back context.Context) error {
		select {
		case <-front.Done():
			// A node that has been removed, or runs elsewhere, has nothing to say.
			if ctx.Err() != nil {
				n.link.Drain(context.WithoutCancel(back))
			}
		case <-back.Done():
		}
		return nil
	})
	err := n.gateway.Run(front, n.listeners()...)
	n.leave(back)
	stopBack()
	if lerr := loops.Wait(); lerr != nil && !errors.Is(lerr, context.Canceled) {
		err = errors.Join(err, lerr)
	}
	n.entries.close()
	return err
}

// listeners are where clients come from.
func (n *Node) listeners() []net.Listener {
	if n.secured == nil {
		return []net.Listener{n.public}
	}
	var out []net.Listener
	for _, p := range protocols() {
		out = append(out, n.secured.Listener(p))
	}
	return out
}

// handshakes accepts on the public port until ctx ends, if that is TLS.
func (n *Node) handshakes(ctx context.Context) error {
	if n.secured == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	if err := n.secured.Serve(ctx); err != nil && ctx.Err() == nil {
		return fmt.Errorf("public port: %w", err)
	}
	return context.Cause(ctx)
}

// doubtAfter is how long a gateway hears of no leader before it takes what it knows of the
// workers for doubtful, doubtEvery how often it looks.
const doubtAfter, doubtEvery = 3 * time.Second, 500 * time.Millisecond

// doubts says that nobody has told for a while how the workers are. began is when the
// gateway began to ask.
func (n *Node) doubts(began time.Time) bool {
	age, ever := n.link.View().Age()
	if !ever {
		age = time.Since(began)
	}
	return age > doubtAfter
}

// follow makes every new state what is served, until ctx ends, and lets the gossip say
// how busy workers are.
func (n *Node) follow(ctx context.Context) error {
	var seen *state.State
	began, doubted := time.Now(), false
	ticker := time.NewTicker(doubtEvery)
	defer ticker.Stop()
	for {
		changed := n.link.View().Changed()
		var gossip <-chan struct{} // never, without gossip
		if g := n.link.Gossip(); g != nil {
			gossip = g.Changed()
		}
		if s, doubt := n.link.View().State(), n.doubts(began); s.Index > 0 && (s != seen || doubt != doubted) {
			if doubt != doubted {
				n.cfg.Log.Info("what is known of the workers is in doubt, as long as no control node with a leader is heard", "doubt", doubt)
			}
			seen, doubted = s, doubt
			n.apply(s, doubt)
		}
		if g := n.link.Gossip(); g != nil {
			n.entries.hear(g.Members())
		}
		select {
		case <-changed:
		case <-gossip:
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (n *Node) apply(s *state.State, doubt bool) {
	defer n.progress.note(s.Index) // an error of what follows is not mended by waiting
	n.keys.follow(s)
	list, some := n.serve(s, doubt)
	if err := n.gateway.Apply(list); err != nil {
		// The state's own checks let it through; the last table stays.
		n.cfg.Log.Error("deployments not applied", "err", err)
		return
	}
	n.entries.sweep(s)
	if was := n.serving.Swap(some); was != some {
		n.cfg.Log.Info("readiness changed", "ready", some)
	}
	if !some {
		return
	}
	select {
	case <-n.ready:
	default:
		close(n.ready)
	}
}

// serveMetrics serves /metrics until ctx ends, if they have a port of their own.
func (n *Node) serveMetrics(ctx context.Context) error {
	if n.metrics == nil {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.registry, promhttp.HandlerOpts{}))
	mux.Handle("GET "+vllmnames.Path, vllmnames.Handler(n.registry))
	if err := plainhttp.Serve(ctx, n.metrics, mux); err != nil && ctx.Err() == nil {
		return fmt.Errorf("metrics: %w", err)
	}
	return context.Cause(ctx)
}
