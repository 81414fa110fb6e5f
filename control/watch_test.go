package control_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
)

// tables is what a role sees of a state.
func tables(t *testing.T, s *state.State, role cluster.Role) string {
	t.Helper()
	list, err := s.Changes(role, 0)
	if err != nil {
		t.Fatal(err)
	}
	return encoded(t, list)
}

// A watch from any control node gives the same state, through restarts and changes of
// leader.
func TestWatch(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	type watch struct {
		*client.Client
		role cluster.Role
	}
	var all []watch
	ended := make(chan error, 8)
	ctx, stop := context.WithCancel(t.Context())
	for i, role := range []cluster.Role{cluster.Worker, cluster.Gateway, cluster.Admin, cluster.Control} {
		w := c.Client(role, fmt.Sprintf("x%d", i))
		all = append(all, watch{w, role})
		go func() { ended <- w.Watch(ctx) }()
	}
	follow := func(what string, index uint64) {
		t.Helper()
		want, err := c.Leader().Wait(t.Context(), index)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range all {
			if _, err := w.View().Wait(t.Context(), index); err != nil {
				t.Fatal(err)
			}
			var got string
			c.Poll(what, func() bool { // more may have happened since
				want = c.Leader().State()
				s := w.View().State()
				got = tables(t, s, w.role)
				return s.Index == want.Index
			})
			if wanted := tables(t, want, w.role); got != wanted {
				t.Errorf("%s: the %s sees\n%s\nwant\n%s", what, w.role, got, wanted)
			}
			if w.role == cluster.Worker && (len(w.View().State().Keys) > 0 || len(w.View().State().Tokens) > 0) {
				t.Errorf("the worker sees keys or tokens")
			}
		}
	}
	c.Propose(c.Leader(), cluster.KindPutKey, cluster.Key{ID: "k", MAC: make([]byte, 32)})
	follow("the beginning", c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("one")))
	for i := range 30 {
		c.Propose(c.Leader(), cluster.KindPutDeployment, deployment(fmt.Sprintf("d%d", i%3)))
		if i%10 == 9 {
			follow("the middle", c.Propose(c.Leader(), cluster.KindDeleteDeployment, cluster.Name{Name: "d0"}))
		}
	}
	follow("many changes", c.Propose(c.Leader(), cluster.KindPutDeployment, deployment("two")))

	old := c.Leader()
	old.Crash()
	c.Forget(old)
	follow("a change of leader", c.Propose(c.Nodes()[0], cluster.KindPutDeployment, deployment("three")))
	c.Start(old.ID)
	follow("a restart", c.Propose(c.Nodes()[0], cluster.KindDeleteDeployment, cluster.Name{Name: "three"}))
	stop()
	for range all {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v", err)
		}
	}
}

// Whoever follows the state sees it grow and never shrink, while control nodes end and come
// back: one that has started knows its leader before it knows what was committed.
func TestWatchersAreNeverSetBack(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, controltest.Impatient)
	ctx, stop := context.WithCancel(t.Context())
	work := pool.New().WithErrors()
	var watchers []*client.Client
	for i := range 4 {
		w := c.Client(cluster.Gateway, fmt.Sprintf("g%d", i))
		watchers = append(watchers, w)
		work.Go(func() error { return ignore(context.Canceled, w.Watch(ctx)) })
		work.Go(func() error {
			for last := uint64(0); ctx.Err() == nil; {
				changed := w.View().Changed()
				if now := w.View().State().Index; now < last {
					return fmt.Errorf("from index %d back to %d", last, now)
				} else {
					last = now
				}
				select {
				case <-changed:
				case <-ctx.Done():
				}
			}
			return nil
		})
	}
	for i := range uint64(disturbances(t)) {
		index := c.Propose(c.Leader(), cluster.KindPutDeployment, deployment(fmt.Sprint("d", i)))
		for _, w := range watchers {
			if _, err := w.View().Wait(t.Context(), index); err != nil {
				t.Fatal(err)
			}
		}
		n := c.Nodes()[i%3]
		n.Crash()
		c.Forget(n)
		index = c.Propose(c.Nodes()[0], cluster.KindPutDeployment, deployment(fmt.Sprint("e", i)))
		c.Start(n.ID)
		c.Await("what was decided meanwhile", func(s *state.State) bool { return s.Index >= index })
	}
	stop()
	if err := work.Wait(); err != nil {
		t.Error(err)
	}
}

// disturbances is how often to disturb: a few times, or many in the long form.
func disturbances(t *testing.T) int {
	if testing.Short() {
		return 3
	}
	return 9
}

// ignore returns err unless it is the one that is expected.
func ignore(expected, err error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
