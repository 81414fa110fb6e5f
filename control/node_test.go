package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func deployment(name string) cluster.Deployment {
	return cluster.Deployment{Name: name, Models: []string{"tiny-s", "tiny-l"}, Policy: "r-stitch"}
}

func has(name string) func(*state.State) bool {
	return func(s *state.State) bool { _, ok := s.Deployment(name); return ok }
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// One cluster goes through its life: begin, grow to three, change on a follower, lose
// its leader, restart from disk, lose its majority.
func TestLife(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, controltest.Impatient)
	if own, ok := c.Leader().State().Cluster(); !ok || own.ID != controltest.ID {
		t.Fatalf("cluster %v %v", own, ok)
	}

	f := c.Follower()
	c.Propose(f, cluster.KindPutDeployment, deployment("one"))
	c.Await("deployment one", has("one"))

	// The same request changes nothing the second time, and has the same result.
	again, err := cluster.NewCommand(cluster.KindDeleteDeployment, "same", time.Now(), cluster.Name{Name: "none"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		var err error
		c.Poll("an answer", func() bool { _, err = f.Propose(t.Context(), again); return !errors.Is(err, control.ErrNoLeader) })
		if !errors.Is(err, state.ErrNotFound) {
			t.Errorf("error %v, want ErrNotFound", err)
		}
	}
	later := again
	later.V = cluster.Protocol + 1
	if _, err := f.Propose(t.Context(), later); err == nil {
		t.Error("a command of a later version was taken")
	}

	// The leader dies; the others go on.
	old := c.Leader()
	old.Crash()
	c.Forget(old)
	c.Propose(c.Nodes()[0], cluster.KindPutDeployment, deployment("two"))
	if now := c.Leader(); now == old {
		t.Error("the leader that died leads")
	}

	// It comes back at another address and catches up.
	back := c.Start(old.ID)
	c.Await("deployment two", has("two"))
	c.Poll("its new address", func() bool {
		own, ok := c.Leader().State().Node(old.ID)
		return ok && own.Addr == back.Addr && own.Incarnation > 1
	})

	// Without a majority there is an answer soon, and it is no.
	nodes := append([]*controltest.Node(nil), c.Nodes()...)
	survivor := nodes[0]
	for _, n := range nodes[1:] {
		n.Crash()
		c.Forget(n)
	}
	began := time.Now()
	put, err := cluster.NewCommand(cluster.KindPutDeployment, "", time.Now(), deployment("three"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := survivor.Propose(t.Context(), put); !errors.Is(err, control.ErrNoLeader) {
		t.Errorf("error %v, want ErrNoLeader", err)
	}
	t.Logf("no leader after %s", time.Since(began))
	if has("three")(survivor.State()) {
		t.Error("what was not committed is in the state")
	}
	for _, n := range nodes[1:] {
		c.Start(n.ID)
	}
	c.Propose(survivor, cluster.KindPutDeployment, deployment("four"))
	c.Await("deployment four", has("four"))
}

// A new node does not wait for a leader before it asks to be taken in: it has none until then.
func TestNewNodeAsksAtOnce(t *testing.T) {
	t.Parallel()
	controltest.New(t, 2, func(cfg *control.Config) { cfg.Patience = 2 * controltest.Patience })
}

// What a follower was told is seen there, once it has answered.
func TestFollowerSeesWhatItWasTold(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	for i := range 5 {
		f, name := c.Follower(), fmt.Sprint("d", i)
		index := c.Propose(f, cluster.KindPutDeployment, deployment(name))
		if s := f.State(); s.Index < index || !has(name)(s) {
			t.Errorf("the follower does not see %s", name)
		}
	}
}

// The whole cluster stops and starts again, with the same state.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, func(cfg *control.Config) { cfg.SnapshotEntries = 8 })
	n := c.Leader()
	for i := range 20 {
		d := deployment("d")
		d.MaxInFlight = i + 1
		c.Propose(n, cluster.KindPutDeployment, d)
	}
	n.Stop()
	if err := n.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	before := n.State()
	c.Forget(n)
	c.Change = func(cfg *control.Config) { cfg.Bootstrap = nil }
	n = c.Start(n.ID)
	c.Poll("a start", func() bool { own, _ := n.State().Node(n.ID); return own.Incarnation == 2 })
	if d, _ := n.State().Deployment("d"); d.Version != 20 {
		t.Errorf("version %d after the restart, want 20", d.Version)
	}
	if encoded(t, before.Deployments) != encoded(t, n.State().Deployments) {
		t.Error("the deployments differ after the restart")
	}
}
