package control_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// The index of the state grows also over a backup that is restored while others change the
// state: who has seen a change would else wait for what comes after it.
func TestIndexGrowsOverRestore(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	n := c.Leader()
	for i := range 8 {
		// So large that it takes a while to encode.
		c.Propose(n, cluster.KindPutDeployment, cluster.Deployment{Name: fmt.Sprint("large", i), Models: []string{strings.Repeat("x", 300<<10)}, Policy: "p"})
	}
	backup := c.Backup()
	ctx, stop := context.WithCancel(t.Context())
	work := pool.New().WithErrors()
	work.Go(func() error {
		for last := uint64(0); ctx.Err() == nil; {
			changed := n.View().Changed()
			now := n.State().Index
			if now < last {
				return fmt.Errorf("from index %d back to %d", last, now)
			}
			last = now
			select {
			case <-changed:
			case <-ctx.Done():
			}
		}
		return nil
	})
	for i := range 4 {
		work.Go(func() error {
			put := command(t, cluster.KindPutDeployment, deployment(fmt.Sprint("d", i)))
			for ctx.Err() == nil {
				if _, err := n.Propose(ctx, put); err != nil && !errors.Is(err, control.ErrNoLeader) {
					return err
				}
			}
			return nil
		})
	}
	for range 4 {
		c.Restore(backup)
	}
	stop()
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
}
