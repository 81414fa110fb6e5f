package inventory

import (
	"errors"
	"fmt"
)

var (
	// ErrNoNVML means that NVML is absent, finds no kernel driver, or was not built in.
	ErrNoNVML = errors.New("NVML is not available")
	// ErrNotBuilt means that this build has no NVML in it, whatever the machine has. It is an ErrNoNVML too, and says how
	// to make a build that has it.
	ErrNotBuilt = fmt.Errorf("%w: not in this build, make one on Linux by %s", ErrNoNVML, BuildCommand)
	// ErrNoEvents means that a device does not tell of its faults.
	ErrNoEvents = errors.New("the GPU does not tell of its faults")
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
	// Faults is set when the device tells of its faults (Xid).
	Faults bool `json:"faults"`
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

// library is NVML as this package needs it. nvmlLibrary is the real one; tests have their own.
type library interface {
	// init returns an error that wraps ErrNoNVML when there is nothing to ask.
	init() error
	shutdown() error
	versions() (Versions, error)
	count() (int, error)
	gpu(index int) (GPU, error)
	events() (eventSet, error)
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

// Close ends NVML.
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
