package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/cluster/controlnode"
	"github.com/tokenrouter/tokenrouter/internal/identity"
	"github.com/tokenrouter/tokenrouter/internal/listen"
)

type clusterCmd struct {
	Init clusterInitCmd `cmd:"" help:"Run the first control node of a new cluster, and say how others join. Started again, it goes on with the cluster that it has."`
	Join clusterJoinCmd `cmd:"" help:"Run one more control node. It votes once it has caught up."`

	Status  clusterStatusCmd  `cmd:"" help:"Tell who leads, who votes, which nodes there are and how they are."`
	Remove  clusterRemoveCmd  `cmd:"" help:"Take a node out of the cluster, for good."`
	Backup  clusterBackupCmd  `cmd:"" help:"Write a copy of the cluster's state to a file."`
	Restore clusterRestoreCmd `cmd:"" help:"Replace the cluster's state by that of a backup."`
	Rotate  rotateCmd         `cmd:"" help:"Replace secrets of the cluster."`
	Admin   adminCmd          `cmd:"" help:"Operators' identities, for commands from elsewhere."`
	Token   tokenCmd          `cmd:"" help:"Join tokens, which let nodes into the cluster."`
}

// controlFlags are the ports of a control node.
type controlFlags struct {
	nodeOfCluster
	Listen        string `default:":7000" placeholder:"ADDR" help:"Cluster port: calls, consensus and joins, all by TLS 1.3 (${default})."`
	Advertise     string `placeholder:"HOST[:PORT]" help:"Where other nodes reach the cluster port (this machine's first address)."`
	Gossip        string `default:":7946" placeholder:"ADDR" help:"Gossip port, TCP and UDP, encrypted (${default})."`
	Admin         string `env:"TRCTL_ADMIN,TRCTL_ADMIN_SOCKET" placeholder:"WHERE" help:"Where operators' commands come in: a Unix socket, a loopback address such as 127.0.0.1:8001 for admins' certificates, or none (a socket in the user's runtime directory)."`
	MetricsListen string `placeholder:"ADDR" help:"Address of /metrics, /healthz and /readyz (none)."`
}

// check reports flags that cannot be meant so.
func (c *controlFlags) check() error {
	if c.Listen == "" {
		return usagef("--listen: it is empty; give an address such as :7000")
	}
	return firstOf(c.checkName(), checkListen("--listen", c.Listen), checkAdvertise(c.Advertise), checkListen("--gossip", c.Gossip),
		checkListen("--metrics-listen", c.MetricsListen), c.checkAdmin())
}

