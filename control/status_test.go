package control

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// Nobody catches up with a leader that has not caught up itself with what those before it
// have acknowledged.
func TestStatusOfNewLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{leader: newLeadership(), view: client.NewView()}
		var asked conc.WaitGroup
		defer asked.Wait()
		ask := func(ctx context.Context) (out *any, err *error) {
			out, err = new(any), new(error)
			asked.Go(func() { *out, *err = n.serveStatus(ctx, &call{hop: true}) })
			synctest.Wait()
			return out, err
		}
		if _, err := ask(t.Context()); !errors.Is(*err, client.ErrNotLeader) {
			t.Errorf("a node that does not lead answers: %v", *err)
		}
		n.leader.set("c1", "", true)
		out, err := ask(t.Context())
		if *out != nil || *err != nil {
			t.Errorf("it answers with what it has not caught up with: %v, %v", *out, *err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		_, gaveUp := ask(ctx)
		cancel()
		n.view.Publish(&state.State{Index: 7})
		r, _ := n.leader.now()
		close(r.synced)
		synctest.Wait()
		if s, ok := (*out).(cluster.Status); !ok || *err != nil || s.Applied != 7 {
			t.Errorf("status %v, %v", *out, *err)
		}
		if !errors.Is(*gaveUp, ErrNoLeader) {
			t.Errorf("whoever has given up got %v", *gaveUp)
		}
		n.leader.set("c2", "", false)
		n.leader.set("c1", "", true)
		_, err = ask(t.Context())
		n.leader.set("c2", "", false)
		synctest.Wait()
		if !errors.Is(*err, client.ErrNotLeader) {
			t.Errorf("a leader that leads no more answers: %v", *err)
		}
	})
}
