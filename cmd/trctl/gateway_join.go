package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"syscall"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/cluster/gatewaynode"
	"github.com/tokenrouter/tokenrouter/internal/listen"
)

type gatewayCmd struct {
	Join gatewayJoinCmd `cmd:"" help:"Run a gateway of a cluster: the public API in front of its workers."`
}

type gatewayJoinCmd struct {
	Join string `env:"TRCTL_JOIN" placeholder:"ADDR" help:"Cluster port of a control node, host:port. A node that has joined knows where they are."`
	joinFlags
	nodeOfCluster
	Listen        string        `default:":8000" placeholder:"ADDR" help:"Address of the public API, which wants an API key of everybody (${default})."`
	Advertise     string        `placeholder:"HOST[:PORT]" help:"What the cluster is told of that address (this machine's)."`
	TLSCert       string        `name:"tls-cert" env:"TRCTL_TLS_CERT" placeholder:"FILE" help:"Certificate of the public port, PEM, read again when it changes (plain HTTP)."`
	TLSKey        string        `name:"tls-key" env:"TRCTL_TLS_KEY" placeholder:"FILE" help:"Its key."`
	Gossip        string        `placeholder:"ADDR" help:"Gossip port, TCP and UDP, encrypted (:7946, or a free one if that is taken)."`
	MetricsListen string        `placeholder:"ADDR" help:"Address of /metrics (the public one while that is loopback, else none)."`
	MaxQueue      int           `default:"1024" placeholder:"N" help:"Most answers in flight (${default})."`
	AllowHosts    []string      `placeholder:"NAME" help:"Names, besides those of loopback, by which clients may call a gateway on loopback."`
	AllowOrigins  []string      `placeholder:"ORIGIN" help:"Origins whose web pages may use the API, such as https://chat.example.org; * allows all."`
	DrainTimeout  time.Duration `default:"30s" placeholder:"D" help:"How long requests in flight may take to end after a stop (${default})."`
}

// check reports flags that cannot be meant so.
func (g *gatewayJoinCmd) check() error {
	switch {
	case (g.TLSCert == "") != (g.TLSKey == ""):
		return usagef("--tls-cert and --tls-key: give both, or none")
	case g.DrainTimeout < 0:
		return usagef("--drain-timeout: is %s, must be at least 0s", g.DrainTimeout)
	case g.MaxQueue < 1:
		return usagef("--max-queue: is %d, must be at least 1", g.MaxQueue)
	case g.Listen == "":
		return usagef("--listen: it is empty; give an address such as :8000")
	}
	if g.TLSCert != "" {
		if _, err := tls.LoadX509KeyPair(g.TLSCert, g.TLSKey); err != nil {
			return usagef("--tls-cert, --tls-key: %w", err)
		}
	}
	return firstOf(g.checkName(), checkDial("--join", g.Join, "a control node"), checkListen("--listen", g.Listen), checkAdvertise(g.Advertise),
		checkListen("--gossip", g.Gossip), checkListen("--metrics-listen", g.MetricsListen), checkOrigins(g.AllowOrigins))
}

// Run joins a cluster, if that has not been done, and runs the gateway.
func (g *gatewayJoinCmd) Run(ctx context.Context, p process) error {
	log, err := g.logger(p)
	if err != nil {
		return err
	}
	if err := g.check(); err != nil {
		return err
	}
	dir, saved, unlock, err := g.enter(ctx, p, log, cluster.Gateway, g.Join, &g.joinFlags)
	if err != nil {
		return err
	}
	defer unlock()
	cfg := gatewaynode.Config{
		Dir: dir, Saved: saved, Listen: g.Listen, Advertise: g.Advertise, TLSCert: g.TLSCert, TLSKey: g.TLSKey,
		MetricsListen: g.MetricsListen, MaxInFlight: g.MaxQueue, AllowOrigins: g.AllowOrigins, AllowHosts: g.AllowHosts,
		DrainTimeout: g.DrainTimeout, Build: buildinfo.Current().Version, Log: log,
	}
	if g.Join != "" {
		cfg.Contacts = []string{g.Join}
	}
	var n *gatewaynode.Node
	cfg.Gossip, err = withGossip(g.Gossip, log, func(gossip string) (err error) {
		cfg.Gossip = gossip
		n, err = gatewaynode.New(cfg)
		return err
	})
	if err != nil {
		return startError(err)
	}
	if tcp, ok := n.Addr().(*net.TCPAddr); g.TLSCert == "" && ok && !tcp.IP.IsLoopback() {
		log.Warn("the public port speaks plain HTTP, and so shows API keys to the network; give --tls-cert, or put a proxy with TLS in front")
	}
	scheme := "http"
	if g.TLSCert != "" {
		scheme = "https"
	}
	fmt.Fprintf(p.out, "trctl %s runs gateway %s of cluster %s on %s://%s\n", buildinfo.Current().Version, saved.Node, saved.Cluster, scheme, reachable(n.Addr()))
	return runMember(ctx, dir, n.Run, n.Ready(), func(context.Context) error {
		fmt.Fprintln(p.out, "It serves. `trctl key create` on a control node makes API keys.")
		return nil
	})
}

// defaultGossip is the gossip port of who does not choose one.
const defaultGossip = ":7946"

// withGossip opens something on a gossip port. Unless it was chosen, a free one will do:
// nodes find each other by the state.
func withGossip(chosen string, log *slog.Logger, open func(addr string) error) (string, error) {
	if chosen != "" {
		return chosen, open(chosen)
	}
	err := open(defaultGossip)
	var failed *listen.Error
	if !errors.Is(err, syscall.EADDRINUSE) || !errors.As(err, &failed) || failed.Port != listen.Gossip {
		return defaultGossip, err
	}
	log.Info("the gossip port is taken; another one is used", "err", err)
	return ":0", open(":0")
}
