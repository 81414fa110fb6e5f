package control

import (
	"context"
	"fmt"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/tuner"
)

// serveMeasures takes what a worker's replicas have measured.
func (n *Node) serveMeasures(ctx context.Context, c *call) (any, error) {
	var m cluster.Measures
	if err := c.read(&m); err != nil {
		return nil, err
	}
	if m.Node != c.peer.Node && !c.hop {
		return nil, fmt.Errorf("%w: %s may not measure for %q", client.ErrForbidden, c.peer, m.Node)
	}
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("%w: %w", client.ErrBadRequest, err)
	}
	var out struct{}
	return out, n.onLeader(ctx, c, cluster.PathMeasures, m, &out, func() error {
		n.tuner.Note(time.Now(), m)
		return nil
	})
}

// tune solves thresholds as workers measure, until the reign ends.
func (n *Node) tune(ctx context.Context) {
	ticker := time.NewTicker(n.cfg.Tune)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, j := range n.tuner.Due(time.Now(), n.State()) {
			if err := n.retune(ctx, &j); err != nil && ctx.Err() == nil {
				n.log.Warn("thresholds", "deployment", j.Deployment, "err", err)
			}
		}
	}
}

// retune solves one deployment's thresholds, and has them replicated if they are better.
func (n *Node) retune(ctx context.Context, j *tuner.Job) error {
	began := time.Now()
	table, better, err := tuner.Solve(ctx, began.UTC().Round(0), j)
	if err != nil {
		return err
	}
	d, ok := n.State().Deployment(j.Deployment)
	stale := !ok || d.Version != j.Version // it is for what was
	better = better && !stale
	if better && ctx.Err() == nil {
		err = n.command(cluster.KindPutTable, "", table)
	}
	if stale || again(err) {
		n.tuner.Discard(j)
	}
	n.log.Info("thresholds solved", "deployment", j.Deployment, "live", j.Live, "best", table.B[j.Live-1], "swapped", better && err == nil,
		"after", time.Since(began))
	return err
}
