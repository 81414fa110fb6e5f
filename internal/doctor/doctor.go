package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/inventory"
)

// Host is what the machine is.
type Host struct {
	GoVersion, OS, Arch string
	// CPUs is the number of cores that the process may use.
	CPUs int
	// CPU lists the features that the CPU backend looks for, and whether each is there.
	CPU []Feature
	// MemoryBytes is the machine's memory, 0 when unknown.
	MemoryBytes uint64
	// Cgo is false in a build that cannot load libraries.
	Cgo bool
}

// Feature is an instruction set.
type Feature struct {
	Name    string
	Present bool
}

// DriverFacts is what libcuda says.
type DriverFacts struct {
	// Version is the newest CUDA version that it supports, as 1000·major + 10·minor.
	Version int
	// Release is that of the kernel driver, such as "580.95.05"; empty when the machine does not say.
	Release string
	// Devices is the number of GPUs that CUDA shows to this process.
	Devices int
	// GPUs are these devices in the driver's order: name, identity, compute capability and memory. What only NVML knows
	// is zero.
	GPUs []inventory.GPU
	// Peerless lists the pairs of devices that cannot reach each other's memory, as "0-1".
	Peerless []string
}

// LibraryFacts is a loaded library.
type LibraryFacts struct{ Version, Path string }

// InventoryFacts is what NVML says.
type InventoryFacts struct {
	Versions inventory.Versions
	GPUs     []inventory.GPU
}

// CacheFacts is the state of the cubin cache.
type CacheFacts struct {
	Dir      string
	ReadOnly bool
	// Entries is the number of kernels in it.
	Entries int
}

// Prober looks at a machine. Every field must be set; ThisMachine sets them all. maxMajor is the newest major version of
// CUDA that the driver takes, 0 when there is no driver.
type Prober struct {
	Host      func() Host
	Driver    func() (DriverFacts, error)
	Inventory func() (InventoryFacts, error)
	NVRTC     func(maxMajor int) (LibraryFacts, error)
	CuBLASLt  func(maxMajor int) (LibraryFacts, error)
	Cache     func() (CacheFacts, error)
}

// Run looks at everything and judges it.
func Run(p Prober) Report {
	var r Report
	host := p.Host()
	r.add(checkHost(host))
	r.add(checkCPU(host))
	facts, driverErr := p.Driver()
	hasDriver := driverErr == nil
	r.add(checkDriver(host, facts, driverErr))
	inventoryFacts, err := p.Inventory()
	r.GPUs = inventoryFacts.GPUs
	if errors.Is(err, inventory.ErrNoNVML) {
		r.GPUs = facts.GPUs
	}
	r.add(checkInventory(inventoryFacts, err, hasDriver))
	for _, g := range r.GPUs {
		r.add(checkGPU(g))
	}
	if hasDriver && facts.Devices > 1 {
		r.add(checkPeers(facts))
	}
	maxMajor := facts.Version / 1000
	cache, cacheErr := p.Cache()
	library, nvrtcErr := p.NVRTC(maxMajor)
	r.add(checkNVRTC(library, nvrtcErr, hasDriver, cache.Entries, maxMajor))
	library, err = p.CuBLASLt(maxMajor)
	r.add(checkCuBLASLt(library, err, maxMajor))
	r.add(checkCache(cache, cacheErr, nvrtcErr == nil))
	r.Backend = "cpu"
	if hasDriver && (nvrtcErr == nil || cache.Entries > 0) {
		r.Backend = "cuda"
	}
	return r
}

func (r *Report) add(c Check) { r.Checks = append(r.Checks, c) }

func checkHost(h Host) Check {
	c := Check{Name: "host", Status: OK, Detail: fmt.Sprintf("%s %s, %s, %d CPU(s)", h.OS, h.Arch, h.GoVersion, h.CPUs)}
	if h.MemoryBytes > 0 {
		c.Detail += ", " + gigabytes(h.MemoryBytes)
	}
	if !h.Cgo {
		c.Status = Warn
		c.Detail += ", built without cgo"
		c.Fix = "use a build with CGO_ENABLED=1 on Linux to reach GPUs; this one serves with the CPU backend"
	}
	return c
}

