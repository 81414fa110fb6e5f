package driver

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// Context is one retained reference to a device's primary context. Several may be open on one device; they share
// memory, and each counts its own objects. It is safe for concurrent use.
type Context struct {
	driver *Driver
	device Device
	handle uintptr
	live   counters
	// lost is set by the first sticky error and never cleared.
	lost atomic.Bool

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
	v.driver.retained(v.ordinal, 1)
	return c, nil
}

// Reset destroys all that this process has in the device's primary context, and what libraries such as cuBLASLt keep there
// of their own accord, so that the next Retain makes a new context. Releasing alone does not do that where a library has a
// reference of its own: it keeps a lost context, and the next Retain returns it. Addresses, handles and pinned memory of
// the old one must not be touched any more. While a Context of this Driver is open on the device it does nothing but return
// ErrInUse; whoever else uses the device in this process, the caller must know.
func (v Device) Reset() error {
	v.driver.mu.Lock()
	open := v.driver.contexts[v.ordinal]
	v.driver.mu.Unlock()
	if open > 0 {
		return fmt.Errorf("reset device %d: %w: %d contexts", v.ordinal, ErrInUse, open)
	}
	return v.driver.fail(fmt.Sprintf("reset primary context of device %d", v.ordinal), v.driver.table.ctxReset(v.handle))
}

// Close releases the context. While objects made from it are open it does nothing but return ErrInUse with the list,
// because releasing would leave their handles dangling. After the last Close on a lost context, Device.Reset is due.
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
	c.driver.retained(c.device.ordinal, -1)
	return c.fail("release primary context", c.driver.table.ctxRelease(c.device.handle))
}

// Device is the GPU of the context.
func (c *Context) Device() Device { return c.device }

// Driver is the driver of the context.
func (c *Context) Driver() *Driver { return c.driver }

// Live counts the open objects made from this context.
func (c *Context) Live() Live { return c.live.load() }

// Lost reports whether a call has met a sticky error: all that use the device's primary context then fail, and closing what
// was made from it reaches the driver no more, since it would fail too.
func (c *Context) Lost() bool { return c.lost.Load() }

// fail is Driver.fail, and marks the context as lost by a sticky code.
func (c *Context) fail(op string, code int32) error {
	if Code(code).Sticky() {
		c.lost.Store(true)
	}
	return c.driver.fail(op, code)
}

// closeObject ends what a handle names, once, and clears the handle. In a lost context it only counts.
func (c *Context) closeObject(handle *uintptr, k kind, what string, destroy func(ctx, handle uintptr) int32) error {
	h := *handle
	if h == 0 {
		return fmt.Errorf("%s: %w", what, ErrClosed)
	}
	*handle = 0
	c.count(k, -1)
	if c.Lost() {
		return nil
	}
	return c.fail("close "+what, destroy(c.handle, h))
}

// Synchronize blocks the thread until all work of the device's primary context has ended.
func (c *Context) Synchronize() error {
	return c.fail("synchronise context", c.driver.table.ctxSynchronize(c.handle))
}

// EnablePeer lets kernels and copies of this context use the peer's device memory. Call it once per ordered pair; a
// second call is not an error. Memory from Reserve needs Map with the peer instead.
func (c *Context) EnablePeer(peer *Context) error {
	code := c.driver.table.ctxEnablePeer(c.handle, peer.handle)
	if Code(code) == codePeerAlreadyEnabled {
		return nil
	}
	return c.fail(fmt.Sprintf("enable peer access %d to %d", c.device.ordinal, peer.device.ordinal), code)
}

// Priorities returns the lowest and the highest stream priority; a smaller number is more urgent, so greatest is the
// smaller one.
func (c *Context) Priorities() (least, greatest int, err error) {
	l, g, code := c.driver.table.ctxPriorities(c.handle)
	return int(l), int(g), c.fail("read stream priorities", code)
}

// SetCurrent returns the address of cuCtxSetCurrent and the handle of the context, for the C shims of other libraries:
// they must make the context current in the same call as their own work, because a goroutine may change threads between
// two calls. Both are 0 in a build without cgo.
func (c *Context) SetCurrent() (function, handle uintptr) {
	return c.driver.table.setCurrent(), c.handle
}
