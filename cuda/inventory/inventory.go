package inventory

import (
	"context"
	"errors"
	"fmt"
	"time"
)

var (
	// ErrNoNVML means that NVML is absent, finds no kernel driver, or was not built in.
	ErrNoNVML = errors.New("NVML is not available")
	// ErrNotBuilt means that this build has no NVML in it, whatever the machine has. It is an ErrNoNVML too, and says how
	// to make a build that has it.
	ErrNotBuilt = fmt.Errorf("%w: not in this build, make one on Linux by %s", ErrNoNVML, BuildCommand)
	// ErrGPULost means that a GPU has fallen off the bus or needs a reset.
	ErrGPULost = errors.New("GPU is lost")
)

// BuildCommand makes a trctl with NVML in it. The flags silence warnings about deprecated calls in the binding of NVML,
// whose C code takes some 20 s to compile; this is why it is not in every build.
const BuildCommand = `CGO_CFLAGS="-g -O2 -Wno-deprecated-declarations" go build -tags nvml ./cmd/trctl`

// GPU is one device at one moment. Numbers that the device does not offer are zero.
type GPU struct {
	// Index is NVML's number, in bus order.
	Index int `json:"index"`
	// Name is the product, UUID the identity, such as "GPU-8-4-4-4-12", PCIBusID the address.
	Name     string `json:"name"`
	UUID     string `json:"uuid"`
	PCIBusID string `json:"pci_bus_id"`
	// ComputeMajor and ComputeMinor are 9 and 0 for an H200.
	ComputeMajor int `json:"compute_major"`
	ComputeMinor int `json:"compute_minor"`
	// Memory in bytes. Used includes what the driver reserves.
	MemoryTotal uint64 `json:"memory_total_bytes"`
	MemoryFree  uint64 `json:"memory_free_bytes"`
	MemoryUsed  uint64 `json:"memory_used_bytes"`
	// Temperature is in degrees Celsius, Power in watts, Utilization the busy share of the last second in 0..1.
	Temperature int     `json:"temperature_celsius"`
	Power       float64 `json:"power_watts"`
	Utilization float64 `json:"utilization"`
	// ECC counts memory errors since the driver was loaded.
	ECC ECC `json:"ecc"`
	// MIG is set when the device is cut into instances; the engine then cannot use it whole.
	MIG bool `json:"mig"`
}

// ECC is the state of a device's memory protection.
type ECC struct {
	// Enabled is false also when the device has none.
	Enabled       bool   `json:"enabled"`
	Corrected     uint64 `json:"corrected"`
	Uncorrectable uint64 `json:"uncorrectable"`
}

// Versions are what is installed.
type Versions struct {
	// Driver is the kernel driver, such as "580.95.05".
	Driver string `json:"driver"`
	// CUDA is the newest version that the driver supports, as 1000·major + 10·minor.
	CUDA int `json:"cuda"`
}

// Kind says what an Event is about.
type Kind string

const (
	// XID is a fault reported by the driver; Event.Code is its number.
	XID Kind = "xid"
	// DoubleBit is an uncorrectable memory error.
	DoubleBit Kind = "double-bit-ecc"
	// Lost means that the device no longer answers.
	Lost Kind = "lost"
)

// Event is one fault of a device.
type Event struct {
	Kind Kind
	// UUID and Index name the device; UUID is empty when the device no longer answers.
	UUID  string
	Index int
	// Code is the Xid number, 0 for other kinds.
	Code uint64
}

// Fatal reports whether the device must not be used any more until it is reset, rather than only the process that
// caused the fault.
func (e Event) Fatal() bool {
	if e.Kind != XID {
		return true
	}
	fault, known := xids[e.Code]
	return !known || fault.fatal
}

// String is the event for a log: "Xid 79 (GPU has fallen off the bus) on GPU-…".
func (e Event) String() string {
	switch e.Kind {
	case XID:
		meaning := "unknown"
		if fault, known := xids[e.Code]; known {
			meaning = fault.meaning
		}
		return fmt.Sprintf("Xid %d (%s) on %s", e.Code, meaning, e.UUID)
	case Lost:
		return fmt.Sprintf("GPU %d does not answer", e.Index)
	}
	return fmt.Sprintf("uncorrectable memory error on %s", e.UUID)
}

type xid struct {
	meaning string
	fatal   bool
}

