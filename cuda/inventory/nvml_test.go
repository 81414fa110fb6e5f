//go:build linux && cgo && nvml

package inventory

import (
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// mockDevice is an H200 whose optional queries answer with r.
func mockDevice(r nvml.Return) *mock.Device {
	return &mock.Device{
		GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetUUIDFunc: func() (string, nvml.Return) { return "GPU-1", nvml.SUCCESS },
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 100, Free: 60, Used: 40}, nvml.SUCCESS
		},
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{BusId: [32]int8{'0', ':', '1', 0, 'x'}}, r
		},
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, r },
		GetTemperatureFunc:           func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 45, r },
		GetPowerUsageFunc:            func() (uint32, nvml.Return) { return 123500, r },
		GetUtilizationRatesFunc:      func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{Gpu: 25}, r },
		GetMigModeFunc:               func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, r },
		GetEccModeFunc: func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
			return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, r
		},
		GetTotalEccErrorsFunc: func(k nvml.MemoryErrorType, _ nvml.EccCounterType) (uint64, nvml.Return) {
			if k == nvml.MEMORY_ERROR_TYPE_CORRECTED {
				return 7, r
			}
			return 2, r
		},
		GetSupportedEventTypesFunc: func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError | 1<<20, r },
		RegisterEventsFunc:         func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS },
	}
}

func mockLibrary(d *mock.Device, set *mock.EventSet) nvmlLibrary {
	return nvmlLibrary{api: &mock.Interface{
		InitFunc:                       func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:                   func() nvml.Return { return nvml.SUCCESS },
		DeviceGetCountFunc:             func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc:     func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
		SystemGetDriverVersionFunc:     func() (string, nvml.Return) { return "580.95.05", nvml.SUCCESS },
		SystemGetCudaDriverVersionFunc: func() (int, nvml.Return) { return 13000, nvml.SUCCESS },
		EventSetCreateFunc:             func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS },
	}}
}

func TestNVMLDevice(t *testing.T) {
	v, err := open(mockLibrary(mockDevice(nvml.SUCCESS), nil))
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := v.GPUs()
	want := GPU{
		Name: "NVIDIA H200", UUID: "GPU-1", PCIBusID: "0:1", ComputeMajor: 9, MemoryTotal: 100, MemoryFree: 60, MemoryUsed: 40,
		Temperature: 45, Power: 123.5, Utilization: 0.25, Faults: true, ECC: ECC{Enabled: true, Corrected: 7, Uncorrectable: 2}, MIG: true,
	}
	if err != nil || len(gpus) != 1 || gpus[0] != want {
		t.Errorf("got %+v, %v", gpus, err)
	}
	if got, err := v.Versions(); err != nil || got != (Versions{Driver: "580.95.05", CUDA: 13000}) {
		t.Errorf("versions %+v, %v", got, err)
	}
	if err := v.Close(); err != nil {
		t.Error(err)
	}
}

func TestNVMLPoorDevice(t *testing.T) {
	v, err := open(mockLibrary(mockDevice(nvml.ERROR_NOT_SUPPORTED), nil))
	if err != nil {
		t.Fatal(err)
	}
	gpus, err := v.GPUs()
	want := GPU{Name: "NVIDIA H200", UUID: "GPU-1", MemoryTotal: 100, MemoryFree: 60, MemoryUsed: 40}
	if err != nil || len(gpus) != 1 || gpus[0] != want {
		t.Errorf("got %+v, %v", gpus, err)
	}
}

func TestNVMLErrors(t *testing.T) {
	tests := map[nvml.Return]error{
		nvml.SUCCESS: nil, nvml.ERROR_LIBRARY_NOT_FOUND: ErrNoNVML, nvml.ERROR_DRIVER_NOT_LOADED: ErrNoNVML,
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: ErrNoNVML, nvml.ERROR_GPU_IS_LOST: ErrGPULost,
		nvml.ERROR_RESET_REQUIRED: ErrGPULost, nvml.ERROR_UNKNOWN: nvml.ERROR_UNKNOWN,
	}
	for r, want := range tests {
		if got := wrap("do it", r); !errors.Is(got, want) {
			t.Errorf("%v: got %v, want %v", int(r), got, want)
		}
	}
	d := mockDevice(nvml.SUCCESS)
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	if _, err := mockLibrary(d, nil).gpu(0); !errors.Is(err, ErrGPULost) {
		t.Errorf("lost: %v", err)
	}
}

