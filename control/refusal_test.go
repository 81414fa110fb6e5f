package control_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/client"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/internal/identity"
)

// unwelcome is a cluster whose nodes soon see that they are refused.
type unwelcome struct {
	*controltest.Cluster
	log *buffer

	mu          sync.Mutex
	dirs        map[string]string
	credentials map[string]*identity.Credentials
}

func newUnwelcome(t *testing.T, n int) *unwelcome {
	u := &unwelcome{log: new(buffer), dirs: map[string]string{}, credentials: map[string]*identity.Credentials{}}
	u.Cluster = controltest.New(t, n, func(cfg *control.Config) {
		controltest.Impatient(cfg)
		cfg.RefusedAfter = 500 * time.Millisecond
		cfg.Log = slog.New(slog.NewTextHandler(u.log, nil)).With("at", cfg.Self.ID)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.dirs[cfg.Self.ID], u.credentials[cfg.Self.ID] = cfg.Dir, cfg.Credentials
	})
	return u
}

// lines counts the lines that a node has logged.
func (u *unwelcome) lines(at, level, text string) (n int) {
	for line := range strings.Lines(u.log.String()) {
		if strings.Contains(line, "level="+level+" ") && strings.Contains(line, text) && strings.Contains(line, "at="+at) {
			n++
		}
	}
	return n
}

const refuse = "refuse this node's certificate"

// removeCutOff removes a follower that is cut off, and lets it come back.
func (u *unwelcome) removeCutOff() *controltest.Node {
	u.TB.Helper()
	f := u.Follower()
	voters := len(u.Nodes())
	f.Isolate(true)
	u.Forget(f)
	u.TB.Cleanup(f.Stop)
	u.Propose(u.Leader(), cluster.KindRemoveNode, cluster.Name{Name: f.ID})
	u.AwaitVoters(voters - 1)
	u.Poll("no leader there", func() bool { who, _ := f.Leader(); return who == "" })
	return f
}

// A control node that was removed while it was cut off says so when it is back, once, keeps
// everything that it has, and is as before when the others take it again.
func TestRemovedWhileCutOff(t *testing.T) {
	t.Parallel()
	u := newUnwelcome(t, 3)
	backup := u.Backup()
	f := u.removeCutOff()
	if f.Refused() != nil {
		t.Error("refused while nobody could refuse it")
	}
	f.Isolate(false)
	u.Poll("the refusal", func() bool { return f.Refused() != nil })
	if by := f.Refused().By; len(by) != 2 || time.Since(f.Refused().Since) < 500*time.Millisecond {
		t.Errorf("refused by %v since %s", by, f.Refused().Since)
	}
	if status := f.Status(); len(status.Refused) != 2 || status.Leader != "" {
		t.Errorf("status: %+v", status)
	}
	if n := u.lines(f.ID, "ERROR", refuse); n != 1 || !strings.Contains(u.log.String(), "join again with a new token") {
		t.Errorf("%d lines: %s", n, u.log)
	}
	_, err := f.Propose(t.Context(), command(t, cluster.KindPutDeployment, deployment("d")))
	if !errors.Is(err, control.ErrNoLeader) || !strings.Contains(err.Error(), "this node's certificate is refused by") {
		t.Errorf("a command there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(u.dirs[f.ID], "raft.db")); err != nil {
		t.Errorf("its directory: %v", err)
	}
	if u.Leader().Refused() != nil {
		t.Error("the leader takes itself for refused")
	}
	// The removal is taken back.
	u.Restore(backup)
	u.Poll("the node as before", func() bool { who, _ := f.Leader(); return who != "" && f.Refused() == nil })
	u.AwaitVoters(3)
	if u.lines(f.ID, "INFO", "do not refuse this node any more") != 1 || u.lines(f.ID, "ERROR", refuse) != 1 {
		t.Errorf("%s", u.log)
	}
	f.Stop()
	if err := f.Err(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
}

// One that is started after it was removed ends, with the same reason.
func TestRemovedWhileStopped(t *testing.T) {
	t.Parallel()
	u := newUnwelcome(t, 3)
	f := u.removeCutOff()
	f.Stop()
	again := u.Start(f.ID)
	u.Forget(again)
	if err := again.Err(); !errors.Is(err, client.ErrCertificate) {
		t.Errorf("Run: %v", err)
	}
	if _, err := os.Stat(filepath.Join(u.dirs[f.ID], "raft.db")); err != nil {
		t.Errorf("its directory: %v", err)
	}
}

// A single node that refuses, as its clock or its CA is wrong, is no verdict: it is told of,
// once, and the node goes on.
func TestOneRefusesAlone(t *testing.T) {
	t.Parallel()
	u := newUnwelcome(t, 3)
	wrong, gone := u.Leader(), u.Follower()
	u.Forget(gone)
	gone.Crash()
	u.distrust(wrong.ID, true)
	wrong.Drop()
	f := u.Nodes()[0]
	if f == wrong {
		f = u.Nodes()[1]
	}
	u.Poll("the warning", func() bool { return u.lines(f.ID, "WARN", refuse) > 0 })
	if f.Refused() != nil || u.lines(f.ID, "ERROR", refuse) != 0 {
		t.Errorf("refused by one: %+v", f.Refused())
	}
	u.distrust(wrong.ID, false)
	u.Poll("a leader", func() bool { who, _ := f.Leader(); return who != "" })
	if u.lines(f.ID, "WARN", refuse) != 1 {
		t.Errorf("%s", u.log)
	}
}

// Where all refuse each other by mistake, all are as before once that is mended.
func TestAllRefuseEachOther(t *testing.T) {
	t.Parallel()
	u := newUnwelcome(t, 3)
	for _, n := range u.Nodes() {
		u.distrust(n.ID, true)
	}
	for _, n := range u.Nodes() {
		n.Drop()
	}
	// Each refuses the others' certificates before they see its own, so nobody is sure.
	u.Poll("no leader", func() bool {
		for _, n := range u.Nodes() {
			if who, _ := n.Leader(); who != "" {
				return false
			}
		}
		return true
	})
	for _, n := range u.Nodes() {
		u.distrust(n.ID, false)
	}
	u.Leader()
	u.Poll("all welcome", func() bool {
		for _, n := range u.Nodes() {
			if who, _ := n.Leader(); who == "" || n.Refused() != nil {
				return false
			}
		}
		return true
	})
}

// distrust has a node trust another CA than the cluster's, or ends that.
func (u *unwelcome) distrust(node string, wrong bool) {
	u.TB.Helper()
	ca := u.CA
	if wrong {
		other, err := identity.NewAuthority(controltest.ID, time.Now())
		if err != nil {
			u.TB.Fatal(err)
		}
		if ca, _, err = other.PEM(); err != nil {
			u.TB.Fatal(err)
		}
	}
	certificate, key := u.Certificate(cluster.Control, node)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err := u.credentials[node].Replace(certificate, key, [][]byte{ca}); err != nil {
		u.TB.Fatal(err)
	}
}
