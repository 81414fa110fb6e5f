package control_test

import (
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
)

// Of two control nodes one that is removed stays until the other one has taken it out of the
// consensus, which may take a moment: without its voice there would be no leader any more.
func TestRemovedOfTwoStaysUntilItIsOut(t *testing.T) {
	t.Parallel()
	for range 5 {
		if removeOneOfTwo(t) {
			return
		}
	}
	t.Error("void: the leader was never held up; elections came between")
}

// removeOneOfTwo removes the leader of two nodes, and holds up its successor before that takes
// it out. False says that another one was held up, since leaders changed meanwhile.
//
// Open: mostly the successor asks who is dead only after it has taken the node out, and the hold
// comes too late to test anything. It belongs into dismiss, with the connections cut meanwhile.
func removeOneOfTwo(t *testing.T) bool {
	var once sync.Once
	held := make(chan string, 1)
	c := controltest.New(t, 2, func(cfg *control.Config) {
		// No reign ends because a busy machine was late.
		cfg.Heartbeat, cfg.Election, cfg.Lease = 2*time.Second, 2*time.Second, time.Second
		own, view, lease := cfg.Self.ID, cfg.View, cfg.Lease
		cfg.SuspectAfter = time.Nanosecond // the leader asks for nodes before it takes one out
		cfg.Dead = func(string) bool {
			if len(view.State().Removed) > 0 {
				once.Do(func() {
					held <- own
					<-time.After(3 * lease)
				})
			}
			return false
		}
	})
	gone, stays := c.Leader(), c.Follower()
	c.Propose(stays, cluster.KindRemoveNode, cluster.Name{Name: gone.ID})
	_ = gone.Err()
	c.Forget(gone)
	if who := <-held; who != stays.ID {
		return false
	}
	c.AwaitVoters(1)
	c.Propose(stays, cluster.KindPutDeployment, deployment("alone"))
	return true
}
