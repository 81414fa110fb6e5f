package driver

import "time"

// Event marks a point in a stream.
type Event struct {
	ctx    *Context
	handle uintptr
}

// EventOptions chooses what an event can do. The zero value makes the cheapest: order only, and Wait spins.
type EventOptions struct {
	// Timing allows Since.
	Timing bool
	// Blocking makes Wait sleep in the kernel instead of spinning on a core.
	Blocking bool
}

// Flags of cuEventCreate.
const (
	eventBlocking      = 1
	eventDisableTiming = 2
)

// NewEvent makes an event.
func (c *Context) NewEvent(o EventOptions) (*Event, error) {
	var flags uint32
	if o.Blocking {
		flags |= eventBlocking
	}
	if !o.Timing {
		flags |= eventDisableTiming
	}
	handle, code := c.driver.table.eventCreate(c.handle, flags)
	if err := c.fail("create event", code); err != nil {
		return nil, err
	}
	c.count(kindEvent, 1)
	return &Event{ctx: c, handle: handle}, nil
}

// Close destroys the event.
func (e *Event) Close() error {
	return e.ctx.closeObject(&e.handle, kindEvent, "event", e.ctx.driver.table.eventDestroy)
}

// Record puts the event behind the stream's present work. A second record moves it.
func (e *Event) Record(s *Stream) error {
	if err := s.ok(); err != nil {
		return err
	}
	return e.ctx.fail("record event", e.ctx.driver.table.eventRecord(e.ctx.handle, e.handle, s.handle))
}

// Wait blocks the thread until the recorded work has ended.
func (e *Event) Wait() error {
	return e.ctx.fail("wait for event", e.ctx.driver.table.eventSynchronize(e.ctx.handle, e.handle))
}

// Done reports, without waiting, whether the recorded work has ended.
func (e *Event) Done() (bool, error) {
	code := e.ctx.driver.table.eventQuery(e.ctx.handle, e.handle)
	if Code(code) == CodeNotReady {
		return false, nil
	}
	return code == 0, e.ctx.fail("query event", code)
}

// Since is the device time from start to e, with a resolution of about half a microsecond. Both need Timing and must
// be done.
func (e *Event) Since(start *Event) (time.Duration, error) {
	ms, code := e.ctx.driver.table.eventElapsed(e.ctx.handle, start.handle, e.handle)
	return time.Duration(float64(ms) * float64(time.Millisecond)), e.ctx.fail("read elapsed time", code)
}