func TestNVMLEvents(t *testing.T) {
	d, other := mockDevice(nvml.SUCCESS), mockDevice(nvml.SUCCESS)
	results := []struct {
		data nvml.EventData
		r    nvml.Return
	}{
		{nvml.EventData{}, nvml.ERROR_TIMEOUT},
		{nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: 31}, nvml.SUCCESS},
		{nvml.EventData{EventType: nvml.EventTypeDoubleBitEccError}, nvml.SUCCESS},
		{nvml.EventData{}, nvml.ERROR_GPU_IS_LOST},
		{nvml.EventData{}, nvml.ERROR_GPU_IS_LOST},
	}
	freed := 0
	set := &mock.EventSet{
		FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS },
		WaitFunc: func(ms uint32) (nvml.EventData, nvml.Return) {
			if ms != 1500 {
				t.Errorf("waits %d ms", ms)
			}
			next := results[0]
			results = results[1:]
			return next.data, next.r
		},
	}
	l := mockLibrary(d, set)
	l.api.(*mock.Interface).DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		switch uuid {
		case "GPU-1":
			return d, nvml.SUCCESS
		case "GPU-2":
			return other, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	events, err := openEvents(l)
	if err != nil {
		t.Fatal(err)
	}
	for _, uuid := range []string{"GPU-1", "GPU-2"} {
		if err := events.Add(uuid); err != nil {
			t.Fatal(err)
		}
	}
	if calls := d.RegisterEventsCalls(); len(calls) != 1 || calls[0].V != nvml.EventTypeXidCriticalError {
		t.Errorf("registered %+v", calls)
	}
	const wait = 1500 * time.Millisecond
	if _, ok, err := events.Next(wait); ok || err != nil {
		t.Errorf("time-out: %v %v", ok, err)
	}
	if e, ok, err := events.Next(wait); !ok || err != nil || e != (Event{Kind: XID, Code: 31, UUID: "GPU-1"}) {
		t.Errorf("xid: %+v %v %v", e, ok, err)
	}
	if e, ok, err := events.Next(wait); !ok || err != nil || e != (Event{Kind: DoubleBit}) {
		t.Errorf("double bit: %+v %v %v", e, ok, err)
	}
	// A lost device does not say any more who it is. It is told of once; then the waits fail.
	d.GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
	if e, ok, err := events.Next(wait); !ok || err != nil || e != (Event{Kind: Lost, UUID: "GPU-1"}) {
		t.Errorf("lost: %+v %v %v", e, ok, err)
	}
	if _, _, err := events.Next(wait); !errors.Is(err, ErrGPULost) {
		t.Errorf("lost: %v", err)
	}
	if err := events.Close(); err != nil || freed != 1 {
		t.Errorf("close: %v, freed %d times", err, freed)
	}
}

func TestNVMLDevicesWithoutEvents(t *testing.T) {
	supported := func(types uint64, r nvml.Return) func(*mock.Device) {
		return func(d *mock.Device) { d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return types, r } }
	}
	register := func(r nvml.Return) func(*mock.Device) {
		return func(d *mock.Device) { d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return r } }
	}
	tests := map[string]struct {
		change func(*mock.Device)
		found  nvml.Return
		want   error
	}{
		"other types":         {supported(nvml.EventTypePState, nvml.SUCCESS), nvml.SUCCESS, ErrNoEvents},
		"no types":            {supported(0, nvml.ERROR_NOT_SUPPORTED), nvml.SUCCESS, ErrNoEvents},
		"types unknown":       {supported(0, nvml.ERROR_UNKNOWN), nvml.SUCCESS, nvml.ERROR_UNKNOWN},
		"cannot be asked":     {register(nvml.ERROR_NOT_SUPPORTED), nvml.SUCCESS, ErrNoEvents},
		"registration failed": {register(nvml.ERROR_UNKNOWN), nvml.SUCCESS, nvml.ERROR_UNKNOWN},
		"lost":                {register(nvml.SUCCESS), nvml.ERROR_GPU_IS_LOST, ErrGPULost},
		"not there":           {register(nvml.SUCCESS), nvml.ERROR_NOT_FOUND, nvml.ERROR_NOT_FOUND},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := mockDevice(nvml.SUCCESS)
			tt.change(d)
			l := mockLibrary(d, &mock.EventSet{FreeFunc: func() nvml.Return { return nvml.SUCCESS }})
			l.api.(*mock.Interface).DeviceGetHandleByUUIDFunc = func(string) (nvml.Device, nvml.Return) { return d, tt.found }
			events, err := openEvents(l)
			if err != nil {
				t.Fatal(err)
			}
			if err := events.Add("GPU-1"); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if err := events.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
