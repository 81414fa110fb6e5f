package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
	"github.com/tokenrouter/tokenrouter/internal/cluster/operator"
)

type rotateCmd struct {
	GossipKey rotateGossipCmd `cmd:"" name:"gossip-key" help:"Replace the key of the gossip on all nodes, in three steps of which each waits for all nodes that are there."`
}

type rotateGossipCmd struct {
	operatorFlags
	NoWait bool `env:"-" help:"Begin, and do not wait for the end."`
}

// rotateLook is how often the nodes are looked at during a rotation.
const rotateLook = 500 * time.Millisecond

// Run begins a rotation, or waits for the one that is under way. It may be interrupted,
// or end because it has waited for long enough: the cluster goes on by itself.
func (r *rotateGossipCmd) Run(ctx context.Context, p process) error {
	return r.operate(ctx, func(ctx context.Context, c *operator.Client) error {
		s, _, err := c.State(ctx)
		if err != nil {
			return err
		}
		own, _ := s.Cluster()
		if len(own.GossipRing()) == 1 {
			if _, err := c.Propose(ctx, cluster.KindRotateGossip, link.NewRequest("rotate"), cluster.RotateGossip{}); err != nil {
				return err
			}
		} else {
			fmt.Fprintln(p.out, "A rotation is under way.")
		}
		if r.NoWait {
			_, err := fmt.Fprintln(p.out, "The gossip's key is being replaced; the same command waits for the end.")
			return err
		}
		return r.follow(ctx, p, c)
	})
}

// follow tells of each step until the rotation has ended.
func (r *rotateGossipCmd) follow(ctx context.Context, p process, c *operator.Client) error {
	said := ""
	ticker := time.NewTicker(rotateLook)
	defer ticker.Stop()
	for {
		known, err := facts(ctx, c)
		if err != nil {
			return err
		}
		own, _ := known.State.Cluster()
		ring := own.GossipRing()
		if len(ring) == 1 {
			_, err := fmt.Fprintf(p.out, "All nodes use key %d alone.\n", ring[0])
			return err
		}
		step := fmt.Sprintf("key %d is given to all nodes", ring[1])
		if ring[0] > ring[1] {
			step = fmt.Sprintf("key %d is used by all nodes", ring[0])
		}
		if waits := behind(known.State, known.Loads, ring); len(waits) > 0 {
			step += "; waiting for " + strings.Join(waits, ", ")
		}
		if step != said {
			fmt.Fprintln(p.err, step)
			said = step
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// behind are the nodes that do not hold a ring yet.
func behind(s *state.State, loads map[string]cluster.NodeLoad, ring []uint64) (out []string) {
	for id, n := range s.AllNodes() {
		if !n.Lost && n.Gossip != "" && !slices.Equal(loads[id].Beat.Gossip, ring) {
			out = append(out, id)
		}
	}
	return out
}
