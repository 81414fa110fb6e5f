package listing

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// quarantined is the state of a GPU that must not be used.
const quarantined = "quarantined"

// GPU is a device as operators see it.
type GPU struct {
	// Name is its UUID, or NODE/ORDINAL of one that has none.
	Name string `json:"name"`
	// State is ready or quarantined; Quarantine says more if it is not ready.
	State      string      `json:"state"`
	Quarantine *Quarantine `json:"quarantine,omitempty"`
	// Node is the worker that has it, or had it if Gone, Ordinal its number there. Also are
	// other workers that have the same device.
	Node    string   `json:"node,omitempty"`
	Gone    bool     `json:"gone,omitempty"`
	Ordinal int      `json:"ordinal"`
	Also    []string `json:"also,omitempty"`
	Device  string   `json:"device,omitempty"`
	// Memory is in bytes.
	Memory   int64    `json:"memory,omitempty"`
	Replicas []string `json:"replicas,omitempty"`
}

// place names a GPU that has no UUID.
func place(node string, ordinal int) string { return fmt.Sprintf("%s/%d", node, ordinal) }

// Nameless says that the GPU has no UUID.
func (g *GPU) Nameless() bool { return !g.Gone && g.Name == place(g.Node, g.Ordinal) }

// Quarantine is why a GPU must not be used.
type Quarantine struct {
	GPU string `json:"gpu"`
	// Node is where it was.
	Node  string    `json:"node"`
	Since time.Time `json:"since"`
	// Why is a line of printed characters, whoever has told it.
	Why   string        `json:"why"`
	Cause cluster.Cause `json:"cause"`
	Xid   uint64        `json:"xid,omitempty"`
	// Seen is when the worker saw the fault, by its clock.
	Seen *time.Time `json:"seen,omitempty"`
	// Spared are workers that may use it all the same: they have the same device, and have
	// told of no fault.
	Spared []string `json:"spared,omitempty"`
	// Release is the command that lifts it.
	Release string `json:"release"`
}

func quarantineOf(q *cluster.Quarantine) Quarantine {
	out := Quarantine{
		GPU: q.GPU, Node: q.Node, Since: q.Since, Why: printable(q.Why()), Cause: q.Cause, Xid: q.Xid, Spared: q.Spared, Release: cluster.ReleaseCommand(q.GPU),
	}
	if !q.Seen.IsZero() {
		out.Seen = &q.Seen
	}
	return out
}

// allGPUs are the devices of all workers, and those in quarantine whose worker is gone, by
// name.
func (f *Facts) allGPUs() []GPU {
	known := map[string]*GPU{}
	for id, n := range f.State.AllNodes() {
		for _, g := range n.GPUs {
			name := g.UUID
			if name == "" {
				name = place(id, g.Ordinal)
			}
			own := known[name]
			if own == nil {
				own = &GPU{Name: name, State: ready, Node: id, Ordinal: g.Ordinal, Device: g.Name, Memory: g.Memory}
				known[name] = own
			} else {
				own.Also = append(own.Also, id)
			}
			for rid, r := range f.State.AllReplicas() {
				if r.Node == id && slices.Contains(r.GPUs, g.Ordinal) {
					own.Replicas = append(own.Replicas, rid)
				}
			}
		}
	}
	for uuid, q := range f.State.AllQuarantines() {
		own := known[uuid]
		if own == nil {
			own = &GPU{Name: uuid, Node: q.Node, Gone: true}
			known[uuid] = own
		}
		shown := quarantineOf(&q)
		own.State, own.Quarantine = quarantined, &shown
	}
	list := make([]GPU, 0, len(known))
	for _, g := range known {
		list = append(list, *g)
	}
	slices.SortFunc(list, func(a, b GPU) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func (f *Facts) gpus() Table { return f.gpuTable(f.allGPUs()) }

// Quarantined is the table of the GPUs in quarantine.
func (f *Facts) Quarantined() Table {
	return f.gpuTable(slices.DeleteFunc(f.allGPUs(), func(g GPU) bool { return g.Quarantine == nil }))
}

func (f *Facts) gpuTable(list []GPU) Table {
	type c = column[GPU]
	return table(GPUs, list, []c{
		{title: "UUID", text: func(g *GPU) string { return g.Name }},
		{title: "NODE", text: func(g *GPU) string {
			if g.Gone {
				return strings.TrimSpace(g.Node + " (gone)")
			}
			return strings.Join(append([]string{g.Node}, g.Also...), ",")
		}},
		{title: "GPU", text: func(g *GPU) string {
			if g.Gone {
				return "-"
			}
			return strconv.Itoa(g.Ordinal)
		}},
		{title: "DEVICE", text: func(g *GPU) string { return dash(g.Device) }},
		{title: "MEMORY", wide: true, text: func(g *GPU) string { return gibibytes(g.Memory) }},
		{title: "REPLICAS", wide: true, text: func(g *GPU) string { return dash(strings.Join(g.Replicas, ",")) }},
		{title: "STATE", text: func(g *GPU) string { return g.State }},
		{title: "SINCE", live: true, text: func(g *GPU) string {
			if g.Quarantine == nil {
				return "-"
			}
			return f.ago(g.Quarantine.Since)
		}},
		{title: "REASON", text: func(g *GPU) string {
			switch {
			case g.Quarantine == nil:
				return "-"
			case len(g.Quarantine.Spared) > 0:
				return g.Quarantine.Why + " (not for " + strings.Join(g.Quarantine.Spared, ", ") + ")"
			}
			return g.Quarantine.Why
		}},
	})
}

func gibibytes(n int64) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f GiB", float64(n)/(1<<30))
}

// ofNode are the quarantines that hold for a worker's GPUs.
func (f *Facts) ofNode(n *cluster.Node) (out []Quarantine) {
	for _, g := range n.GPUs {
		if q, held := f.State.QuarantineOf(n.ID, g.UUID); held {
			out = append(out, quarantineOf(&q))
		}
	}
	return out
}

// whyBarred says that a replica's GPU is in quarantine; empty if it is not.
func (f *Facts) whyBarred(r *cluster.Replica) string {
	q, barred := f.State.Barred(r)
	if !barred {
		return ""
	}
	return fmt.Sprintf("its GPU %s is in quarantine since %s: %s; %s", q.GPU, f.ago(q.Since), q.Why(), cluster.ReleaseCommand(q.GPU))
}
