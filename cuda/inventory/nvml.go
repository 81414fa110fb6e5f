//go:build linux && cgo && nvml

package inventory

import (
	"errors"
	"fmt"
	"time"

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

func (l nvmlLibrary) watch(count int) (watcher, error) {
	set, r := l.api.EventSetCreate()
	if err := wrap("create event set", r); err != nil {
		return nil, err
	}
	for i := range count {
		d, r := l.api.DeviceGetHandleByIndex(i)
		if r == nvml.SUCCESS {
			var supported uint64
			supported, r = d.GetSupportedEventTypes()
			if types := supported & (nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError); r == nvml.SUCCESS && types != 0 {
				r = d.RegisterEvents(types, set)
			}
		}
		// A device without events is watched by nobody, which is all that can be had from it.
		if r != nvml.SUCCESS && r != nvml.ERROR_NOT_SUPPORTED {
			return nil, errors.Join(wrap(fmt.Sprintf("register for events of device %d", i), r), wrap("free event set", set.Free()))
		}
	}
	return nvmlWatcher{set: set}, nil
}

type nvmlWatcher struct{ set nvml.EventSet }

func (w nvmlWatcher) close() error { return wrap("free event set", w.set.Free()) }

func (w nvmlWatcher) next(wait time.Duration) (Event, bool, error) {
	data, r := w.set.Wait(uint32(wait.Milliseconds()))
	if r == nvml.ERROR_TIMEOUT {
		return Event{}, false, nil
	}
	if err := wrap("wait for event", r); err != nil {
		return Event{}, false, err
	}
	e := Event{Kind: DoubleBit, Index: -1}
	if data.EventType == nvml.EventTypeXidCriticalError {
		e.Kind, e.Code = XID, data.EventData
	}
	if data.Device == nil {
		return e, true, nil
	}
	if uuid, r := data.Device.GetUUID(); r == nvml.SUCCESS {
		e.UUID = uuid
	}
	if index, r := data.Device.GetIndex(); r == nvml.SUCCESS {
		e.Index = index
	}
	return e, true, nil
}
