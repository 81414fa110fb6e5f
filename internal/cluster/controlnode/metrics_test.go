package controlnode

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// get asks the metrics' port.
func (p *process) get(path string) (status int, text string) {
	p.t.Helper()
	resp, err := http.Get("http://" + p.MetricsAddr().String() + path)
	if err != nil {
		p.t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	awaitVoters(t, first, 1)
	for _, c := range []struct {
		kind cluster.Kind
		body any
	}{
		{cluster.KindPutNode, cluster.Node{ID: "w", Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: 4, GPUs: []cluster.GPU{{UUID: "GPU-1"}}}},
		{cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-1", Node: "w", Cause: cluster.CauseXid, Xid: 79}},
	} {
		command, err := cluster.NewCommand(c.kind, link.NewRequest("test"), time.Now(), c.body)
		if err == nil {
			_, err = first.Propose(t.Context(), command)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	_, text := first.get("/metrics")
	for _, want := range []string{
		"trctl_control_leads 1", "trctl_control_voters 1", "trctl_control_refused 0", `trctl_control_nodes{role="control",status="ok"} 1`,
		`trctl_control_quarantined_gpus{cause="operator"} 0`, `trctl_control_quarantined_gpus{cause="xid"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if status, text := first.get("/readyz"); status != http.StatusOK || !strings.Contains(text, `"ready"`) {
		t.Errorf("/readyz: %d %s", status, text)
	}
}

func TestUnready(t *testing.T) {
	refusal := &control.Refusal{By: []string{"c1", "c2"}, Since: time.Unix(1e9, 0)}
	for _, c := range []struct {
		refusal *control.Refusal
		taken   bool
		leader  string
		want    string
	}{
		{nil, true, "c1", ""},
		{nil, true, "", "there is no leader"},
		{nil, false, "", "the cluster does not have this node yet"},
		{refusal, true, "", "since 2001-09-09T01:46:40Z this node's certificate is refused by c1, c2: it was removed, or clocks or CAs differ"},
	} {
		if got := unready(c.refusal, c.taken, c.leader); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// A node that is started after it was removed is not ready, and ends with the reason.
func TestRemovedWhileDown(t *testing.T) {
	t.Parallel()
	dir, saved := found(t)
	first := run(t, dir, saved).await()
	dir2 := t.TempDir()
	saved2, _, err := (&link.Entrance{Dir: dir2, Role: cluster.Control, Node: "second", Address: first.Addr(), Token: first.token(cluster.Control)}).Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	second := run(t, dir2, saved2).await()
	awaitVoters(t, first, 2)
	// Of two control nodes both must be there for a removal.
	dir3 := t.TempDir()
	saved3, _, err := (&link.Entrance{Dir: dir3, Role: cluster.Control, Node: "third", Address: first.Addr(), Token: first.token(cluster.Control)}).Enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	run(t, dir3, saved3).await()
	awaitVoters(t, first, 3)
	if err := second.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	first.remove("second")
	awaitVoters(t, first, 2)
	again := run(t, dir2, saved2)
	if status, text := again.get("/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("/readyz: %d %s", status, text)
	}
	again.done.Wait()
	if !errors.Is(again.err, link.ErrCertificate) {
		t.Errorf("Run: %v\n%s", again.err, again.log)
	}
}