func checkCPU(h Host) Check {
	var have, lack []string
	for _, f := range h.CPU {
		if f.Present {
			have = append(have, f.Name)
		} else {
			lack = append(lack, f.Name)
		}
	}
	c := Check{Name: "cpu", Status: OK, Detail: "has " + strings.Join(have, ", ")}
	if len(have) == 0 {
		c.Detail = "no known vector features"
	}
	if len(lack) > 0 {
		c.Detail += "; lacks " + strings.Join(lack, ", ")
	}
	for _, f := range h.CPU {
		if (f.Name == "avx2" || f.Name == "fma") && !f.Present {
			c.Status = Warn
			c.Fix = "the CPU backend runs its plain kernels, about ten times slower: use a CPU with AVX2 and FMA"
		}
	}
	return c
}

func checkDriver(h Host, f DriverFacts, err error) Check {
	c := Check{Name: "driver", Status: OK}
	var old *driver.OldDriverError
	switch {
	case err == nil:
		c.Detail = fmt.Sprintf("CUDA %d.%d, %d GPU(s)", f.Version/1000, f.Version%1000/10, f.Devices)
		if f.Release != "" {
			c.Detail = f.Release + ", " + c.Detail
		}
	case errors.As(err, &old):
		c.Status, c.Detail = Fail, err.Error()
		c.Fix = "install an NVIDIA driver of version 525 or newer"
	case errors.Is(err, driver.ErrNoDevice):
		c.Status, c.Detail = Warn, err.Error()
		c.Fix = "no GPU is visible: pass one into the container (--gpus all), or check CUDA_VISIBLE_DEVICES and lspci; without one the CPU backend serves"
	case errors.Is(err, driver.ErrNoDriver) && !h.Cgo:
		c.Status, c.Detail = Warn, "built without cgo"
		c.Fix = "see host"
	case errors.Is(err, driver.ErrNoDriver):
		c.Status, c.Detail = Warn, err.Error()
		c.Fix = "to use a GPU install the NVIDIA driver (libcuda.so.1), version 525 or newer, and in a container the NVIDIA container toolkit; without one the CPU backend serves"
	default:
		c.Status, c.Detail = Fail, err.Error()
		c.Fix = "the driver does not start: see the kernel log (dmesg) for NVRM messages, and restart the machine after a driver update"
	}
	return c
}

func checkInventory(f InventoryFacts, err error, hasDriver bool) Check {
	c := Check{Name: "nvml", Status: OK}
	switch {
	case err == nil:
		c.Detail = fmt.Sprintf("driver %s, %d GPU(s)", f.Versions.Driver, len(f.GPUs))
	case errors.Is(err, inventory.ErrNotBuilt) && !hasDriver:
		c.Detail = "not in this build; only GPUs need it"
	case errors.Is(err, inventory.ErrNotBuilt):
		c.Status, c.Detail = Warn, "not in this build: temperature, memory errors and faults (Xid) of the GPUs are not seen, nor logged while trctl serves"
		c.Fix = "to see them build by " + inventory.BuildCommand
	case errors.Is(err, inventory.ErrNoNVML) && !hasDriver:
		c.Status, c.Detail = Warn, err.Error()
		c.Fix = "comes with the NVIDIA driver"
	case errors.Is(err, inventory.ErrNoNVML):
		c.Status, c.Detail = Warn, err.Error()
		c.Fix = "install libnvidia-ml.so.1 of the driver's version (in a container: the driver capability \"utility\"); without it faults (Xid) of the GPUs are not logged while trctl serves"
	default:
		c.Status, c.Detail = Fail, err.Error()
		c.Fix = "a GPU does not answer: see the kernel log (dmesg) for Xid messages; a reset or a restart may be needed"
	}
	return c
}

// minCompute is the oldest architecture with kernels.
const minCompute = 8

