//go:build linux && cgo && nvml

package inventory

import (
	"errors"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// faultTypes are the events that are faults.
const faultTypes = nvml.EventTypeXidCriticalError | nvml.EventTypeDoubleBitEccError

func (l nvmlLibrary) events() (eventSet, error) {
	set, r := l.api.EventSetCreate()
	if err := wrap("create event set", r); err != nil {
		return nil, err
	}
	return &nvmlEvents{api: l.api, set: set, devices: map[nvml.Device]string{}, lost: map[string]bool{}}, nil
}

// nvmlEvents is an event set with the devices that are registered in it.
type nvmlEvents struct {
	api nvml.Interface
	set nvml.EventSet
	// devices are UUIDs by handle: a device that is lost cannot say its own any more.
	devices map[nvml.Device]string
	// lost are the devices whose loss was told.
	lost map[string]bool
}

func (s *nvmlEvents) close() error { return wrap("free event set", s.set.Free()) }

func (s *nvmlEvents) add(uuid string) error {
	d, r := s.api.DeviceGetHandleByUUID(uuid)
	if err := wrap("get device", r); err != nil {
		return err
	}
	supported, r := d.GetSupportedEventTypes()
	if r == nvml.ERROR_NOT_SUPPORTED || r == nvml.SUCCESS && supported&faultTypes == 0 {
		return ErrNoEvents
	}
	if err := wrap("read event types", r); err != nil {
		return err
	}
	if r = d.RegisterEvents(supported&faultTypes, s.set); r == nvml.ERROR_NOT_SUPPORTED {
		return ErrNoEvents
	}
	if err := wrap("register for events", r); err != nil {
		return err
	}
	s.devices[d] = uuid
	return nil
}

func (s *nvmlEvents) next(wait time.Duration) (Event, bool, error) {
	data, r := s.set.Wait(uint32(wait.Milliseconds()))
	if r == nvml.ERROR_TIMEOUT {
		return Event{}, false, nil
	}
	err := wrap("wait for event", r)
	if errors.Is(err, ErrGPULost) {
		if uuid := s.findLost(); uuid != "" {
			return Event{Kind: Lost, UUID: uuid}, true, nil
		}
	}
	if err != nil {
		return Event{}, false, err
	}
	e := Event{Kind: DoubleBit}
	if data.EventType == nvml.EventTypeXidCriticalError {
		e.Kind, e.Code = XID, data.EventData
	}
	if data.Device != nil {
		e.UUID = s.devices[data.Device]
	}
	return e, true, nil
}

// findLost is a device that does not answer and was not told of, empty if there is none.
func (s *nvmlEvents) findLost() string {
	for d, uuid := range s.devices {
		if s.lost[uuid] {
			continue
		}
		if _, r := d.GetMemoryInfo(); errors.Is(wrap("read memory", r), ErrGPULost) {
			s.lost[uuid] = true
			return uuid
		}
	}
	return ""
}
