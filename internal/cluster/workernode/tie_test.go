package workernode

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// tie is a worker's Cluster.
type tie struct {
	town        *town
	view        *client.View
	credentials *identity.Credentials
	self        cluster.Node
	// kill ends Run with an error, so that the node does not drain.
	kill chan struct{}
	// told is how often the cluster was told of a GPU's fault.
	told atomic.Int32
	// mute says that it is told in vain, but for last words, which are short of time.
	mute atomic.Bool
	// deaf says that its answers are lost.
	deaf atomic.Bool
}

var errKilled = errors.New("killed by the test")

func (c *tie) View() *client.View                 { return c.view }
func (c *tie) Credentials() *identity.Credentials { return c.credentials }

func (c *tie) Propose(ctx context.Context, command cluster.Command) (uint64, error) {
	if command.Kind == cluster.KindQuarantine {
		c.told.Add(1)
		if _, last := ctx.Deadline(); !last && c.mute.Load() {
			return 0, client.ErrNoLeader
		}
	}
	index, err := c.town.propose(command)
	if command.Kind == cluster.KindQuarantine && c.deaf.Load() {
		return 0, client.ErrNoLeader
	}
	return index, err
}

func (c *tie) Index(context.Context) (uint64, error) {
	c.town.mu.Lock()
	defer c.town.mu.Unlock()
	if c.town.down {
		return 0, client.ErrNoLeader
	}
	return c.town.state.Index, nil
}

func (c *tie) Measure(_ context.Context, m cluster.Measures) error {
	c.town.mu.Lock()
	defer c.town.mu.Unlock()
	if err := m.Check(); err != nil {
		c.town.t.Errorf("measures: %v", err)
	}
	c.town.measured[m.Node] = m
	return nil
}

func (c *tie) Drain(context.Context) {
	yes := true
	command, err := cluster.NewCommand(cluster.KindNodeState, "", time.Now(), cluster.NodeState{ID: c.self.ID, Draining: &yes})
	if err == nil {
		_, _ = c.town.propose(command) // it drains all the same
	}
}

func (c *tie) Run(ctx context.Context) error {
	command, err := cluster.NewCommand(cluster.KindPutNode, "", time.Now(), c.self)
	if err != nil {
		return err
	}
	if _, err := c.town.propose(command); err != nil {
		return err
	}
	select {
	case <-c.kill:
		return errKilled
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