// checkAdmin reports a TCP address for operators' commands that is not of loopback.
func (c *controlFlags) checkAdmin() error {
	if c.Admin == noSocket || !isAddress(c.Admin) {
		return nil
	}
	if err := checkListen("--admin", c.Admin); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(c.Admin)
	if err != nil {
		return usagef("--admin: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usagef("--admin: %s is not of loopback; elsewhere admins' certificates open the cluster port", c.Admin)
	}
	return nil
}

type clusterInitCmd struct {
	controlFlags
	ClusterName string `default:"tokenrouter" placeholder:"NAME" help:"Name of the cluster, for people (${default})."`
	Quiet       bool   `short:"q" env:"TRCTL_INIT_QUIET" help:"Make and print no join tokens, such as where the output is kept as a log."`
	Output      string `short:"o" env:"TRCTL_INIT_OUTPUT" enum:"text,json" default:"text" help:"Output format: ${enum}. json is one object, for scripts."`
}

// checkClusterName reports a name that terminals cannot show.
func (c *clusterInitCmd) checkClusterName() error {
	if err := controlnode.CheckText("--cluster-name", c.ClusterName); err != nil {
		return &usageError{err}
	}
	return nil
}

// Run founds a cluster, if the directory has none, and runs its control node.
func (c *clusterInitCmd) Run(ctx context.Context, p process) error {
	log, err := c.logger(p)
	if err != nil {
		return err
	}
	if err := firstOf(c.check(), c.checkClusterName()); err != nil {
		return err
	}
	dir, err := c.dir(cluster.Control)
	if err != nil {
		return err
	}
	unlock, err := takeDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	saved, founded, err := controlnode.Found(dir, controlnode.Founding{Cluster: c.ClusterName, Node: c.Name}, time.Now())
	if err != nil {
		return entranceError(err)
	}
	return c.run(ctx, p, log, dir, saved, nil, func(ctx context.Context, n *controlnode.Node, admin string) error {
		var invitations []invitation
		if founded && !c.Quiet {
			if invitations, err = invite(ctx, n); err != nil {
				return err
			}
		}
		if c.Output == "json" {
			return writeBegun(p.out, n, saved, admin, founded, invitations)
		}
		c.announce(p.out, n, saved, admin)
		switch {
		case !founded:
			fmt.Fprintln(p.out, "It goes on with the cluster that it has. `trctl cluster token create --role ROLE` makes tokens for more nodes.")
		case c.Quiet:
			fmt.Fprintln(p.out, "`trctl cluster token create --role ROLE` makes tokens for more nodes.")
		default:
			writeInvitations(p.out, invitations)
		}
		return nil
	})
}

type clusterJoinCmd struct {
	Address string `arg:"" optional:"" env:"TRCTL_JOIN" placeholder:"ADDR" help:"Cluster port of a control node, host:port. A node that has joined needs it only if all others have moved."`
	joinFlags
	controlFlags
}

// Run joins a cluster, if that has not been done, and runs the control node.
func (c *clusterJoinCmd) Run(ctx context.Context, p process) error {
	log, err := c.logger(p)
	if err != nil {
		return err
	}
	if err := firstOf(checkDial("ADDR", c.Address, "a control node"), c.check()); err != nil {
		return err
	}
	dir, saved, unlock, err := c.enter(ctx, p, log, cluster.Control, c.Address, &c.joinFlags)
	if err != nil {
		return err
	}
	defer unlock()
	var contacts []string
	if c.Address != "" {
		contacts = []string{c.Address}
	}
	return c.run(ctx, p, log, dir, saved, contacts, func(_ context.Context, n *controlnode.Node, admin string) error {
		c.announce(p.out, n, saved, admin)
		return nil
	})
}

// run runs a control node until a signal; ready is called once the cluster has it.
func (c *controlFlags) run(ctx context.Context, p process, log *slog.Logger, dir string, saved *identity.Saved, contacts []string, ready func(context.Context, *controlnode.Node, string) error) error {
	admin, where, err := c.listenOperators(ctx, dir, log)
	if err != nil {
		return err
	}
	n, err := controlnode.New(controlnode.Config{
		Dir: dir, Saved: saved, Listen: c.Listen, Advertise: c.Advertise, Contacts: contacts, Gossip: c.Gossip,
		Admin: admin, MetricsListen: c.MetricsListen, Build: buildinfo.Current().Version, Log: log,
	})
	if err != nil {
		return startError(err)
	}
	return runMember(ctx, dir, n.Run, n.Ready(), func(ctx context.Context) error { return ready(ctx, n, where) })
}

// listenOperators opens where operators' commands come in. Nil means nowhere.
func (c *controlFlags) listenOperators(ctx context.Context, dir string, log *slog.Logger) (net.Listener, string, error) {
	switch where := c.Admin; {
	case where == noSocket:
		return nil, noSocket, nil
	case isAddress(where):
		l, err := listen.TCP(listen.Admin, where)
		if err != nil {
			return nil, "", startError(err)
		}
		return l, l.Addr().String(), nil
	case where != "":
		l, err := listenAdmin(ctx, where)
		return l, where, socketError("--admin", err)
	}
	l, err := listenAdmin(ctx, defaultSocket())
	if err == nil {
		return l, defaultSocket(), nil
	}
	own := filepath.Join(dir, "admin.sock")
	log.Info("the user's admin socket is taken; this node has one in its directory", "path", own, "err", err)
	l, err = listenAdmin(ctx, own)
	return l, own, err
}

// isAddress tells host:port from a path.
func isAddress(where string) bool {
	if filepath.Base(where) != where {
		return false
	}
	_, _, err := net.SplitHostPort(where)
	return err == nil
}

// announce prints what runs where.
func (c *controlFlags) announce(w io.Writer, n *controlnode.Node, saved *identity.Saved, admin string) {
	own, _ := n.State().Cluster()
	fmt.Fprintf(w, "trctl %s runs control node %s of cluster %s (%s)\n", buildinfo.Current().Version, saved.Node, own.Name, own.ID)
	fmt.Fprintf(w, "  other nodes reach it at %s, operators at %s\n", n.Addr(), admin)
}
