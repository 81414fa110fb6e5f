package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// operatorFlags say which control node an operator's command asks, and as whom.
type operatorFlags struct {
	Admin    string        `env:"TRCTL_ADMIN,TRCTL_ADMIN_SOCKET" placeholder:"WHERE" help:"Control node to ask: its Unix socket, or host:port of its cluster or admin port, for which an identity is needed (the socket of this user's control node, else where the identity says)."`
	Identity string        `env:"TRCTL_IDENTITY" placeholder:"DIR" help:"Directory of an admin's identity, as trctl cluster admin makes it (/var/lib/trctl/admin, or trctl/admin in the user's data directory)."`
	Timeout  time.Duration `default:"10s" placeholder:"D" help:"How long to wait for the cluster (${default})."`
}

// operate calls do with a client of the cluster. Its errors get their exit codes.
func (f *operatorFlags) operate(ctx context.Context, do func(context.Context, *operator.Client) error) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.with(ctx, do)
}

// with is operate without a bound on the time.
func (f *operatorFlags) with(ctx context.Context, do func(context.Context, *operator.Client) error) (err error) {
	c, err := f.client(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	err = do(ctx, c)
	var usage *usageError
	if err == nil || errors.As(err, &usage) {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: no answer within %s", operator.ErrUnreachable, f.Timeout)
	}
	return clusterError(err)
}

// client connects nothing yet, but for renewing an identity that is due.
func (f *operatorFlags) client(ctx context.Context) (*operator.Client, error) {
	if f.Timeout <= 0 {
		return nil, usagef("--timeout: is %s, must be more than 0s", f.Timeout)
	}
	dir, err := f.identityDir()
	if err != nil {
		return nil, err
	}
	switch where := f.Admin; {
	case where == noSocket:
		return nil, usagef("--admin: %s is for control nodes; say where one is", noSocket)
	case isAddress(where):
		if err := checkDial("--admin", where, "a control node"); err != nil {
			return nil, err
		}
		return remote(ctx, dir, []string{where})
	case where != "":
		return operator.OnSocket(where), nil
	}
	if !exists(defaultSocket()) {
		if saved, err := identity.Load(dir); err == nil {
			return remote(ctx, dir, saved.Control)
		}
	}
	return operator.OnSocket(defaultSocket()), nil
}

// hasIdentity says that there is an admin's identity.
func (f *operatorFlags) hasIdentity() bool {
	dir, err := f.identityDir()
	if err != nil {
		return false
	}
	_, err = identity.Load(dir)
	return err == nil
}

// exists says that something has a path.
func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func (f *operatorFlags) identityDir() (string, error) {
	if f.Identity != "" {
		return f.Identity, nil
	}
	return defaultData(string(cluster.Admin))
}

// remote is a client with the identity of a directory, which it renews if that is due.
func remote(ctx context.Context, dir string, addrs []string) (*operator.Client, error) {
	saved, err := identity.Load(dir)
	if err != nil {
		return nil, &usageError{fmt.Errorf("%w (--identity; `trctl cluster admin create` on a control node makes one)", err)}
	}
	if saved.Role != cluster.Admin {
		return nil, usagef("--identity: %s holds the identity of a %s, not of an admin", dir, saved.Role)
	}
	credentials, err := identity.NewCredentials(saved.Certificate, saved.Key, saved.CAs, nil)
	if err != nil {
		return nil, &usageError{fmt.Errorf("--identity: %s: %w", dir, err)}
	}
	if time.Now().After(credentials.Expires()) {
		return nil, usagef("--identity: the certificate in %s has expired at %s; `trctl cluster admin create` makes a new one", dir, credentials.Expires().Format(time.RFC3339))
	}
	c, err := operator.AtAny(addrs, credentials)
	if err != nil {
		return nil, clusterError(err)
	}
	if time.Now().After(credentials.Renew()) {
		// The old one is still good, so that this may fail.
		_ = renewAdmin(ctx, c, dir, saved)
	}
	return c, nil
}

// renewAdmin gets a new certificate for an admin's identity and saves it.
func renewAdmin(ctx context.Context, c *operator.Client, dir string, saved *identity.Saved) error {
	unlock, err := link.Lock(dir)
	if err != nil {
		return err
	}
	defer unlock()
	key, request, err := identity.NewKey()
	if err != nil {
		return err
	}
	answer, err := c.Renew(ctx, request)
	if err != nil {
		return err
	}
	next := *saved
	if next.Key, err = identity.EncodeKey(key); err != nil {
		return err
	}
	next.Certificate = []byte(answer.Certificate)
	next.CAs = nil
	for _, ca := range answer.CAs {
		next.CAs = append(next.CAs, []byte(ca))
	}
	if _, err := identity.NewCredentials(next.Certificate, next.Key, next.CAs, nil); err != nil {
		return err
	}
	return next.Save(dir)
}

// facts asks for all that a listing needs. Without a leader there are no loads.
func facts(ctx context.Context, c *operator.Client) (*listing.Facts, error) {
	s, led, err := c.State(ctx)
	if err != nil {
		return nil, err
	}
	f := &listing.Facts{State: s, Now: time.Now()}
	if led {
		f.Loads, _ = c.Loads(ctx) // a leader that is gone just now is as none
	}
	return f, nil
}

// outputFlags choose how a command prints what it got.
type outputFlags struct {
	Output string `short:"o" env:"TRCTL_GET_OUTPUT" enum:"text,wide,json,yaml" default:"text" help:"Output format: ${enum}."`
}

// write prints a value as JSON or YAML, or for people.
func (f *outputFlags) write(w io.Writer, v any, text func(io.Writer, bool) error) error {
	switch f.Output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		e.SetEscapeHTML(false)
		return e.Encode(v)
	case "yaml":
		out, err := listing.YAML(v)
		if err == nil {
			_, err = w.Write(out)
		}
		return err
	}
	return text(w, f.Output == "wide")
}

// list prints the things of a kind.
func (f *operatorFlags) list(ctx context.Context, p process, o *outputFlags, kind listing.Kind, name string) error {
	return f.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		known, err := facts(ctx, c)
		if err != nil {
			return err
		}
		t, err := known.List(kind, name)
		if err != nil {
			return err
		}
		return o.write(p.out, objects(&t, name), t.Write)
	})
}

// objects is a table's list of objects, or the one that was asked for.
func objects(t *listing.Table, name string) any {
	if name != "" && len(t.Rows) == 1 {
		return t.Rows[0].Object
	}
	return t.Objects()
}

// atLeast returns the state once it has an index.
func atLeast(ctx context.Context, c *operator.Client, index uint64) (*state.State, error) {
	var out *state.State
	err := c.Watch(ctx, func(s *state.State, _ string) error {
		if out = s; s.Index >= index {
			return errEnough
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return out, err
}

// errEnough ends a watch.
var errEnough = errors.New("enough")
