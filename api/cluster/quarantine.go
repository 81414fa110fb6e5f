package cluster

import (
	"fmt"
	"slices"
	"time"
)

const (
	// KindQuarantine keeps a GPU out of use: Quarantine.
	KindQuarantine Kind = "quarantine-gpu"
	// KindReleaseGPU lets a GPU be used again: Name, which is the GPU's UUID.
	KindReleaseGPU Kind = "release-gpu"
)

// sinceQuarantine is the version that came with GPUs in quarantine.
const sinceQuarantine = 4

// Cause is what put a GPU into quarantine.
type Cause string

const (
	// CauseXid is a fault that the GPU's driver has reported by number.
	CauseXid Cause = "xid"
	// CauseMemory is a memory error that cannot be corrected and came without a number.
	CauseMemory Cause = "double-bit-ecc"
	// CauseLost is a GPU that does not answer any more.
	CauseLost Cause = "lost"
	// CauseOperator is an operator's word.
	CauseOperator Cause = "operator"
)

// Causes lists the causes.
func Causes() []Cause { return []Cause{CauseXid, CauseMemory, CauseLost, CauseOperator} }

// Bounds of a Quarantine's texts, in bytes, and of its lists.
const (
	MaxGPUName          = 128
	MaxQuarantineReason = 256
	// MaxSpared bounds Quarantine.Spared.
	MaxSpared = 64
)

// Quarantine keeps a GPU out of use, whatever node it is in, until an operator lifts it:
// nobody else does, and nobody resets a GPU.
type Quarantine struct {
	// GPU is its UUID, as the driver tells it.
	GPU string `json:"gpu"`
	// Node is the worker that it was in. An operator may leave it empty.
	Node  string `json:"node,omitempty"`
	Cause Cause  `json:"cause"`
	// Xid is the fault's number if that is the Cause.
	Xid uint64 `json:"xid,omitempty"`
	// Reason is what the fault means, or the operator's word.
	Reason string `json:"reason,omitempty"`
	// Seen is when the fault was seen, by the worker's clock. Since is when the quarantine
	// began; the state sets it.
	Seen  time.Time `json:"seen,omitzero"`
	Since time.Time `json:"since,omitzero"`
	// Spared are workers that had the GPU too when another one told of the fault. Nobody is
	// believed about others, so they may use it until they, or an operator, say so as well. The
	// state sets it.
	Spared []string `json:"spared,omitempty"`
}

// Why is the reason in a few words: "Xid 79: the GPU has fallen off the bus".
func (q *Quarantine) Why() string {
	switch {
	case q.Cause == CauseXid && q.Reason == "":
		return fmt.Sprintf("Xid %d", q.Xid)
	case q.Cause == CauseXid:
		return fmt.Sprintf("Xid %d: %s", q.Xid, q.Reason)
	case q.Cause == CauseOperator && q.Reason == "":
		return "by an operator"
	case q.Cause == CauseOperator:
		return "by an operator: " + q.Reason
	case q.Reason == "":
		return string(q.Cause)
	}
	return q.Reason
}

// Holds says that the quarantine counts for a worker.
func (q *Quarantine) Holds(node string) bool { return !slices.Contains(q.Spared, node) }

// ReleaseCommand is what an operator types to lift the quarantine of a GPU.
func ReleaseCommand(gpu string) string { return "trctl gpu release " + gpu }

// GPU is a worker's device of an ordinal.
func (n *Node) GPU(ordinal int) (GPU, bool) {
	i := slices.IndexFunc(n.GPUs, func(g GPU) bool { return g.Ordinal == ordinal })
	if i < 0 {
		return GPU{}, false
	}
	return n.GPUs[i], true
}

// HasGPU says that a worker has a device of a UUID.
func (n *Node) HasGPU(uuid string) bool {
	return uuid != "" && slices.ContainsFunc(n.GPUs, func(g GPU) bool { return g.UUID == uuid })
}
