package control_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// withGPU is a worker with one device.
func withGPU(id, uuid string) cluster.Node {
	n := node(id, cluster.Worker)
	n.GPUs = []cluster.GPU{{UUID: uuid, Name: "H200"}}
	return n
}

func xid79(node, gpu string) cluster.Quarantine {
	return cluster.Quarantine{GPU: gpu, Node: node, Cause: cluster.CauseXid, Xid: 79, Reason: "the GPU has fallen off the bus"}
}

// Workers speak for themselves, operators by hand, and operators alone lift a quarantine.
func TestWhoMayQuarantine(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 1, nil)
	c.Propose(c.Leader(), cluster.KindPutNode, withGPU("w1", "GPU-1"))
	byHand := cluster.Quarantine{GPU: "GPU-1", Cause: cluster.CauseOperator}
	asWorker := byHand
	asWorker.Node = "w1"
	for _, test := range []struct {
		name    string
		kind    cluster.Kind
		body    any
		allowed []cluster.Role
	}{
		{"own fault", cluster.KindQuarantine, xid79("w1", "GPU-1"), []cluster.Role{cluster.Worker, cluster.Control}},
		{"fault of another", cluster.KindQuarantine, xid79("w2", "GPU-1"), []cluster.Role{cluster.Control}},
		{"by hand", cluster.KindQuarantine, byHand, []cluster.Role{cluster.Admin, cluster.Control}},
		{"own, by hand", cluster.KindQuarantine, asWorker, []cluster.Role{cluster.Admin, cluster.Control}},
		{"release", cluster.KindReleaseGPU, cluster.Name{Name: "GPU-1"}, []cluster.Role{cluster.Admin, cluster.Control}},
	} {
		for role, id := range map[cluster.Role]string{cluster.Worker: "w1", cluster.Gateway: "g1", cluster.Admin: "a1", cluster.Control: "c1"} {
			_, err := c.Client(role, id).Propose(t.Context(), command(t, test.kind, test.body))
			want := true
			for _, r := range test.allowed {
				want = want && r != role
			}
			if got := errors.Is(err, client.ErrForbidden); got != want {
				t.Errorf("%s by %s: error %v, refused should be %v", test.name, role, err, want)
			}
		}
	}
}

// signed is a command with a request id, as nodes and operators make them.
func signed(t *testing.T, kind cluster.Kind, body any) cluster.Command {
	t.Helper()
	c := command(t, kind, body)
	c.Request = link.NewRequest("test")
	return c
}

// recorded is a log that is read while it is written.
type recorded struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (r *recorded) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.Write(b)
}

func (r *recorded) lines(part string) (n int, last string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for line := range strings.Lines(r.out.String()) {
		if strings.Contains(line, part) {
			n, last = n+1, line
		}
	}
	return n, last
}

// A quarantine outlives the leader that noted it, the log that it was in, a restart of all
// control nodes, and a backup. It is told in the leader's log, once.
func TestQuarantineLasts(t *testing.T) {
	t.Parallel()
	log := &recorded{}
	c := controltest.New(t, 1, func(cfg *control.Config) {
		cfg.SnapshotEntries, cfg.Log = 8, slog.New(slog.NewTextHandler(log, nil))
	})
	n := c.Leader()
	c.Propose(n, cluster.KindPutNode, withGPU("w1", "GPU-1"))
	w1 := c.Client(cluster.Worker, "w1")
	for range 2 {
		if _, err := w1.Propose(t.Context(), signed(t, cluster.KindQuarantine, xid79("w1", "GPU-1"))); err != nil {
			t.Fatal(err)
		}
	}
	const told = "GPU put into quarantine"
	if lines, last := log.lines(told); lines != 1 || !strings.Contains(last, `gpu=GPU-1 node=w1 reason="Xid 79: the GPU has fallen off the bus" by=worker/w1 release="trctl gpu release GPU-1"`) {
		t.Errorf("%d lines, the last is %s", lines, last)
	}
	backup, err := n.Backup(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 { // more than the log keeps
		d := deployment("d")
		d.MaxInFlight = i + 1
		c.Propose(n, cluster.KindPutDeployment, d)
	}
	n.Stop()
	if err := n.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	before, _ := n.State().Quarantine("GPU-1")
	c.Forget(n)
	c.Change = func(cfg *control.Config) { cfg.Bootstrap, cfg.Log = nil, slog.New(slog.NewTextHandler(log, nil)) }
	n = c.Start(n.ID)
	held := func(s *state.State) bool { _, ok := s.QuarantineOf("w1", "GPU-1"); return ok }
	c.Poll("the start", func() bool { own, _ := n.State().Node(n.ID); return own.Incarnation == 2 })
	if after, ok := n.State().Quarantine("GPU-1"); !ok || encoded(t, after) != encoded(t, before) || before.Since.IsZero() {
		t.Errorf("after the restart it is %+v, was %+v", after, before)
	}
	alice := c.Client(cluster.Admin, "alice")
	release := func() error {
		_, err := alice.Propose(t.Context(), signed(t, cluster.KindReleaseGPU, cluster.Name{Name: "GPU-1"}))
		return err
	}
	if err := release(); err != nil || held(n.State()) {
		t.Errorf("release: %v", err)
	}
	if lines, last := log.lines("GPU released from quarantine"); lines != 1 || !strings.Contains(last, "gpu=GPU-1 by=admin/alice") {
		t.Errorf("%d lines, the last is %s", lines, last)
	}
	if err := release(); !errors.Is(err, state.ErrNotFound) {
		t.Errorf("release of what is not held: %v", err)
	}
	if err := n.Restore(t.Context(), backup); err != nil {
		t.Fatal(err)
	}
	c.Await("the backup", held)
}

// A quarantine is there after a change of leader, and a worker that watches hears of it from
// any control node.
func TestQuarantineOfThree(t *testing.T) {
	t.Parallel()
	c := controltest.New(t, 3, nil)
	first := c.Leader()
	c.Propose(c.Follower(), cluster.KindPutNode, withGPU("w1", "GPU-1"))
	c.Propose(c.Follower(), cluster.KindQuarantine, xid79("w1", "GPU-1"))
	first.Crash()
	c.Forget(first)
	c.Await("the quarantine", func(s *state.State) bool { _, ok := s.QuarantineOf("w1", "GPU-1"); return ok })
	c.Propose(c.Leader(), cluster.KindReleaseGPU, cluster.Name{Name: "GPU-1"})
	c.Await("the release", func(s *state.State) bool { return len(s.Quarantines) == 0 })
}
