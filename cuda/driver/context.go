package driver

import (
	"fmt"
	"sync"
)

// Context is one retained reference to a device's primary context. Several may be open on one device; they share
// memory, and each counts its own objects. It is safe for concurrent use.
type Context struct {
	driver *Driver
	device Device
	handle uintptr
	live   counters

	mu sync.Mutex
	// allocs maps each open device allocation to its bytes. Guarded by mu.
	allocs map[Ptr]uint64
	// closed is set by Close. Guarded by mu.
	closed bool
}

// Retain opens the device's primary context. Close it when every object made from it is closed.
func (v Device) Retain() (*Context, error) {
	handle, code := v.driver.table.ctxRetain(v.handle)
	if err := v.driver.fail(fmt.Sprintf("retain primary context of device %d", v.ordinal), code); err != nil {
		return nil, err
	}
	c := &Context{driver: v.driver, device: v, handle: handle, allocs: make(map[Ptr]uint64)}
	c.count(kindContext, 1)
	return c, nil
}

// Close releases the context. While objects made from it are open it does nothing but return ErrInUse with the list,
// because releasing would leave their handles dangling.
func (c *Context) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("context: %w", ErrClosed)
	}
	open := c.live.load()
	open.Contexts = 0
	if open != (Live{}) {
		return fmt.Errorf("%w: %v", ErrInUse, open)
	}
	c.closed = true
	c.count(kindContext, -1)
	return c.driver.fail("release primary context", c.driver.table.ctxRelease(c.device.handle))
}

// Device is the GPU of the context.
func (c *Context) Device() Device { return c.device }

// Driver is the driver of the context.
func (c *Context) Driver() *Driver { return c.driver }

// Live counts the open objects made from this context.
func (c *Context) Live() Live { return c.live.load() }

// Synchronize blocks the thread until all work of the device's primary context has ended.
func (c *Context) Synchronize() error {
	return c.driver.fail("synchronise context", c.driver.table.ctxSynchronize(c.handle))
}

// EnablePeer lets kernels and copies of this context use the peer's device memory. Call it once per ordered pair; a
// second call is not an error. Memory from Reserve needs Map with the peer instead.
func (c *Context) EnablePeer(peer *Context) error {
	code := c.driver.table.ctxEnablePeer(c.handle, peer.handle)
	if Code(code) == codePeerAlreadyEnabled {
		return nil
	}
	return c.driver.fail(fmt.Sprintf("enable peer access %d to %d", c.device.ordinal, peer.device.ordinal), code)
}

// Priorities returns the lowest and the highest stream priority; a smaller number is more urgent, so greatest is the
// smaller one.
func (c *Context) Priorities() (least, greatest int, err error) {
	l, g, code := c.driver.table.ctxPriorities(c.handle)
	return int(l), int(g), c.driver.fail("read stream priorities", code)
}

// SetCurrent returns the address of cuCtxSetCurrent and the handle of the context, for the C shims of other libraries:
// they must make the context current in the same call as their own work, because a goroutine may change threads between
// two calls. Both are 0 in a build without cgo.
func (c *Context) SetCurrent() (function, handle uintptr) {
	return c.driver.table.setCurrent(), c.handle
}
