package controlnode

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/alpn"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/h2"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/listen"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
	"github.com/tokenrouter/tokenrouter/membership"
)

// Node is a control node's process: built by New, run by Run.
type Node struct {
	cfg         Config
	self        cluster.Node
	control     *control.Node
	credentials *identity.Credentials
	authority   *identity.Authority
	keeper      *link.Keeper
	mux         *alpn.Mux
	calls       *h2.Server
	gossip      *membership.Membership // nil without Config.Gossip
	ring        *link.Ring
	// refused tells of callers that are no operators.
	refused unwelcome.Log
	// metrics is nil without Config.MetricsListen.
	metrics net.Listener
	// founds says that the node is to begin its cluster.
	founds bool
	// ready is closed once the cluster has the node.
	ready chan struct{}
	// opened are closed in reverse order if New fails.
	opened []func() error
}

// New opens the ports and the log, so that what is wrong with them is an error here. It
// starts nothing; call Run, or Close if there is no Run.
func New(cfg Config) (_ *Node, err error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, ready: make(chan struct{})}
	if cfg.Admin != nil {
		n.opened = append(n.opened, cfg.Admin.Close)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	view := client.NewView()
	if n.credentials, err = identity.NewCredentials(cfg.Saved.Certificate, cfg.Saved.Key, cfg.Saved.CAs, view.Removed); err != nil {
		return nil, err
	}
	if n.authority, err = authorityOf(cfg.Saved); err != nil {
		return nil, err
	}
	if err := n.renewIfDue(); err != nil {
		return nil, err
	}
	n.keeper = link.NewKeeper(cfg.Dir, cfg.Saved, n.credentials, cfg.Log)
	if err := n.openPorts(view); err != nil {
		return nil, err
	}
	return n, n.openControl(view)
}

// authorityOf finds the CA that the node has the key of.
func authorityOf(saved *identity.Saved) (*identity.Authority, error) {
	err := fmt.Errorf("%w: there is no CA", identity.ErrPEM)
	for _, ca := range saved.CAs {
		var a *identity.Authority
		if a, err = identity.ParseAuthority(ca, saved.AuthorityKey); err == nil {
			return a, nil
		}
	}
	return nil, err
}

func (n *Node) openPorts(view *client.View) error {
	port, err := listen.TCP(listen.Cluster, n.cfg.Listen)
	if err != nil {
		return err
	}
	n.opened = append(n.opened, port.Close)
	n.mux, err = alpn.New(port, alpn.Config{
		TLS: n.credentials.Server(identity.ProtocolHTTP, identity.ProtocolRaft, identity.ProtocolJoin), Log: n.cfg.Log,
	}, identity.ProtocolHTTP, identity.ProtocolRaft, identity.ProtocolJoin)
	if err != nil {
		return err
	}
	peer := ""
	if contacts := n.contacts(); len(contacts) > 0 {
		peer = contacts[0]
	}
	n.self = cluster.Node{ID: n.cfg.Saved.Node, Build: n.cfg.Build}
	if n.self.Addr, err = link.Advertised(n.cfg.Advertise, port.Addr(), peer); err != nil {
		return err
	}
	if n.cfg.Gossip != "" {
		if n.gossip, err = link.OpenGossip(n.cfg.Saved, n.cfg.Gossip, n.self.Addr, view, n.cfg.Log); err != nil {
			return err
		}
		n.opened = append(n.opened, n.gossip.Close)
		n.self.Gossip = n.gossip.Addr()
	}
	if n.cfg.MetricsListen == "" {
		return nil
	}
	if n.metrics, err = listen.TCP(listen.Metrics, n.cfg.MetricsListen); err == nil {
		n.opened = append(n.opened, n.metrics.Close)
	}
	return err
}

// contacts are where other control nodes may be.
func (n *Node) contacts() []string { return slices.Concat(n.cfg.Contacts, n.cfg.Saved.Control) }

