package inventory

import (
	"errors"
	"fmt"
	"time"
)

// eventSet waits for the faults of devices.
type eventSet interface {
	add(uuid string) error
	next(wait time.Duration) (e Event, ok bool, err error)
	close() error
}

// Events are the faults of the devices that were added. One goroutine at a time may use them.
type Events struct {
	lib library
	set eventSet
}

// OpenEvents starts NVML for the events alone. Close them in the end.
func OpenEvents() (*Events, error) { return openEvents(newLibrary()) }

func openEvents(lib library) (*Events, error) {
	if err := lib.init(); err != nil {
		return nil, err
	}
	set, err := lib.events()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen to faults of GPUs: %w", err), lib.shutdown())
	}
	return &Events{lib: lib, set: set}, nil
}

// Add lets a device's faults come too. The error is ErrNoEvents for a device that tells of none, and ErrGPULost for one that
// does not answer.
func (s *Events) Add(uuid string) error {
	if err := s.set.add(uuid); err != nil {
		return fmt.Errorf("listen to faults of GPU %q: %w", uuid, err)
	}
	return nil
}

// Next waits at most so long for one event; ok is false when none came. It waits inside the library, on a thread of its own.
// After an error nothing more comes from these Events. That is so, on some drivers for all devices, after one of them was
// lost; the lost ones come as events before.
func (s *Events) Next(wait time.Duration) (e Event, ok bool, err error) {
	if e, ok, err = s.set.next(wait); err != nil {
		err = fmt.Errorf("wait for faults of GPUs: %w", err)
	}
	return e, ok, err
}

// Close ends NVML, as far as these Events have started it.
func (s *Events) Close() error { return errors.Join(s.set.close(), s.lib.shutdown()) }
