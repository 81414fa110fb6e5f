package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

// getObjects is `trctl get KIND` for the things of a cluster.
type getObjects struct {
	operatorFlags
	outputFlags
	Name  string `arg:"" optional:"" help:"One alone."`
	Watch bool   `short:"w" help:"Go on until interrupted: each thing again when it has changed."`
}

type (
	getNodesCmd       struct{ getObjects }
	getWorkersCmd     struct{ getObjects }
	getGatewaysCmd    struct{ getObjects }
	getDeploymentsCmd struct{ getObjects }
	getPlacementsCmd  struct{ getObjects }
	getGPUsCmd        struct{ getObjects }
	getKeysCmd        struct{ getObjects }
	getTokensCmd      struct{ getObjects }
)

func (g *getNodesCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Nodes)
}

func (g *getWorkersCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Workers)
}

func (g *getGatewaysCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Gateways)
}

func (g *getDeploymentsCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Deployments)
}

func (g *getPlacementsCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Placements)
}

func (g *getGPUsCmd) Run(ctx context.Context, p process) error { return g.get(ctx, p, listing.GPUs) }

func (g *getKeysCmd) Run(ctx context.Context, p process) error { return g.get(ctx, p, listing.Keys) }

func (g *getTokensCmd) Run(ctx context.Context, p process) error {
	return g.get(ctx, p, listing.Tokens)
}

// get prints the things of a kind, once or again and again.
func (g *getObjects) get(ctx context.Context, p process, kind listing.Kind) error {
	if !g.Watch {
		return g.list(ctx, p, &g.outputFlags, kind, g.Name)
	}
	ctx, stop := untilSignal(ctx)
	defer stop()
	w := watcher{out: p.out, output: g.Output, kind: kind, name: g.Name}
	for {
		err := g.with(ctx, func(ctx context.Context, c *operator.Client) error {
			return c.Watch(ctx, func(s *state.State, leader string) error { return w.see(ctx, c, s, leader != "") })
		})
		switch {
		case ctx.Err() != nil:
			return nil // the way to end it
		case !w.begun || !errors.Is(err, operator.ErrUnreachable):
			return err
		}
		fmt.Fprintf(p.err, "trctl: %v; trying again\n", err)
		if !pause(ctx, time.Second) {
			return nil
		}
	}
}

// watcher prints what changes.
type watcher struct {
	out    io.Writer
	output string
	kind   listing.Kind
	name   string

	begun bool
	index uint64
	// shown are the rows that were printed last, by name.
	shown map[string]string
}

// see prints what has changed in a state since the last one.
func (w *watcher) see(ctx context.Context, c *operator.Client, s *state.State, led bool) error {
	if w.begun && s.Index == w.index {
		return nil
	}
	known := &listing.Facts{State: s, Now: time.Now()}
	if led {
		known.Loads, _ = c.Loads(ctx) // as good as none
	}
	t, err := known.List(w.kind, w.name)
	if err != nil && (!w.begun || !errors.Is(err, listing.ErrNotFound)) {
		return err
	}
	if err != nil {
		t.Rows = nil
	}
	rows, now := t.Rows, map[string]string{}
	t.Rows = nil
	for _, row := range rows {
		now[row.Name] = row.Lasting
		if !w.begun || w.shown[row.Name] != row.Lasting {
			t.Rows = append(t.Rows, row)
		}
	}
	first := !w.begun
	old := w.shown
	w.begun, w.index, w.shown = true, s.Index, now
	if err := w.print(&t, first); err != nil {
		return err
	}
	for name := range old {
		if _, still := now[name]; !still {
			if err := w.gone(name); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) print(t *listing.Table, first bool) error {
	switch w.output {
	case "json":
		for _, object := range t.Objects() {
			if err := json.NewEncoder(w.out).Encode(object); err != nil {
				return err
			}
		}
		return nil
	case "yaml":
		for _, object := range t.Objects() {
			text, err := listing.YAML(object)
			if err == nil {
				_, err = fmt.Fprintf(w.out, "---\n%s", text)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	if first {
		return t.Write(w.out, w.output == "wide")
	}
	return t.WriteRows(w.out, w.output == "wide")
}

// gone says that a thing is no more.
func (w *watcher) gone(name string) error {
	var err error
	switch w.output {
	case "json":
		err = json.NewEncoder(w.out).Encode(map[string]any{"name": name, "deleted": true})
	case "yaml":
		_, err = fmt.Fprintf(w.out, "---\nname: %s\ndeleted: true\n", name)
	default:
		_, err = fmt.Fprintf(w.out, "%s  (deleted)\n", name)
	}
	return err
}

type describeCmd struct {
	operatorFlags
	outputFlags
	Kind string `arg:"" help:"node, worker, gateway, gpu, deployment, placement, threshold, key or token."`
	Name string `arg:"" help:"Its name or id."`
}

// Run prints all that is known of one thing.
func (d *describeCmd) Run(ctx context.Context, p process) error {
	kind, err := listing.KindOf(d.Kind)
	if err != nil {
		return &usageError{err}
	}
	return d.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		known, err := facts(ctx, c)
		if err != nil {
			return err
		}
		about, err := known.Describe(kind, d.Name)
		if err != nil {
			return err
		}
		return d.write(p.out, about, func(w io.Writer, _ bool) error { return about.Write(w) })
	})
}

type deleteCmd struct {
	Deployment deleteDeploymentCmd `cmd:"" help:"Delete a deployment. Replicas that nothing else wants stop once they have ended what they have."`
}

type deleteDeploymentCmd struct {
	operatorFlags
	Name string `arg:"" help:"Its name."`
}

func (d *deleteDeploymentCmd) Run(ctx context.Context, p process) error {
	return d.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		if _, err := c.Propose(ctx, cluster.KindDeleteDeployment, link.NewRequest("delete"), cluster.Name{Name: d.Name}); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "deployment %s is deleted.\n", d.Name)
		return err
	})
}
