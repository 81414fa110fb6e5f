//go:build linux && cgo && nvml

package inventory

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// nvmlLibrary is the library of the machine.
type nvmlLibrary struct{ api nvml.Interface }

func newLibrary() library { return nvmlLibrary{api: nvml.New()} }

// wrap turns a result of NVML into an error, nil for success.
func wrap(op string, r nvml.Return) error {
	switch r {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return fmt.Errorf("%w: libnvidia-ml.so.1 cannot be loaded", ErrNoNVML)
	case nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_NO_PERMISSION:
		return fmt.Errorf("%w: %s: %v", ErrNoNVML, op, r)
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED:
		return fmt.Errorf("%w: %s: %v", ErrGPULost, op, r)
	}
	return fmt.Errorf("nvml: %s: %w", op, r)
}

func (l nvmlLibrary) init() error     { return wrap("start", l.api.Init()) }
func (l nvmlLibrary) shutdown() error { return wrap("shut down", l.api.Shutdown()) }

func (l nvmlLibrary) versions() (Versions, error) {
	driver, r := l.api.SystemGetDriverVersion()
	if err := wrap("read driver version", r); err != nil {
		return Versions{}, err
	}
	cuda, r := l.api.SystemGetCudaDriverVersion()
	return Versions{Driver: driver, CUDA: cuda}, wrap("read CUDA version", r)
}

func (l nvmlLibrary) count() (int, error) {
	n, r := l.api.DeviceGetCount()
	return n, wrap("count devices", r)
}

func (l nvmlLibrary) gpu(index int) (GPU, error) {
	d, r := l.api.DeviceGetHandleByIndex(index)
	if err := wrap("get device", r); err != nil {
		return GPU{}, err
	}
	g := GPU{Index: index}
	var rName, rUUID, rMemory nvml.Return
	g.Name, rName = d.GetName()
	g.UUID, rUUID = d.GetUUID()
	memory, rMemory := d.GetMemoryInfo()
	err := errors.Join(wrap("read name", rName), wrap("read uuid", rUUID), wrap("read memory", rMemory))
	if err != nil {
		return GPU{}, err
	}
	g.MemoryTotal, g.MemoryFree, g.MemoryUsed = memory.Total, memory.Free, memory.Used
	optional(d, &g)
	return g, nil
}

// optional reads what some devices do not have; it leaves zeros then.
func optional(d nvml.Device, g *GPU) {
	if pci, r := d.GetPciInfo(); r == nvml.SUCCESS {
		g.PCIBusID = charText(pci.BusId[:])
	}
	if major, minor, r := d.GetCudaComputeCapability(); r == nvml.SUCCESS {
		g.ComputeMajor, g.ComputeMinor = major, minor
	}
	if celsius, r := d.GetTemperature(nvml.TEMPERATURE_GPU); r == nvml.SUCCESS {
		g.Temperature = int(celsius)
	}
	if milliwatts, r := d.GetPowerUsage(); r == nvml.SUCCESS {
		g.Power = float64(milliwatts) / 1000
	}
	if rates, r := d.GetUtilizationRates(); r == nvml.SUCCESS {
		g.Utilization = float64(rates.Gpu) / 100
	}
	if mode, _, r := d.GetMigMode(); r == nvml.SUCCESS {
		g.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	if types, r := d.GetSupportedEventTypes(); r == nvml.SUCCESS {
		g.Faults = types&faultTypes != 0
	}
	if mode, _, r := d.GetEccMode(); r != nvml.SUCCESS || mode != nvml.FEATURE_ENABLED {
		return
	}
	g.ECC.Enabled = true
	if n, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC); r == nvml.SUCCESS {
		g.ECC.Corrected = n
	}
	if n, r := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC); r == nvml.SUCCESS {
		g.ECC.Uncorrectable = n
	}
}

// charText reads a C string from an array of char.
func charText(chars []int8) string {
	var out []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		out = append(out, byte(c))
	}
	return string(out)
}
