package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
	"github.com/tokenrouter/tokenrouter/internal/wholefile"
)

type clusterRemoveCmd struct {
	operatorFlags
	Node  string `arg:"" help:"Name of the node."`
	Force bool   `env:"-" help:"Remove it even if it serves, or if the control nodes lose their majority for a while."`
}

// errServes says that a node does what the cluster cannot do without.
var errServes = errors.New("the node is needed")

// Run removes a node for good: its certificates are refused from then on.
func (r *clusterRemoveCmd) Run(ctx context.Context, p process) error {
	return r.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		s, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		n, ok := s.Node(r.Node)
		if !ok {
			return fmt.Errorf("node %q %w", r.Node, state.ErrNotFound)
		}
		if !r.Force {
			if err := mayRemove(ctx, c, s, &n); err != nil {
				return err
			}
		}
		body := cluster.RemoveNode{Name: r.Node, Role: n.Role}
		if _, err := c.Propose(ctx, cluster.KindRemoveNode, link.NewRequest("remove"), body); err != nil {
			return err
		}
		_, err = fmt.Fprintf(p.out, "node %s is removed; its certificates are refused.\n", r.Node)
		return err
	})
}

// mayRemove says why a node should not be removed as it is.
func mayRemove(ctx context.Context, c *operator.Client, s *state.State, n *cluster.Node) error {
	switch {
	case n.Lost:
		return nil
	case n.Role == cluster.Worker && !n.Draining:
		for _, replica := range s.AllReplicas() {
			if replica.Node == n.ID && replica.Phase == cluster.Ready {
				return fmt.Errorf("%w: it serves %s; `trctl drain %s --wait` first, or give --force", errServes, replica.Model, n.ID)
			}
		}
	case n.Role == cluster.Control:
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		left, live := 0, 0
		for _, server := range status.Servers {
			if !server.Voter || server.Node == n.ID {
				continue
			}
			left++
			if other, ok := s.Node(server.Node); ok && !other.Lost {
				live++
			}
		}
		if left == 0 {
			return fmt.Errorf("%w: it is the only control node", errServes)
		}
		if live < left/2+1 {
			return fmt.Errorf("%w: without it %d of %d control nodes would run, which is no majority; start others first, or give --force", errServes, live, left)
		}
	}
	return nil
}

type clusterBackupCmd struct {
	operatorFlags
	File string `arg:"" help:"File to write, which only its owner can read; - for standard output."`
}

// Run writes a copy of the cluster's state. A file is there whole, or not at all.
func (b *clusterBackupCmd) Run(ctx context.Context, p process) error {
	if b.File != "-" {
		if err := checkOutput("FILE", b.File); err != nil {
			return err
		}
	}
	return b.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		text, err := c.Backup(ctx)
		if err != nil {
			return err
		}
		_, s, err := control.ParseBackup(text)
		if err != nil {
			return err
		}
		if b.File == "-" {
			_, err := p.out.Write(text)
			return err
		}
		if err := wholefile.Write(b.File, text, 0o600); err != nil {
			return &usageError{fmt.Errorf("backup: %w", err)}
		}
		_, err = fmt.Fprintf(p.out, "%s has the state at index %d: %s.\n", b.File, s.Index, contents(s))
		return err
	})
}

// contents counts what a state has.
func contents(s *state.State) string {
	known := &listing.Facts{State: s}
	text := ""
	for _, kind := range []listing.Kind{listing.Nodes, listing.Deployments, listing.Keys, listing.Tokens} {
		if t, err := known.List(kind, ""); err == nil {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%s %d", kind, len(t.Rows))
		}
	}
	return text
}

type clusterRestoreCmd struct {
	operatorFlags
	File string `arg:"" help:"Backup of this cluster; - for standard input."`
}

// Run replaces the cluster's state by a backup's.
func (r *clusterRestoreCmd) Run(ctx context.Context, p process) error {
	in := p.in
	if r.File != "-" {
		file, err := os.Open(r.File)
		if err != nil {
			return &usageError{fmt.Errorf("restore: %w", err)}
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, cluster.MaxBackup+1))
	if err != nil {
		return &usageError{fmt.Errorf("restore: %w", err)}
	}
	if len(text) > cluster.MaxBackup {
		return usagef("restore: the backup has more than %d bytes", int64(cluster.MaxBackup))
	}
	_, s, err := control.ParseBackup(text)
	if err != nil {
		return &usageError{fmt.Errorf("restore: %w", err)}
	}
	return r.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		if err := c.Restore(ctx, text); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "The state is that of the backup, made at index %d: %s. What was revoked since is good again.\n", s.Index, contents(s))
		return err
	})
}
