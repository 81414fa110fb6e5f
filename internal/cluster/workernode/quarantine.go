package workernode

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tokenrouter/tokenrouter/api/cluster"
	"github.com/tokenrouter/tokenrouter/control/state"
	"github.com/tokenrouter/tokenrouter/cuda/faults"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
	"github.com/tokenrouter/tokenrouter/internal/cluster/link"
)

// ward is the node's GPUs that must not be used: by the state, and by what this process has
// found out and the state does not know yet.
type ward struct {
	// mu guards pending. It is also held while an assignment is made and given to the
	// engine, so that the engine is never given one that does not know of a fault which it
	// has told of already.
	mu      sync.Mutex
	pending map[string]*pendingFault // by UUID
	// barred belongs to follow: what is kept out of use now, by UUID.
	barred map[string]cluster.Quarantine

	// kept is what the next process will know of pending.
	kept keeping

	// found and unreported have room for one value: sends do not block. follow receives from
	// found, tellFaults from unreported.
	found, unreported chan struct{}
	gauge             *prometheus.GaugeVec
}

// pendingFault is a fault that the state which is known here has not, or may have not: the
// quarantine that it shows may be lifted already.
type pendingFault struct {
	cluster.Quarantine
	// times counts the faults: the first is told.
	times int
	// held says that the newest state had the GPU in quarantine.
	held bool
	// index is that of a state that has the fault; 0 while the cluster does not know of it.
	index uint64
	// request is the command's that tells of the last fault. It is the same in every try: the
	// cluster may have it though no answer came, and somebody have lifted the quarantine.
	request string
}

func newWard(registry *prometheus.Registry, gpus []cluster.GPU) *ward {
	w := &ward{
		pending: map[string]*pendingFault{}, barred: map[string]cluster.Quarantine{},
		found: make(chan struct{}, 1), unreported: make(chan struct{}, 1),
		gauge: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "trctl_gpu_quarantined", Help: "1 while the GPU is in quarantine and not used, else 0.",
		}, []string{"device"}),
	}
	registry.MustRegister(w.gauge)
	for _, g := range gpus {
		w.gauge.WithLabelValues(strconv.Itoa(g.Ordinal)).Set(0)
	}
	return w
}

// poke sends without blocking.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// watched are the node's GPUs whose faults are watched.
func watched(gpus []cluster.GPU) (out []faults.Device) {
	for _, g := range gpus {
		if g.UUID != "" {
			out = append(out, faults.Device{Ordinal: g.Ordinal, UUID: g.UUID, Name: g.Name})
		}
	}
	return out
}

// condemned is told by the engine of a fault after which a GPU must not be used. The
// cluster keeps that in mind; until it does, this process does. bar is called while no
// assignment can be made, so that none that knows nothing of the fault follows it, and none
// that knows of its end comes before.
func (n *Node) condemned(d faults.Device, e inventory.Event, bar func()) {
	reason := e.Meaning().What
	q := cluster.Quarantine{
		GPU: d.UUID, Node: n.name, Cause: cluster.Cause(e.Kind), Xid: e.Code,
		Reason: reason[:min(len(reason), cluster.MaxQuarantineReason)], Seen: time.Now().UTC().Round(0),
	}
	w := n.ward
	w.mu.Lock()
	p := w.pending[q.GPU]
	if p == nil || p.index > 0 {
		_, held := n.cluster.View().State().QuarantineOf(n.name, q.GPU)
		p = &pendingFault{Quarantine: q, held: held}
		w.pending[q.GPU] = p
	}
	p.times++
	p.request = link.NewRequest("quarantine")
	first := p.times == 1
	bar()
	w.mu.Unlock()
	if first {
		poke(w.found)
		poke(w.unreported)
	}
}

// bar returns the quarantines of this node's GPUs, by ordinal, by a state and by what it may
// not have. The caller holds ward.mu.
func (n *Node) bar(s *state.State) map[int]cluster.Quarantine {
	out := map[int]cluster.Quarantine{}
	for _, g := range n.cfg.GPUs {
		p := n.ward.pending[g.UUID]
		q, held := s.QuarantineOf(n.name, g.UUID)
		if !held && p != nil && !p.knownTo(s) {
			q, held = p.Quarantine, true
		}
		if held {
			out[g.Ordinal] = q
		}
	}
	return out
}

// knownTo says that a state has the fault, or has had it.
func (p *pendingFault) knownTo(s *state.State) bool { return p.index > 0 && s.Index >= p.index }

// caughtUp notes the state that the engine's next assignment is of: what that has, or has
// had, is no longer pending. Only follow calls it, since others may know a newer state than
// the one that the engine is still to get. The caller holds ward.mu.
func (n *Node) caughtUp(s *state.State) {
	for gpu, p := range n.ward.pending {
		if p.knownTo(s) {
			delete(n.ward.pending, gpu)
			continue
		}
		_, p.held = s.QuarantineOf(n.name, gpu)
	}
}

// tellBarred logs which GPUs are not used from now on, and which are again.
func (n *Node) tellBarred(barred map[int]cluster.Quarantine) {
	now := map[string]cluster.Quarantine{}
	for _, g := range n.cfg.GPUs {
		q, held := barred[g.Ordinal]
		_, was := n.ward.barred[g.UUID]
		value := 0.0
		if held {
			now[g.UUID], value = q, 1
		}
		n.ward.gauge.WithLabelValues(strconv.Itoa(g.Ordinal)).Set(value)
		args := []any{"gpu", g.Ordinal, "uuid", g.UUID, "name", g.Name}
		switch {
		case held && !was:
			if !q.Since.IsZero() {
				args = append(args, "since", q.Since)
			}
			n.cfg.Log.Warn("GPU is in quarantine and is not used", append(args, "reason", q.Why(), "release", cluster.ReleaseCommand(g.UUID))...)
		case was && !held:
			n.cfg.Log.Info("GPU is out of quarantine", args...)
		}
	}
	n.ward.barred = now
}

// whyBarred is why a replica that is placed here cannot run; empty if it can.
func whyBarred(r *cluster.Replica, barred map[int]cluster.Quarantine) string {
	for _, ordinal := range r.GPUs {
		if q, held := barred[ordinal]; held {
			return fmt.Sprintf("GPU %d is in quarantine: %s", ordinal, q.Why())
		}
	}
	return ""
}

// quarantined are the quarantines of this node's GPUs now, by ordinal.
func (n *Node) quarantined() map[int]cluster.Quarantine {
	n.ward.mu.Lock()
	defer n.ward.mu.Unlock()
	return n.bar(n.cluster.View().State())
}

// noRoom is why nothing is placed here, as far as GPUs in quarantine are why; empty if they
// are not.
func noRoom(barred map[int]cluster.Quarantine) string {
	for _, ordinal := range slices.Sorted(maps.Keys(barred)) {
		q := barred[ordinal]
		return fmt.Sprintf("; GPU %d is in quarantine: %s", ordinal, q.Why())
	}
	return ""
}