func checkGPU(g inventory.GPU) Check {
	c := Check{Name: fmt.Sprintf("gpu %d", g.Index), Status: OK}
	c.Detail = fmt.Sprintf("%s, compute %d.%d, ", g.Name, g.ComputeMajor, g.ComputeMinor)
	// The driver alone knows neither how much is in use nor the temperature; a device always has some memory in use.
	seen := g.MemoryUsed > 0
	if seen {
		c.Detail += fmt.Sprintf("%s free of %s, %d °C", gigabytes(g.MemoryFree), gigabytes(g.MemoryTotal), g.Temperature)
	} else {
		c.Detail += gigabytes(g.MemoryTotal)
	}
	switch {
	case g.ComputeMajor > 0 && g.ComputeMajor < minCompute:
		c.Status, c.Fix = Fail, "kernels need compute capability 8.0 (A100) or newer: leave this GPU out with --gpus"
	case g.MIG:
		c.Status, c.Fix = Warn, "MIG is on: the engine plans for whole GPUs and uses the first instance only; switch MIG off, or pass one instance to each worker"
	case g.ECC.Uncorrectable > 0:
		c.Detail += fmt.Sprintf(", %d uncorrectable memory error(s)", g.ECC.Uncorrectable)
		c.Status, c.Fix = Warn, "reset the GPU or restart the machine, and replace the GPU if the errors come back"
	case seen && !g.Faults:
		c.Detail += ", does not tell of its faults"
		c.Status, c.Fix = Warn, "faults (Xid) of this GPU are not logged while trctl serves: look for them in the kernel log (dmesg)"
	case seen && g.MemoryFree < g.MemoryTotal/10*9:
		c.Status, c.Fix = Warn, "another process holds memory (see nvidia-smi): a worker that starts now gets less KV cache"
	}
	return c
}

func checkPeers(f DriverFacts) Check {
	c := Check{Name: "peers", Status: OK, Detail: fmt.Sprintf("all %d GPUs reach each other's memory", f.Devices)}
	if len(f.Peerless) > 0 {
		c.Status = Warn
		c.Detail = "no peer access between " + strings.Join(f.Peerless, ", ")
		c.Fix = "tensor parallel across these pairs is slow: place its ranks on GPUs joined by NVLink, or switch IOMMU/ACS off for PCIe peers"
	}
	return c
}

// pipSuffix is the part of a Python wheel's name for a major version of CUDA.
func pipSuffix(maxMajor int) string {
	if maxMajor == 12 {
		return "-cu12"
	}
	return ""
}

func checkNVRTC(f LibraryFacts, err error, hasDriver bool, cached, maxMajor int) Check {
	c := Check{Name: "nvrtc", Status: OK}
	if err == nil {
		c.Detail = fmt.Sprintf("version %s, %s", f.Version, f.Path)
		return c
	}
	c.Status, c.Detail = Warn, err.Error()
	switch {
	case cached > 0:
		c.Detail += "; kernels come from the cubin cache alone"
	case hasDriver:
		c.Status = Fail
	}
	c.Fix = fmt.Sprintf("to compile kernels install NVRTC: the CUDA toolkit, or the wheel nvidia-cuda-nvrtc%s; or ship a cubin cache filled by trctl kernels build", pipSuffix(maxMajor))
	return c
}

func checkCuBLASLt(f LibraryFacts, err error, maxMajor int) Check {
	if err == nil {
		return Check{Name: "cublaslt", Status: OK, Detail: fmt.Sprintf("version %s, %s", f.Version, f.Path)}
	}
	return Check{
		Name: "cublaslt", Status: Warn, Detail: err.Error(),
		Fix: fmt.Sprintf("optional, for fast prefill: install cuBLAS from the CUDA toolkit or the wheel nvidia-cublas%s", pipSuffix(maxMajor)),
	}
}

func checkCache(f CacheFacts, err error, hasNVRTC bool) Check {
	c := Check{Name: "cubin cache", Status: OK, Detail: fmt.Sprintf("%s, %d kernel file(s)", f.Dir, f.Entries)}
	switch {
	case err != nil:
		c.Status, c.Detail = Warn, err.Error()
		c.Fix = "give a folder that can be written; without it every start compiles all kernels"
	case f.ReadOnly && hasNVRTC:
		c.Status = Warn
		c.Detail += ", read-only"
		c.Fix = "make the folder writable, or fill it with trctl kernels build; kernels that it lacks are compiled at every start"
	case f.ReadOnly:
		c.Detail += ", read-only"
	}
	return c
}

func gigabytes(bytes uint64) string { return fmt.Sprintf("%.1f GB", float64(bytes)/1e9) }
