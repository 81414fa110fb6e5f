package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/listing"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type drainCmd struct {
	operatorFlags
	Node        string        `arg:"" help:"Name of the node."`
	Wait        bool          `help:"Wait until nothing is in flight there any more."`
	WaitTimeout time.Duration `default:"10m" placeholder:"D" help:"How long to wait (${default})."`
}

// Run keeps new work away from a node. A control node hands leadership over instead.
func (d *drainCmd) Run(ctx context.Context, p process) error {
	ctx, stop := untilSignal(ctx)
	defer stop()
	bound := d.Timeout
	if d.Wait {
		bound += d.WaitTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	return d.with(ctx, func(ctx context.Context, c *operator.Client) error {
		s, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		n, ok := s.Node(d.Node)
		switch {
		case !ok:
			return fmt.Errorf("node %q %w", d.Node, state.ErrNotFound)
		case n.Role == cluster.Control:
			return d.handOver(ctx, p, c)
		}
		index, err := setDraining(ctx, c, d.Node, true)
		if err != nil {
			return err
		}
		fmt.Fprintf(p.out, "node %s gets no new work.\n", d.Node)
		if !d.Wait {
			return nil
		}
		if err := awaitIdle(ctx, c, d.Node, index); err != nil {
			return err
		}
		fmt.Fprintf(p.out, "node %s is idle.\n", d.Node)
		return nil
	})
}

// handOver makes sure that a control node does not lead.
func (d *drainCmd) handOver(ctx context.Context, p process, c *operator.Client) error {
	status, err := c.Status(ctx)
	if err != nil {
		return err
	}
	if status.Leader != d.Node {
		fmt.Fprintf(p.out, "node %s is a control node and does not lead; it can be stopped.\n", d.Node)
		return nil
	}
	if voters, _ := listing.Voters(status.Servers); voters < 2 {
		return fmt.Errorf("%w: %s is the only control node that votes, so that it cannot hand leadership over", errServes, d.Node)
	}
	if err := c.Transfer(ctx, ""); err != nil {
		return err
	}
	fmt.Fprintf(p.out, "node %s has handed leadership over; it can be stopped.\n", d.Node)
	return nil
}

func setDraining(ctx context.Context, c *operator.Client, node string, on bool) (uint64, error) {
	return c.Propose(ctx, cluster.KindNodeState, link.NewRequest("drain"), cluster.NodeState{ID: node, Draining: &on})
}

// idlePause is the time between two looks at a draining node.
const idlePause = 250 * time.Millisecond

// errLost says that a node was lost while it was waited for.
var errLost = errors.New("the node was lost")

// awaitIdle waits until a node that knows the state at index says that it has nothing
// in flight.
func awaitIdle(ctx context.Context, c *operator.Client, node string, index uint64) error {
	for {
		s, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		n, ok := s.Node(node)
		if !ok {
			return nil // it was removed
		}
		if n.Lost {
			return fmt.Errorf("%w: %s", errLost, node)
		}
		loads, err := c.Loads(ctx)
		if err != nil {
			return err
		}
		if heard, ok := loads[node]; ok && heard.Beat.Index >= index && heard.Age < 2*time.Second {
			live := 0
			for _, l := range heard.Beat.Loads {
				live += l.Live + l.Waiting
			}
			if live == 0 {
				return nil
			}
		}
		if !pause(ctx, idlePause) {
			return context.Cause(ctx)
		}
	}
}

type undrainCmd struct {
	operatorFlags
	Node string `arg:"" help:"Name of the node."`
}

func (u *undrainCmd) Run(ctx context.Context, p process) error {
	return u.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		if _, err := setDraining(ctx, c, u.Node, false); err != nil {
			return err
		}
		_, err := fmt.Fprintf(p.out, "node %s gets work again.\n", u.Node)
		return err
	})
}
