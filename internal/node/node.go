package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/gateway"
	"github.com/tokenrouter/tokenrouter/gateway/session"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/memconn"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// Node is one process: built by New, run by Run.
type Node struct {
	cfg        Config
	log        *slog.Logger
	net        *network
	models     []*loaded
	replicas   []*replica
	gateway    *gateway.Gateway
	transports []*h2.Transport
	listener   net.Listener
	ready      chan struct{}
}

// errNotReady is what /readyz says until the first token can be made.
var errNotReady = errors.New("the replicas are starting")

// New loads and checks everything and opens the public listener, so that a port
// in use is an error here. It starts nothing.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, log: cfg.Logger, net: newNetwork(), ready: make(chan struct{})}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.close())
		}
	}()
	for _, m := range cfg.Models {
		l, err := load(m)
		if err != nil {
			return nil, err
		}
		n.models = append(n.models, l)
	}
	if err := n.addReplicas(); err != nil {
		return nil, err
	}
	if n.gateway, err = n.newGateway(); err != nil {
		return nil, err
	}
	if cfg.Listen == "" {
		n.listener = memconn.Listen()
		return n, nil
	}
	if n.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return n, nil
}

// close gives back what New took.
func (n *Node) close() error {
	var errs []error
	for _, t := range n.transports {
		t.Close()
	}
	for _, m := range n.models {
		errs = append(errs, m.checkpoint.Close())
	}
	return errors.Join(errs...)
}

// Addr is the public listener's address.
func (n *Node) Addr() net.Addr { return n.listener.Addr() }

// Handler is the gateway's HTTP handler, for clients in the same process. It
// answers while Run runs.
func (n *Node) Handler() http.Handler { return n.gateway.Handler() }

// Ready is closed once the node serves.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// Deployments lists what clients can ask for, in order of the configuration,
// deployments first.
func (n *Node) Deployments() []Deployment {
	return slices.Concat(n.cfg.Deployments, n.alone())
}

// alone are the deployments of single models, under the models' own names.
func (n *Node) alone() []Deployment {
	var list []Deployment
	for _, m := range n.cfg.Models {
		taken := slices.ContainsFunc(n.cfg.Deployments, func(d Deployment) bool { return d.Name == m.Name })
		if !taken {
			list = append(list, Deployment{Name: m.Name, Models: []string{m.Name}, Policy: Policy{Name: "single"}})
		}
	}
	return list
}

func (n *Node) model(name string) *loaded {
	i := slices.IndexFunc(n.models, func(m *loaded) bool { return m.cfg.Name == name })
	return n.models[i] // Validate has seen that it is there
}

// names are the replicas of a model, in an order that all agree on.
func (m *loaded) names() []string {
	var list []string
	for i := range max(m.cfg.Replicas, 1) {
		list = append(list, fmt.Sprintf("%s-%d", m.cfg.Name, i))
	}
	return list
}

// addReplicas checks every deployment and gives each replica its part in it.
func (n *Node) addReplicas() error {
	for _, m := range n.models {
		for _, name := range m.names() {
			n.replicas = append(n.replicas, &replica{name: name, model: m, started: make(chan struct{})})
		}
	}
	for _, d := range n.Deployments() {
		set, err := policies.New(d.Policy.Name, len(d.Models), policies.Settings{Threshold: d.Policy.Threshold, Trace: d.Policy.Trace})
		if err != nil {
			return fmt.Errorf("deployment %s: %w", d.Name, err)
		}
		var group []*loaded
		var names [][]string
		for _, name := range d.Models {
			group = append(group, n.model(name))
			names = append(names, n.model(name).names())
		}
		if err := checkPair(d.Name, group); err != nil {
			return err
		}
		for i, m := range group {
			for _, r := range n.replicas {
				if r.model == m {
					r.join(subservice.Deployment{
						Name: d.Name, Self: policies.ModelID(i), Models: d.Models,
						Policy: set.For(policies.ModelID(i)), Replicas: names,
					}, n.models, group)
				}
			}
		}
	}
	return nil
}

// join adds a deployment to a replica, and the links it needs for it. Of two
// models the one that is configured first dials, so that a pair has one link.
func (r *replica) join(d subservice.Deployment, all, group []*loaded) {
	r.deployments = append(r.deployments, d)
	own := slices.Index(all, r.model)
	for _, other := range group {
		if slices.Index(all, other) <= own {
			continue
		}
		for _, name := range other.names() {
			if !slices.Contains(r.dials, name) {
				r.dials = append(r.dials, name)
			}
		}
	}
}

func (n *Node) newGateway() (*gateway.Gateway, error) {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(&collector{n.replicas})
	cfg := gateway.Config{
		Metrics: metrics, ServeMetrics: true, Logger: n.log, DrainTimeout: n.cfg.DrainTimeout,
		MaxInFlight: n.cfg.MaxQueue,
		Ready: func() error {
			select {
			case <-n.ready:
				return nil
			default:
				return errNotReady
			}
		},
	}
	entries := map[string]session.Entry{}
	for _, r := range n.replicas {
		transport, err := h2.NewTransport(h2.Config{Dial: n.net.dialer(r.name)})
		if err != nil {
			return nil, fmt.Errorf("link to %s: %w", r.name, err)
		}
		n.transports = append(n.transports, transport)
		entries[r.name] = session.NewEntryClient(r.name, transport, "http://"+r.name)
	}
	for _, d := range n.Deployments() {
		entry := n.model(d.Models[0])
		g := session.Deployment{
			Name: d.Name, Models: d.Models, Policy: d.Policy.Name,
			MaxContext: n.maxContext(entry), Vocab: entry.tokenizer.Size(), Defaults: defaults(entry),
		}
		for _, m := range d.Models {
			g.MaxContext = min(g.MaxContext, n.maxContext(n.model(m)))
		}
		for _, name := range entry.names() {
			g.Entries = append(g.Entries, entries[name])
		}
		cfg.Deployments = append(cfg.Deployments, g)
	}
	return gateway.New(cfg)
}

// defaults are the checkpoint's own sampling parameters; a checkpoint that
// names no temperature is greedy.
func defaults(m *loaded) session.Defaults {
	var d session.Defaults
	g := m.checkpoint.Generation
	if g.Temperature != nil {
		d.Temperature = *g.Temperature
	}
	if g.TopP != nil {
		d.TopP = *g.TopP
	}
	if g.TopK != nil {
		d.TopK = *g.TopK
	}
	return d
}

// Run serves until ctx ends, then drains. It returns when all has been released.
//
// Stop order: the gateway refuses new requests and waits for those in flight,
// which need every replica; then the replicas end, links first; then the
// weights are unmapped, which the replicas read until their last step.
func (n *Node) Run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, n.close()) }()
	replicas, stopReplicas := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReplicas()
	group := pool.New().WithContext(replicas).WithCancelOnError().WithFirstError()
	for _, r := range n.replicas {
		group.Go(func(ctx context.Context) error { return n.supervise(ctx, r) })
	}
	front := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	front.Go(func(ctx context.Context) error { return n.gateway.Run(ctx, n.listener) })
	front.Go(n.awaitStart)
	err = front.Wait()
	stopReplicas()
	return errors.Join(err, group.Wait())
}

// awaitStart closes Ready once every replica serves.
func (n *Node) awaitStart(ctx context.Context) error {
	began := time.Now()
	for _, r := range n.replicas {
		select {
		case <-r.started:
		case <-ctx.Done():
			return nil
		}
	}
	close(n.ready)
	n.log.Info("ready", "replicas", len(n.replicas), "after", time.Since(began))
	return nil
}
