package main

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control"
	"github.com/tokenrouter/tokenrouter/control/controltest"
	"github.com/tokenrouter/tokenrouter/internal/cluster/clustertest"
)

// What operators do with GPUs, and what they are told, from the listing of a fault to its
// release, and without a leader.
func TestGPUCommands(t *testing.T) {
	c := controltest.New(t, 3, func(cfg *control.Config) {
		controltest.NeverLost(cfg)
		cfg.Patience = 3 * time.Second // longer than a busy machine may be without a leader
	})
	worker := func(id string, uuids ...string) {
		n := cluster.Node{ID: id, Role: cluster.Worker, Addr: "127.0.0.1:1", Protocol: cluster.Protocol}
		for i, uuid := range uuids {
			n.GPUs = append(n.GPUs, cluster.GPU{Ordinal: i, UUID: uuid, Name: "H200", Memory: 141 << 30})
		}
		c.Propose(c.Nodes()[0], cluster.KindPutNode, n)
	}
	worker("w1", "GPU-1", "GPU-2")
	worker("w2", "GPU-2", "")
	dir, _ := clustertest.Identity(c, cluster.Admin, "alice")
	age := regexp.MustCompile(`\b[0-9.]+s\b`)
	blanks := regexp.MustCompile(`  +`)
	asked, nodes := 0, c.Nodes()
	// ask asks another control node each time: whoever has heard of a change is as good as all.
	ask := func(code int, line string) string {
		t.Helper()
		var out strings.Builder
		asked++
		args := append(strings.Fields(line), "--admin", nodes[asked%len(nodes)].Addr, "--identity", dir)
		for i := range args {
			args[i] = strings.ReplaceAll(strings.ReplaceAll(args[i], "_", " "), "''", "")
		}
		args[len(args)-1] = dir
		if got := run(t.Context(), args, process{strings.NewReader(""), &out, &out}); got != code {
			t.Errorf("%s: exit code %d, want %d: %s", line, got, code, &out)
		}
		return blanks.ReplaceAllString(age.ReplaceAllString(out.String(), "Ns"), " ")
	}
	says := func(code int, line, want string) {
		t.Helper()
		if got := ask(code, line); !strings.Contains(got, want) {
			t.Errorf("%s:\n%s\nwant\n%s", line, got, want)
		}
	}
	says(0, "gpu list", "UUID NODE GPU DEVICE STATE SINCE REASON\nGPU-1 w1 0 H200 ready - -\nGPU-2 w1,w2 1 H200 ready - -\nw2/1 w2 1 H200 ready - -\n")
	says(3, "gpu quarantine w2/1", "trctl: GPU w2/1: its worker does not know its UUID")
	says(3, "gpu quarantine GPU-9", "trctl: GPU \"GPU-9\" does not exist; `trctl get gpus` has those that do\n")
	says(3, "gpu release GPU-9", "does not exist")
	says(3, "gpu release GPU-1", "trctl: GPU GPU-1 of node w1: it is not in quarantine\n")
	says(2, "gpu quarantine GPU-1 --reason "+strings.Repeat("x", 200), "--reason")
	says(2, "gpu quarantine", "uuid")
	says(0, "gpu quarantine GPU-1 --reason it_is_noisy", "GPU GPU-1 of node w1 is in quarantine: nothing uses it until `trctl gpu release GPU-1`.\n")
	says(0, "gpu quarantine GPU-1", "GPU GPU-1 is in quarantine already: by an operator: it is noisy.\n")
	c.Propose(c.Nodes()[0], cluster.KindQuarantine, cluster.Quarantine{GPU: "GPU-2", Node: "w1", Cause: cluster.CauseXid, Xid: 79, Reason: "the GPU has fallen off the bus"})
	says(0, "get gpus", "GPU-1 w1 0 H200 quarantined Ns by an operator: it is noisy\nGPU-2 w1,w2 1 H200 quarantined Ns Xid 79: the GPU has fallen off the bus (not for w2)\n")
	says(0, "gpu quarantine GPU-2", "GPU GPU-2 is in quarantine for all workers now: Xid 79: the GPU has fallen off the bus.\n")
	for _, line := range []string{"gpu quarantine ''", "gpu release ''", "describe gpu ''"} {
		says(3, line, "\"\" does not exist")
	}
	says(0, "get workers", "2 (2 quarantined)")
	says(0, "describe gpu GPU-2", "put into quarantine: Xid 79: the GPU has fallen off the bus")
	var gpu struct {
		State      string
		Quarantine struct {
			Node, Why, Cause, Release string
			Xid                       int
		}
	}
	if err := json.Unmarshal([]byte(ask(0, "get gpus GPU-2 -o json")), &gpu); err != nil || gpu.State != "quarantined" || gpu.Quarantine.Xid != 79 || gpu.Quarantine.Node != "w1" {
		t.Errorf("%+v, %v", gpu, err)
	}
	says(0, "cluster status", "UUID NODE GPU DEVICE STATE SINCE REASON\nGPU-1 w1 0 H200 quarantined Ns by an operator: it is noisy\nGPU-2 w1,w2 1")
	says(0, "cluster status -o json", `"quarantined_gpus": [`)
	for range 10 {
		says(0, "gpu release GPU-2", "GPU GPU-2 of node w1 may be used again.\n")
		says(0, "gpu quarantine GPU-2", "GPU GPU-2 of node w1 is in quarantine")
	}
	says(0, "gpu release GPU-2", "GPU GPU-2 of node w1 may be used again.\n")
	c.Propose(c.Nodes()[0], cluster.KindRemoveNode, cluster.RemoveNode{Name: "w1"})
	says(0, "get gpus GPU-1", "GPU-1 w1 (gone) - - quarantined")

	// Nothing can be changed without a majority; what is known is shown.
	nodes = nodes[:1]
	for _, n := range c.Nodes()[1:] {
		n.Stop()
	}
	c.Poll("a cluster without a leader", func() bool { leader, _ := c.Nodes()[0].Leader(); return leader == "" })
	says(0, "get gpus GPU-1", "quarantined")
	says(6, "gpu release GPU-1", "try again once a majority of the control nodes runs, or at one that has a leader")
	for _, n := range c.Nodes()[1:] {
		c.Forget(n)
	}
}
