package state

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tokenrouter/tokenrouter/api/cluster"
)

// Bounds of what is in quarantine: all together, and by the words of one worker, which has
// no more GPUs than that. So one that lies keeps nobody else from being heard.
const (
	maxQuarantines    = 4096
	maxQuarantinesOne = maxGPUs
)

// checkGPUName allows what the driver calls GPUs, and parts of them.
func checkGPUName(uuid string) error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' }
	if uuid == "" || len(uuid) > cluster.MaxGPUName || strings.ContainsFunc(uuid, odd) {
		return fmt.Errorf("GPU %.32q %w: its UUID must have 1 to %d printed ASCII characters", uuid, ErrInvalid, cluster.MaxGPUName)
	}
	return nil
}

func checkQuarantine(q *cluster.Quarantine) error {
	if err := checkGPUName(q.GPU); err != nil {
		return err
	}
	bad := func(field, format string, args ...any) error {
		return fmt.Errorf("quarantine of GPU %s: %s %w: %s", q.GPU, field, ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case !slices.Contains(cluster.Causes(), q.Cause):
		return bad("cause", "%.32q is not one of %v", q.Cause, cluster.Causes())
	case q.Cause != cluster.CauseOperator && q.Node == "":
		return bad("node", "it is empty")
	case len(q.Node) > cluster.MaxID:
		return bad("node", "it has more than %d bytes", cluster.MaxID)
	case (q.Cause == cluster.CauseXid) != (q.Xid > 0):
		return bad("xid", "%d does not go with the cause %s", q.Xid, q.Cause)
	case len(q.Reason) > cluster.MaxQuarantineReason || !utf8.ValidString(q.Reason):
		return bad("reason", "it must be UTF-8 of at most %d bytes", cluster.MaxQuarantineReason)
	case len(q.Spared) > cluster.MaxSpared:
		return bad("spared", "there are more than %d nodes", cluster.MaxSpared)
	}
	return nil
}

// quarantine keeps a GPU out of use. The first word about a GPU stays: what comes later is
// mostly a consequence, and changes only for whom it holds.
func (s *State) quarantine(q *cluster.Quarantine) error {
	q.Spared = nil
	if err := checkQuarantine(q); err != nil {
		return err
	}
	holders := s.holders(q.GPU)
	byOperator := q.Cause == cluster.CauseOperator
	switch n, ok := s.Node(q.Node); {
	case q.Node == "" && len(holders) == 0:
		return refuse(KindGPU, q.GPU, ErrNotFound)
	case q.Node == "":
		q.Node = holders[0]
	case !ok:
		return refuse(KindNode, q.Node, ErrNotFound)
	case !n.HasGPU(q.GPU):
		return fmt.Errorf("GPU %q %w on node %s", q.GPU, ErrNotFound, q.Node)
	}
	next, known := s.Quarantine(q.GPU)
	switch {
	case known && (!byOperator && next.Holds(q.Node) || byOperator && next.Spared == nil):
		return nil // so that it is harmless to say it again
	case known:
		next.Spared = slices.DeleteFunc(slices.Clone(next.Spared), func(id string) bool { return byOperator || id == q.Node })
		if len(next.Spared) == 0 {
			next.Spared = nil
		}
	default:
		if err := s.roomFor(q, byOperator); err != nil {
			return err
		}
		next = *q
		next.Since = s.Time
		if !byOperator {
			next.Spared = s.spared(q.Node, holders)
		}
	}
	s.Quarantines = s.Quarantines.with(q.GPU, next, s.Index)
	s.Placement++
	return nil
}

// holders are the workers that have a GPU, those first that are not lost.
func (s *State) holders(uuid string) (out []string) {
	var lost []string
	for id, n := range s.AllNodes() {
		switch {
		case n.Role != cluster.Worker || !n.HasGPU(uuid):
		case n.Lost:
			lost = append(lost, id)
		default:
			out = append(out, id)
		}
	}
	return append(out, lost...)
}

// spared are the holders but for one, and but for those that are lost: such a one is mostly
// the same machine under its old name.
func (s *State) spared(node string, holders []string) (out []string) {
	for _, id := range holders {
		if n, _ := s.Node(id); id != node && !n.Lost && len(out) < cluster.MaxSpared {
			out = append(out, id)
		}
	}
	return out
}

// roomFor refuses what would be too much.
func (s *State) roomFor(q *cluster.Quarantine, byOperator bool) error {
	own := 0
	for _, other := range s.AllQuarantines() {
		if other.Node == q.Node && other.Cause != cluster.CauseOperator {
			own++
		}
	}
	switch {
	case len(s.Quarantines) >= maxQuarantines:
		return fmt.Errorf("quarantine of GPU %s %w: there are %d already; release those that are gone", q.GPU, ErrInvalid, maxQuarantines)
	case !byOperator && own >= maxQuarantinesOne:
		return fmt.Errorf("quarantine of GPU %s %w: node %s has told of %d already; release those that are gone", q.GPU, ErrInvalid, q.Node, maxQuarantinesOne)
	}
	return nil
}

// releaseGPU lifts a quarantine.
func (s *State) releaseGPU(n *cluster.Name) error {
	if _, ok := s.Quarantine(n.Name); !ok {
		return refuse(KindQuarantined, n.Name, ErrNotFound)
	}
	s.Quarantines = s.Quarantines.without(n.Name)
	s.gone(KindQuarantined, n.Name)
	s.Placement++
	return nil
}

// QuarantineOf is what keeps a worker from using a GPU, false if nothing does.
func (s *State) QuarantineOf(node, uuid string) (cluster.Quarantine, bool) {
	q, ok := s.Quarantine(uuid)
	return q, ok && q.Holds(node)
}

// Barred is the quarantine of a GPU that a replica is placed on, false if there is none.
func (s *State) Barred(r *cluster.Replica) (cluster.Quarantine, bool) {
	if len(s.Quarantines) == 0 || len(r.GPUs) == 0 {
		return cluster.Quarantine{}, false
	}
	n, _ := s.Node(r.Node)
	for _, ordinal := range r.GPUs {
		if g, ok := n.GPU(ordinal); ok {
			if q, held := s.QuarantineOf(n.ID, g.UUID); held {
				return q, true
			}
		}
	}
	return cluster.Quarantine{}, false
}