// xids lists the faults worth telling apart. A number that is not listed counts as fatal, because stopping too much is
// the lesser harm.
var xids = map[uint64]xid{
	13:  {"exception of a kernel", false},
	31:  {"kernel touched unmapped memory", false},
	43:  {"kernel stopped after a fault of its process", false},
	45:  {"work removed after a fault or a kill", false},
	48:  {"uncorrectable memory error", true},
	61:  {"internal controller stopped", true},
	62:  {"internal controller halted", true},
	63:  {"memory row was remapped", false},
	64:  {"memory row could not be remapped", true},
	68:  {"exception of the video unit", false},
	69:  {"exception of the graphics unit", false},
	74:  {"NVLink fault", true},
	79:  {"GPU has fallen off the bus", true},
	92:  {"many correctable memory errors", false},
	94:  {"contained memory error", false},
	95:  {"memory error that was not contained", true},
	119: {"system processor does not answer", true},
	120: {"system processor fault", true},
	140: {"unrecovered memory error", true},
	143: {"initialisation fault", true},
}

// library is NVML as this package needs it. nvmlLibrary is the real one; tests have their own.
type library interface {
	// init returns an error that wraps ErrNoNVML when there is nothing to ask.
	init() error
	shutdown() error
	versions() (Versions, error)
	count() (int, error)
	gpu(index int) (GPU, error)
	// watch registers for the faults of all devices.
	watch(count int) (watcher, error)
}

// watcher waits for faults.
type watcher interface {
	// next waits at most the time for one event; ok is false when none came.
	next(wait time.Duration) (e Event, ok bool, err error)
	close() error
}

// Inventory is an open NVML. It is safe for concurrent use.
type Inventory struct{ lib library }

// Open starts NVML. Close it in the end.
func Open() (*Inventory, error) { return open(newLibrary()) }

func open(lib library) (*Inventory, error) {
	if err := lib.init(); err != nil {
		return nil, err
	}
	return &Inventory{lib: lib}, nil
}

// Close ends NVML. Watch must have returned.
func (v *Inventory) Close() error { return v.lib.shutdown() }

// Versions reads what is installed.
func (v *Inventory) Versions() (Versions, error) { return v.lib.versions() }

// maxGPUs bounds what the library may claim.
const maxGPUs = 256

// GPUs reads every device, in NVML's order. The error joins those of the devices that do not answer; the others are
// returned all the same.
func (v *Inventory) GPUs() ([]GPU, error) {
	n, err := v.count()
	if err != nil {
		return nil, err
	}
	var errs []error
	out := make([]GPU, 0, n)
	for i := range n {
		g, err := v.lib.gpu(i)
		if err != nil {
			errs = append(errs, fmt.Errorf("read GPU %d: %w", i, err))
			continue
		}
		out = append(out, g)
	}
	return out, errors.Join(errs...)
}

func (v *Inventory) count() (int, error) {
	n, err := v.lib.count()
	if err != nil {
		return 0, fmt.Errorf("count GPUs: %w", err)
	}
	if n < 0 || n > maxGPUs {
		return 0, fmt.Errorf("count GPUs: %d is not believable", n)
	}
	return n, nil
}

// watchWait bounds one wait inside NVML, and so how late Watch notices the end of ctx.
const watchWait = time.Second

// Watch sends faults of all devices until ctx ends, then returns nil. It blocks, and waits inside the library on a
// thread of its own. The caller owns and closes the channel; while it is full, Watch waits and NVML keeps later events.
func (v *Inventory) Watch(ctx context.Context, events chan<- Event) error {
	n, err := v.count()
	if err != nil {
		return err
	}
	w, err := v.lib.watch(n)
	if err != nil {
		return fmt.Errorf("watch GPUs: %w", err)
	}
	err = forward(ctx, w, events)
	return errors.Join(err, w.close())
}

func forward(ctx context.Context, w watcher, events chan<- Event) error {
	for ctx.Err() == nil {
		e, ok, err := w.next(watchWait)
		if err != nil && !errors.Is(err, ErrGPULost) {
			return fmt.Errorf("wait for GPU events: %w", err)
		}
		if err != nil {
			e, ok = Event{Kind: Lost, Index: -1}, true
		}
		if !ok {
			continue
		}
		select {
		case events <- e:
		case <-ctx.Done():
		}
		if err != nil {
			return fmt.Errorf("wait for GPU events: %w", err)
		}
	}
	return nil
}
