package cluster

import (
	"testing"
	"time"
)

func TestQuarantineWhy(t *testing.T) {
	t.Parallel()
	for want, q := range map[string]Quarantine{
		"Xid 79: gone":          {Cause: CauseXid, Xid: 79, Reason: "gone"},
		"Xid 79":                {Cause: CauseXid, Xid: 79},
		"by an operator":        {Cause: CauseOperator},
		"by an operator: noisy": {Cause: CauseOperator, Reason: "noisy"},
		"it is silent":          {Cause: CauseLost, Reason: "it is silent"},
		"double-bit-ecc":        {Cause: CauseMemory},
	} {
		if got := q.Why(); got != want {
			t.Errorf("%+v: %q, want %q", q, got, want)
		}
	}
}

// Only what is said of quarantines needs the version that came with them.
func TestSinceQuarantine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind Kind
		body any
		want int
	}{
		"quarantine": {KindQuarantine, Quarantine{GPU: "GPU-1", Cause: CauseOperator}, sinceQuarantine},
		"release":    {KindReleaseGPU, Name{"GPU-1"}, sinceQuarantine},
		"start":      {KindPutNode, Start{Node: Node{GPUs: []GPU{{UUID: "GPU-1"}}}}, 1},
	} {
		if command, err := NewCommand(c.kind, "", time.Now(), c.body); err != nil || command.V != c.want {
			t.Errorf("%s: version %d, %v; want %d", name, command.V, err, c.want)
		}
	}
}

func TestNodeGPU(t *testing.T) {
	t.Parallel()
	n := Node{GPUs: []GPU{{Ordinal: 3, UUID: "GPU-3"}, {Ordinal: 1}}}
	if g, ok := n.GPU(3); !ok || g.UUID != "GPU-3" {
		t.Errorf("GPU 3 is %+v", g)
	}
	if _, ok := n.GPU(0); ok || n.HasGPU("") || n.HasGPU("GPU-1") || !n.HasGPU("GPU-3") {
		t.Error("it has a GPU that is not there")
	}
}
