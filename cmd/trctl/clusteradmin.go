package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

type adminCmd struct {
	Create adminCreateCmd `cmd:"" help:"Make an operator's identity, by which commands reach the cluster from elsewhere."`
	List   adminListCmd   `cmd:"" help:"List the operators' identities, and until when they hold."`
	Join   adminJoinCmd   `cmd:"" help:"Get an operator's identity with a join token of the role admin."`
	Revoke adminRevokeCmd `cmd:"" help:"Have an operator's certificates refused from now on, for good."`
}

// adminFlags are of commands that make an operator's identity.
type adminFlags struct {
	Name string `env:"TRCTL_ADMIN_NAME" placeholder:"NAME" help:"Name of the operator, by which it can be revoked (admin, host and four digits)."`
	Dir  string `short:"d" env:"TRCTL_ADMIN_DIR" placeholder:"DIR" help:"Directory to write it to (where commands look for one)."`
}

// adminTokenLife is how long the token lives that create makes for itself.
const adminTokenLife = 5 * time.Minute

type adminCreateCmd struct {
	operatorFlags
	adminFlags
	Expires expiryTime `env:"TRCTL_ADMIN_EXPIRES" placeholder:"WHEN" help:"When the identity ends: a time from now such as 90d or 12h, or a date such as 2027-01-31 (never)."`
}

// Run has the cluster make a token, and uses it.
func (a *adminCreateCmd) Run(ctx context.Context, p process) error {
	dir, err := a.dir(&a.operatorFlags)
	if err != nil {
		return err
	}
	return a.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		token, _, err := c.CreateToken(ctx, operator.TokenRequest{Role: cluster.Admin, Life: adminTokenLife, Uses: 1, Comment: "cluster admin create", IdentityExpires: a.Expires.from(time.Now())})
		if err != nil {
			return err
		}
		s, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		return a.enter(ctx, p, dir, token.Reveal(), controlNodes(s))
	})
}

// controlNodes are the addresses of the control nodes, those that are heard first.
func controlNodes(s *state.State) (addrs []string) {
	for _, lost := range []bool{false, true} {
		for _, n := range s.AllNodes() {
			if n.Role == cluster.Control && n.Lost == lost {
				addrs = append(addrs, n.Addr)
			}
		}
	}
	return addrs
}

// dir is where the identity is to be written; there must be none yet.
func (a *adminFlags) dir(f *operatorFlags) (string, error) {
	if a.Name != "" {
		if err := identity.CheckNode(a.Name); err != nil {
			return "", usagef("--name: %w", err)
		}
	}
	dir := a.Dir
	if dir == "" {
		var err error
		if dir, err = f.identityDir(); err != nil {
			return "", err
		}
	}
	saved, err := identity.Load(dir)
	switch {
	case err == nil:
		return "", usagef("--dir: %s holds the identity of %s %s; remove it first, or choose another directory", dir, saved.Role, saved.Node)
	case !errors.Is(err, identity.ErrNoIdentity):
		return "", &usageError{err}
	}
	return dir, nil
}

// enter gets an identity at the first control node that answers, and tells of it.
func (a *adminFlags) enter(ctx context.Context, p process, dir, token string, addrs []string) error {
	unlock, err := takeDir(dir)
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, addr := range addrs {
		e := link.Entrance{Dir: dir, Role: cluster.Admin, Node: a.Name, Address: addr, Token: token, Build: buildinfo.Current().Version}
		saved, _, err := e.Enter(ctx)
		if err == nil {
			fmt.Fprintf(p.out, "%s has the identity of operator %s of cluster %s, for control nodes at %s.\n", dir, saved.Node, saved.Cluster, saved.Control[0])
			_, err = fmt.Fprintf(p.out, "Its certificate is renewed when commands use it. `trctl cluster admin revoke %s` has it refused.\n", saved.Node)
			return err
		}
		errs = append(errs, err)
	}
	return entranceError(errors.Join(errs...))
}

type adminListCmd struct {
	operatorFlags
	outputFlags
}

func (a *adminListCmd) Run(ctx context.Context, p process) error {
	return a.list(ctx, p, &a.outputFlags, listing.Operators, "")
}

type adminJoinCmd struct {
	Address string `arg:"" env:"TRCTL_JOIN" placeholder:"ADDR" help:"Cluster port of a control node, host:port."`
	joinFlags
	adminFlags
}

// Run uses a token that was made elsewhere.
func (a *adminJoinCmd) Run(ctx context.Context, p process) error {
	dir, err := a.dir(new(operatorFlags))
	if err != nil {
		return err
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	token, err := a.token(ctx, p, slog.New(slog.NewTextHandler(p.err, nil)))
	if err != nil {
		return err
	}
	return a.enter(ctx, p, dir, token, []string{a.Address})
}

type adminRevokeCmd struct {
	operatorFlags
	Name string `arg:"" help:"Name of the operator."`
}

func (a *adminRevokeCmd) Run(ctx context.Context, p process) error {
	if strings.HasPrefix(a.Name, "local-") {
		return usagef("%s is the operator behind a control node's own socket, who cannot be kept out of it", a.Name)
	}
	return a.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		body := cluster.RemoveNode{Name: a.Name, Role: cluster.Admin}
		if _, err := c.Propose(ctx, cluster.KindRemoveNode, link.NewRequest("revoke"), body); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "operator %s is revoked; its certificates are refused.\n", a.Name)
		return err
	})
}
