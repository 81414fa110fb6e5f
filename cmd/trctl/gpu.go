package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/controlnode"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type gpuCmd struct {
	List       gpuListCmd       `cmd:"" help:"List the GPUs of all workers, and those in quarantine."`
	Quarantine gpuQuarantineCmd `cmd:"" help:"Keep a GPU out of use, whatever worker it is in, until it is released. Workers do so themselves after faults that need a hand."`
	Release    gpuReleaseCmd    `cmd:"" help:"Let a GPU in quarantine be used again, once it was reset or replaced."`
}

type gpuListCmd struct {
	operatorFlags
	outputFlags
}

func (g *gpuListCmd) Run(ctx context.Context, p process) error {
	return g.list(ctx, p, &g.outputFlags, listing.GPUs, "")
}

type gpuQuarantineCmd struct {
	operatorFlags
	UUID   string `arg:"" help:"The GPU's UUID, as trctl get gpus shows it."`
	Reason string `env:"-" placeholder:"TEXT" help:"Why, for people."`
}

// Run keeps a GPU out of use. What runs there ends what it has, and is placed elsewhere.
func (g *gpuQuarantineCmd) Run(ctx context.Context, p process) error {
	if err := controlnode.CheckText("--reason", g.Reason); err != nil {
		return &usageError{err}
	}
	return g.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		gpu, err := findGPU(ctx, c, g.UUID)
		if err != nil {
			return err
		}
		if gpu.Nameless() {
			return fmt.Errorf("GPU %s: %w", g.UUID, errNoUUID)
		}
		held := gpu.Quarantine
		if held != nil && len(held.Spared) == 0 {
			_, err := fmt.Fprintf(p.out, "GPU %s is in quarantine already: %s.\n", g.UUID, held.Why)
			return err
		}
		q := cluster.Quarantine{GPU: g.UUID, Node: gpu.Node, Cause: cluster.CauseOperator, Reason: g.Reason}
		if _, err := c.Propose(ctx, cluster.KindQuarantine, link.NewRequest("quarantine"), q); err != nil {
			return err
		}
		if held != nil {
			_, err = fmt.Fprintf(p.out, "GPU %s is in quarantine for all workers now: %s.\n", g.UUID, held.Why)
			return err
		}
		_, err = fmt.Fprintf(p.out, "GPU %s of node %s is in quarantine: nothing uses it until `%s`.\n", g.UUID, gpu.Node, cluster.ReleaseCommand(g.UUID))
		return err
	})
}

// errNoUUID says that a GPU cannot be told from others when its worker has another name.
var errNoUUID = errors.New("its worker does not know its UUID, so it cannot be put into quarantine; end the worker, or start it with --gpus")

// errNoQuarantine says that there is nothing to lift.
var errNoQuarantine = errors.New("it is not in quarantine")

type gpuReleaseCmd struct {
	operatorFlags
	UUID string `arg:"" help:"The GPU's UUID, as trctl get gpus shows it."`
}

func (g *gpuReleaseCmd) Run(ctx context.Context, p process) error {
	return g.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		gpu, err := findGPU(ctx, c, g.UUID)
		if err != nil {
			return err
		}
		if gpu.Quarantine == nil {
			return fmt.Errorf("GPU %s of node %s: %w", g.UUID, gpu.Node, errNoQuarantine)
		}
		if _, err := c.Propose(ctx, cluster.KindReleaseGPU, link.NewRequest("release"), cluster.Name{Name: g.UUID}); err != nil {
			return err
		}
		if gpu.Gone {
			_, err = fmt.Fprintf(p.out, "GPU %s is out of quarantine; no worker has it now.\n", g.UUID)
			return err
		}
		_, err = fmt.Fprintf(p.out, "GPU %s of node %s may be used again.\n", g.UUID, gpu.Node)
		return err
	})
}

// findGPU looks a GPU up by its UUID.
func findGPU(ctx context.Context, c *operator.Client, uuid string) (listing.GPU, error) {
	known, err := facts(ctx, c)
	if err != nil {
		return listing.GPU{}, err
	}
	row, err := known.Find(listing.GPUs, uuid)
	if err != nil {
		return listing.GPU{}, fmt.Errorf("GPU %.128q %w; `trctl get gpus` has those that do", uuid, state.ErrNotFound)
	}
	gpu, ok := row.Object.(listing.GPU)
	if !ok {
		return gpu, fmt.Errorf("GPU %q is a %T", uuid, row.Object)
	}
	return gpu, nil
}
