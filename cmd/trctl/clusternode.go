package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	controlclient "github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/buildinfo"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// nodeOfCluster are the flags that all nodes of a cluster have.
type nodeOfCluster struct {
	Name     string  `env:"TRCTL_NODE" placeholder:"NODE" help:"Name of the node, unique in the cluster for ever (role, host and four digits)."`
	Data     string  `placeholder:"DIR" help:"Directory of the node's identity and data (/var/lib/trctl/ROLE, or trctl/ROLE in the user's data directory)."`
	LogLevel *string `placeholder:"LEVEL" help:"debug, info, warn or error (warn on a terminal, else info)."`
}

// joinFlags say how a node that has not joined yet gets its identity.
type joinFlags struct {
	Token     string `placeholder:"TOKEN" help:"Join token; better by the environment or a file, since others can see command lines."`
	TokenFile string `placeholder:"FILE" help:"File with the join token; - for standard input."`
}

// maxJoinToken bounds a file with a token, in bytes.
const maxJoinToken = 4 << 10

// token reads the join token; empty if there is none. One on the command line is
// warned of.
func (f *joinFlags) token(ctx context.Context, p process, log *slog.Logger) (string, error) {
	if f.Token != "" && f.TokenFile != "" {
		return "", usagef("--token and --token-file: one of them is enough")
	}
	if f.Token != "" {
		if f.Token != os.Getenv("TRCTL_TOKEN") {
			log.Warn("the token is on the command line, where others on this machine can read it; TRCTL_TOKEN and --token-file are safer")
		}
		return f.Token, nil
	}
	if f.TokenFile == "" {
		return "", nil
	}
	text, err := within(ctx, func() ([]byte, error) {
		in := p.in
		if f.TokenFile != "-" {
			file, err := os.Open(f.TokenFile)
			if err != nil {
				return nil, err
			}
			defer func() { _ = file.Close() }() // it was only read
			in = file
		}
		return io.ReadAll(io.LimitReader(in, maxJoinToken))
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return "", err
	case err != nil:
		return "", &usageError{fmt.Errorf("--token-file: %w", err)}
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", usagef("--token-file: it is empty")
	}
	return token, nil
}

// within waits for read, which may wait for somebody who types, until ctx ends. What
// still reads then ends with the process: nothing else ends a read of a terminal.
func within(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1) // sent to once
	pool.New().Go(func() {
		text, err := read()
		done <- result{text, err}
	})
	select {
	case r := <-done:
		return r.text, r.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dir is the node's directory.
func (f *nodeOfCluster) dir(role cluster.Role) (string, error) {
	if f.Data != "" {
		return f.Data, nil
	}
	return defaultData(string(role))
}

// defaultData is where a kind of node or operator keeps its files.
func defaultData(kind string) (string, error) {
	if dir := os.Getenv("TRCTL_DATA_HOME"); dir != "" {
		return filepath.Join(dir, kind), nil
	}
	if os.Getuid() == 0 {
		return filepath.Join("/var/lib/trctl", kind), nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); dir != "" {
		return filepath.Join(dir, "trctl", kind), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usagef("there is no home directory; give --data: %w", err)
	}
	return filepath.Join(home, ".local", "share", "trctl", kind), nil
}

// checkName reports a name that no node can have.
func (f *nodeOfCluster) checkName() error {
	if f.Name == "" {
		return nil
	}
	if err := identity.CheckNode(f.Name); err != nil {
		return usagef("--name: %w", err)
	}
	return nil
}

// logger is the process's log.
func (f *nodeOfCluster) logger(p process) (*slog.Logger, error) {
	var s settings
	if f.LogLevel != nil {
		if err := s.setLogLevel(*f.LogLevel); err != nil {
			return nil, usagef("--log-level: %w", err)
		}
	}
	return slog.New(slog.NewTextHandler(p.err, &slog.HandlerOptions{Level: s.logLevel(isTerminal(p.err))})), nil
}

// enter takes the node's directory and gives the node its identity, the saved one or a
// new one. unlock lets go of the directory.
func (f *nodeOfCluster) enter(ctx context.Context, p process, log *slog.Logger, role cluster.Role, address string, join *joinFlags) (dir string, saved *identity.Saved, unlock func(), err error) {
	if dir, err = f.dir(role); err != nil {
		return "", nil, nil, err
	}
	token, err := join.token(ctx, p, log)
	if err != nil {
		return "", nil, nil, err
	}
	e := link.Entrance{Dir: dir, Role: role, Node: f.Name, Address: address, Token: token, Build: buildinfo.Current().Version}
	if err := e.Check(); err != nil { // before the directory is made
		return "", nil, nil, entranceError(err)
	}
	if unlock, err = takeDir(dir); err != nil {
		return "", nil, nil, err
	}
	saved, joined, err := e.Enter(ctx)
	if err != nil {
		unlock()
		if ctx.Err() != nil {
			return "", nil, nil, context.Cause(ctx)
		}
		return "", nil, nil, entranceError(err)
	}
	if joined {
		log.Info("joined", "cluster", saved.Cluster, "node", saved.Node, "role", string(saved.Role), "data", dir)
	}
	return dir, saved, unlock, nil
}

// takeDir locks a node's directory.
func takeDir(dir string) (unlock func(), err error) {
	unlock, err = link.Lock(dir)
	if errors.Is(err, link.ErrDirTaken) || errors.Is(err, fs.ErrPermission) {
		return nil, &usageError{fmt.Errorf("%w; every node needs a directory of its own (--data)", err)}
	}
	return unlock, err
}

// entranceError tells faults of the user's from those of the cluster.
func entranceError(err error) error {
	switch {
	case errors.Is(err, link.ErrNotJoined):
		return &usageError{fmt.Errorf("%w (--join or TRCTL_JOIN; TRCTL_TOKEN or --token-file; `trctl cluster token create` makes a token)", err)}
	case errors.Is(err, link.ErrEntrance):
		return &usageError{err}
	case errors.Is(err, state.ErrExists), errors.Is(err, state.ErrInvalid):
		return clusterError(fmt.Errorf("%w (--name gives this node another one)", err))
	case errors.Is(err, controlclient.ErrUnreachable), errors.Is(err, state.ErrToken), errors.Is(err, identity.ErrPeer), errors.Is(err, controlclient.ErrTooMany), errors.Is(err, controlclient.ErrNoLeader):
		return clusterError(err)
	}
	return err
}

// runMember runs a node of a cluster until ctx ends, and calls then once the node is
// ready. dir is the node's.
func runMember(ctx context.Context, dir string, run func(context.Context) error, ready <-chan struct{}, then func(context.Context) error) error {
	group := pool.New().WithContext(ctx).WithCancelOnError().WithFirstError()
	group.Go(run)
	group.Go(func(ctx context.Context) error {
		select {
		case <-ready:
			return then(ctx)
		case <-ctx.Done():
			return nil
		}
	})
	return nodeEnd(ctx, group.Wait(), dir)
}

// nodeEnd is what a node's process ends with: a stop that was asked for is no error.
func nodeEnd(ctx context.Context, err error, dir string) error {
	switch {
	case errors.Is(err, link.ErrCertificate):
		return fmt.Errorf("%w; either the node was removed from the cluster: to join again, empty %s and use a new token; or the clocks differ", err, dir)
	case errors.Is(err, link.ErrRemoved):
		return fmt.Errorf("%w; to join again, empty %s and use a new token", err, dir)
	case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
		return nil
	}
	return err
}