// openControl opens the log, and what serves calls from it.
func (n *Node) openControl(view *client.View) error {
	own, err := founding(n.cfg.Dir)
	if err != nil {
		return err
	}
	n.founds = own != nil
	cfg := control.Config{
		Self: n.self, Dir: filepath.Join(n.cfg.Dir, "raft"), Raft: n.mux.Listener(identity.ProtocolRaft),
		Credentials: n.credentials, Authority: n.authority, GossipKey: n.cfg.Saved.GossipKey, GossipGeneration: n.cfg.Saved.GossipGeneration, Pepper: n.cfg.Saved.Pepper,
		Bootstrap: own, Contacts: n.contacts(), View: view, Log: n.cfg.Log,
	}
	if n.gossip != nil {
		cfg.Dead = n.gossip.Dead
		cfg.Gossip = func() []uint64 { return n.ring.Held() }
	}
	if n.cfg.Change != nil {
		n.cfg.Change(&cfg)
	}
	if n.control, err = control.Open(cfg); err != nil {
		return err
	}
	n.opened = append(n.opened, n.control.Close)
	n.ring = link.NewRing(link.RingConfig{
		Saved: n.cfg.Saved, Gossip: n.gossip, Keep: n.keeper.KeepGossip, Log: n.cfg.Log,
		Fetch: func(_ context.Context, generation uint64) ([]byte, error) { return n.control.GossipKey(generation) },
	})
	n.calls, err = h2.NewServer(h2.Config{Log: n.cfg.Log}, n.handler())
	return err
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

// Addr is where other nodes reach the cluster port.
func (n *Node) Addr() string { return n.self.Addr }

// MetricsAddr is the address of /metrics, nil if it is not served.
func (n *Node) MetricsAddr() net.Addr {
	if n.metrics == nil {
		return nil
	}
	return n.metrics.Addr()
}

// Ready is closed once the cluster has the node.
func (n *Node) Ready() <-chan struct{} { return n.ready }

// State is the newest state that the node has.
func (n *Node) State() *state.State { return n.control.State() }

// Propose has a change made.
func (n *Node) Propose(ctx context.Context, c cluster.Command) (uint64, error) {
	return n.control.Propose(ctx, c)
}

// Run runs the node until ctx ends, and has released everything when it returns. It
// returns ctx's cause, link.ErrRemoved if the node was removed, or why it cannot go on.
func (n *Node) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ports, closePorts := context.WithCancel(context.WithoutCancel(ctx))
	defer closePorts()
	back := pool.New().WithErrors()
	for _, serve := range []func(context.Context) error{
		n.mux.Serve,
		func(ctx context.Context) error {
			return n.control.ServeJoins(ctx, n.mux.Listener(identity.ProtocolJoin))
		},
		func(ctx context.Context) error { return n.calls.Serve(ctx, n.mux.Listener(identity.ProtocolHTTP)) },
	} {
		back.Go(func() error {
			err := serve(ports)
			if ports.Err() != nil {
				return nil // the end that was asked for
			}
			stop(err) // a port that ends by itself leaves nothing to serve
			return err
		})
	}
	front := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	front.Go(n.control.Run)
	front.Go(n.serveAdmin)
	front.Go(n.serveMetrics)
	front.Go(n.renew)
	front.Go(n.begun)
	if n.gossip != nil {
		front.Go(n.gossip.Run)
	}
	front.Go(func(ctx context.Context) error { return n.keeper.Run(ctx, n.control.View()) })
	front.Go(func(ctx context.Context) error { return n.ring.Run(ctx, n.control.View()) })
	err := front.Wait()
	closePorts()
	return errors.Join(err, back.Wait())
}

// begun waits until the cluster has the node, and takes the mark away.
func (n *Node) begun(ctx context.Context) error {
	_, err := n.control.View().WaitFor(ctx, func(s *state.State) bool {
		_, exists := s.Cluster()
		own, ok := s.Node(n.self.ID)
		return exists && ok && own.Addr == n.self.Addr
	})
	if err != nil {
		return err
	}
	if n.founds {
		err := os.Remove(filepath.Join(n.cfg.Dir, foundingFile))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("founding: %w", err)
		}
	}
	close(n.ready)
	<-ctx.Done()
	return context.Cause(ctx)
}

// renewIfDue gives the node a new certificate if the present one is at two thirds of
// its life, or has ended while the node was down.
func (n *Node) renewIfDue() error {
	now := time.Now()
	if now.Before(n.credentials.Renew()) {
		return nil
	}
	s := *n.cfg.Saved
	var err error
	if s.Certificate, s.Key, err = issue(n.authority, n.credentials.Name(), now); err != nil {
		return err
	}
	if err := n.credentials.Replace(s.Certificate, s.Key, s.CAs); err != nil {
		return err
	}
	n.cfg.Saved = &s
	return s.Save(n.cfg.Dir)
}

// renewPause is how long to wait after a certificate could not be written.
const renewPause = time.Minute

// renew signs the node's own new certificates.
func (n *Node) renew(ctx context.Context) error {
	for pause := time.Duration(0); ; {
		timer := time.NewTimer(max(pause, time.Until(n.credentials.Renew())))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		pause = 0
		certificate, key, err := issue(n.authority, n.credentials.Name(), time.Now())
		if err == nil {
			err = n.keeper.Renew(certificate, key)
		}
		if err != nil {
			n.cfg.Log.Warn("certificate not renewed", "until", n.credentials.Expires(), "err", err)
			pause = renewPause
			continue
		}
		n.control.Renewed()
		n.cfg.Log.Info("certificate renewed", "until", n.credentials.Expires())
	}
}
