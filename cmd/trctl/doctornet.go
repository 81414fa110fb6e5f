package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/internal/cluster/checkup"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/doctor"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// networkFlags say which cluster doctor looks for.
type networkFlags struct {
	Join string `env:"TRCTL_JOIN" placeholder:"ADDR" help:"Look also whether this machine can join: cluster port of a control node, host:port."`
	joinFlags
	Identity string `env:"TRCTL_IDENTITY" placeholder:"DIR" help:"Directory of a node's or an operator's identity, whose cluster is looked for (that of a node of this machine, if there is one)."`
}

// nodePorts are the ports that nodes open unless they are told otherwise.
func nodePorts() []checkup.Port {
	return []checkup.Port{
		{Name: "cluster port of a control node or worker", Addr: ":7000"},
		{Name: "gossip", Addr: defaultGossip, UDP: true},
		{Name: "public API of a gateway", Addr: ":8000"},
	}
}

// check looks at the way to the cluster; at nothing if no cluster is known.
func (f *networkFlags) check(ctx context.Context, p process) ([]doctor.Check, error) {
	dir, saved, err := f.saved()
	if err != nil || saved == nil && f.Join == "" {
		return nil, err
	}
	var cfg checkup.Config
	runs := false
	if saved != nil {
		if cfg.Credentials, err = identity.NewCredentials(saved.Certificate, saved.Key, saved.CAs, nil); err != nil {
			return nil, &usageError{fmt.Errorf("--identity: %s: %w", dir, err)}
		}
		cfg.Control, cfg.GossipKey = saved.Control, saved.GossipKey
		unlock, err := link.Lock(dir)
		if runs = errors.Is(err, link.ErrDirTaken); err == nil {
			unlock()
		}
	}
	if !runs {
		cfg.Ports = nodePorts() // else they are that node's own
	}
	if f.Join != "" {
		if _, _, err := net.SplitHostPort(f.Join); err != nil {
			return nil, usagef("--join: %q must be host:port: %w", f.Join, err)
		}
		cfg.Control = []string{f.Join}
	}
	if cfg.Credentials == nil {
		text, err := f.token(ctx, p, slog.New(slog.NewTextHandler(p.err, nil)))
		if err != nil {
			return nil, err
		}
		if text != "" {
			token, err := identity.ParseJoinToken(text)
			if err != nil {
				return nil, &usageError{err}
			}
			cfg.Token = &token
		}
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	return checkup.Run(ctx, cfg), nil
}

// saved is the identity that was asked for, or one that is where nodes of this user keep
// theirs; nil if there is none.
func (f *networkFlags) saved() (dir string, saved *identity.Saved, err error) {
	if f.Identity != "" {
		if saved, err = identity.Load(f.Identity); err != nil {
			return "", nil, &usageError{fmt.Errorf("--identity: %w", err)}
		}
		return f.Identity, saved, nil
	}
	if f.Token != "" || f.TokenFile != "" {
		return "", nil, nil // who has a token wants to join
	}
	for _, role := range cluster.Roles() {
		dir, err := defaultData(string(role))
		if err != nil {
			return "", nil, nil // there is no home to have one in
		}
		if saved, err := identity.Load(dir); err == nil {
			return dir, saved, nil
		}
	}
	return "", nil, nil
}
