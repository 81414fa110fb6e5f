package inventory

import (
	"fmt"
	"slices"
	"strconv"
)

// Kind says what an Event is about.
type Kind string

const (
	// XID is a fault reported by the driver; Event.Code is its number.
	XID Kind = "xid"
	// DoubleBit is an uncorrectable memory error. Most drivers tell of it as Xid 48 too.
	DoubleBit Kind = "double-bit-ecc"
	// Lost means that the device no longer answers.
	Lost Kind = "lost"
)

// Event is one fault of a device.
type Event struct {
	Kind Kind
	// UUID names the device; empty when NVML does not say which it is.
	UUID string
	// Code is the Xid number, 0 for other kinds.
	Code uint64
}

// Meaning is what an operator needs to know of a fault.
type Meaning struct {
	// What has happened, and what to Do about it.
	What, Do string
	// Urgent says that the GPU needs a hand before it can be relied on.
	Urgent bool
	// Spoils says that what works on the GPU cannot go on, so that it must be let go of and opened anew, where that is
	// possible. Faults that the process meets itself, as errors of its calls, are not among them.
	Spoils bool
}

// Known reports whether Meaning has more to say than the number.
func (e Event) Known() bool {
	_, known := xids()[e.Code]
	return known || e.Kind != XID
}

// Meaning is what the event means.
func (e Event) Meaning() Meaning {
	switch e.Kind {
	case DoubleBit:
		return xids()[48]
	case Lost:
		return Meaning{"the GPU does not answer", restartMachine, true, true}
	}
	if m, known := xids()[e.Code]; known {
		return m
	}
	return Meaning{What: "not in trctl's list", Do: "see NVIDIA's list of Xid errors, and the driver's log (dmesg)"}
}

// Condemns says that the GPU must not be used until somebody has looked at it: it is lost, or has memory errors that hit more
// than one process, and what a process can do about that, to open it anew, does not help. A memory error that was contained in
// one process (94) is no such fault, however often it comes.
func (e Event) Condemns() bool {
	switch e.Kind {
	case Lost, DoubleBit:
		return true
	case XID:
		return slices.Contains([]uint64{48, 64, 79, 95, 119, 120}, e.Code)
	}
	return false
}

// Label is a short name of the event, one of a bounded number: its Xid, "other" for one that is not known, or its kind.
func (e Event) Label() string {
	switch {
	case e.Kind != XID:
		return string(e.Kind)
	case e.Known():
		return strconv.FormatUint(e.Code, 10)
	}
	return otherLabel
}

const otherLabel = "other"

// Labels are all values of Event.Label.
func Labels() []string {
	list := []string{string(DoubleBit), string(Lost), otherLabel}
	for code := range xids() {
		list = append(list, strconv.FormatUint(code, 10))
	}
	return list
}

// String is the event for a log: "Xid 79 (the GPU has fallen off the bus) on GPU-…".
func (e Event) String() string {
	on := e.UUID
	if on == "" {
		on = "an unknown GPU"
	}
	if e.Kind == XID {
		return fmt.Sprintf("Xid %d (%s) on %s", e.Code, e.Meaning().What, on)
	}
	return fmt.Sprintf("%s on %s", e.Meaning().What, on)
}

// What to do, where several faults have it in common.
const (
	byItself = "nothing: replicas that it hit start again by themselves. If it comes again and again, report it with this log and the driver's (dmesg); " +
		"other programs on this GPU may be the cause too"
	resetGPU       = "take the GPU out of use (trctl drain, then stop trctl), and reset it (nvidia-smi --gpu-reset) or restart the machine; replace it if this comes again"
	restartMachine = "take the machine out of use (trctl drain, then stop trctl) and restart it; if this comes again, check the GPU's power and slot, or replace it"
)

// xids are the faults that an operator should know, or act on. What to do is in line with NVIDIA's list of Xid errors for
// GPUs since Ampere. Numbers that are missing are told by number alone.
//
// A contained memory error (94), and the faults of kernels, are not among those that spoil the GPU: the process that they
// hit gets them as errors of its own calls, and others on the GPU go on. After a failed remap (64) the GPU works on, so
// letting go of it would gain nothing.
func xids() map[uint64]Meaning {
	return map[uint64]Meaning{
		13:  {"exception in a kernel", byItself, false, false},
		31:  {"a kernel touched memory that is not mapped", byItself, false, false},
		43:  {"the work of a process was stopped after its fault", byItself, false, false},
		45:  {"the work of a process was removed, after another fault or because it was killed", byItself, false, false},
		46:  {"the GPU has stopped working", resetGPU, true, false},
		48:  {"memory error that cannot be corrected", resetGPU, true, true},
		62:  {"a controller in the GPU has halted", resetGPU, true, false},
		63:  {"a bad piece of memory will be replaced by a spare one", "reset the GPU (nvidia-smi --gpu-reset) when convenient, so that it takes effect", false, false},
		64:  {"a bad piece of memory cannot be replaced by a spare one", resetGPU, true, false},
		68:  {"exception in a video decoder", byItself, false, false},
		69:  {"exception in the compute or graphics engine", byItself, false, false},
		74:  {"fault of an NVLink", "see nvidia-smi nvlink --status, and faults of the other GPUs at the same time; then " + resetGPU, true, false},
		79:  {"the GPU has fallen off the bus", restartMachine, true, true},
		92:  {"memory errors that could be corrected come often", "nothing at once; have the GPU checked if it stays so", false, false},
		94:  {"memory error that was contained in one process", "nothing at once: replicas that it hit start again by themselves. Reset the GPU (nvidia-smi --gpu-reset) when convenient", false, false},
		95:  {"memory error that was not contained in one process", resetGPU, true, true},
		109: {"the GPU did not switch between programs in time", resetGPU, true, false},
		119: {"the GPU's system processor does not answer", resetGPU + "; a newer driver may help", true, true},
		120: {"fault in the GPU's system processor", resetGPU + "; a newer driver may help", true, true},
		140: {"memory error that the driver could not deal with", resetGPU, true, false},
		143: {"the GPU could not be initialised", resetGPU, true, false},
		154: {"the driver's advice on recovery has changed", "see the driver's log (dmesg), which has the advice in words", false, false},
		158: {"a time limit inside the GPU has passed", resetGPU, true, false},
		171: {"more on a memory error that cannot be corrected: in the GPU's DRAM", "see Xid 48", false, false},
		172: {"more on a memory error that cannot be corrected: in the GPU's SRAM", "see Xid 48", false, false},
	}
}
