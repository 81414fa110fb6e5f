package driver

import (
	"fmt"
	"math"
	"unsafe"
)

// Ptr is an address in device memory. It is a number: Go never follows it.
type Ptr uint64

// Memory returns the free and total bytes of the device.
func (c *Context) Memory() (free, total uint64, err error) {
	free, total, code := c.driver.table.memAvailable(c.handle)
	return free, total, c.fail("read free memory", code)
}

// Alloc reserves device memory of at least one byte, aligned to 256 bytes or more. Its content is undefined.
func (c *Context) Alloc(bytes uint64) (Ptr, error) {
	if bytes == 0 {
		return 0, fmt.Errorf("allocate device memory: %w: no bytes", ErrBounds)
	}
	p, code := c.driver.table.memAlloc(c.handle, bytes)
	if err := c.fail(fmt.Sprintf("allocate %d device bytes", bytes), code); err != nil {
		return 0, err
	}
	c.mu.Lock()
	c.allocs[p] = bytes
	c.mu.Unlock()
	c.count(kindDeviceAlloc, 1)
	c.count(kindDeviceBytes, int64(bytes))
	return p, nil
}

// Free returns memory that Alloc of this context gave. Work that uses it must have ended. An address that is not open
// is ErrClosed and reaches no driver.
func (c *Context) Free(p Ptr) error {
	c.mu.Lock()
	bytes, open := c.allocs[p]
	delete(c.allocs, p)
	c.mu.Unlock()
	if !open {
		return fmt.Errorf("free device memory %#x: %w", uint64(p), ErrClosed)
	}
	c.count(kindDeviceAlloc, -1)
	c.count(kindDeviceBytes, -int64(bytes))
	if c.Lost() {
		return nil
	}
	return c.fail("free device memory", c.driver.table.memFree(c.handle, p))
}

// Write copies src to device memory and blocks until it is there, for every stream. It is for start-up and tests; the step path
// copies from HostMem on a stream.
func (c *Context) Write(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	code := c.driver.table.write(c.handle, dst, unsafe.Pointer(unsafe.SliceData(src)), uint64(len(src)))
	return c.fail(fmt.Sprintf("write %d bytes", len(src)), code)
}

// Read fills dst from device memory and blocks until it is there. It does not wait for work on streams: synchronise
// first.
func (c *Context) Read(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	code := c.driver.table.read(c.handle, unsafe.Pointer(unsafe.SliceData(dst)), src, uint64(len(dst)))
	return c.fail(fmt.Sprintf("read %d bytes", len(dst)), code)
}

// Bytes views a slice of numbers, or of structs without pointers, as bytes, for Read and Write.
func Bytes[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(s[0])))
}

// Flags of cuMemHostAlloc.
const (
	hostPortable      = 1
	hostDeviceMap     = 2
	hostWriteCombined = 4
)

// HostMem is pinned host memory that the device sees too. The GC does not know it: no Go pointer may be stored in it,
// and slices of it die with Close.
type HostMem struct {
	ctx    *Context
	host   unsafe.Pointer
	device Ptr
	bytes  uint64
}

// HostAlloc reserves pinned memory, mapped into the device and usable from every context. It is not zeroed. With
// writeCombined, the CPU writes fast and reads very slowly: for uploads only.
func (c *Context) HostAlloc(bytes uint64, writeCombined bool) (*HostMem, error) {
	if bytes == 0 || bytes > math.MaxInt64 {
		return nil, fmt.Errorf("allocate host memory: %w: %d bytes", ErrBounds, bytes)
	}
	flags := uint32(hostPortable | hostDeviceMap)
	if writeCombined {
		flags |= hostWriteCombined
	}
	host, device, code := c.driver.table.hostAlloc(c.handle, bytes, flags)
	if err := c.fail(fmt.Sprintf("allocate %d pinned bytes", bytes), code); err != nil {
		return nil, err
	}
	c.count(kindHostAlloc, 1)
	c.count(kindHostBytes, int64(bytes))
	return &HostMem{ctx: c, host: host, device: device, bytes: bytes}, nil
}

// Bytes is the memory as a slice; make it once and keep it. It is nil after Close.
func (m *HostMem) Bytes() []byte { return unsafe.Slice((*byte)(m.host), m.bytes) }

// Pointer is the address for the CPU, aligned to a page. It is nil after Close.
func (m *HostMem) Pointer() unsafe.Pointer { return m.host }

// Device is the address for kernels.
func (m *HostMem) Device() Ptr { return m.device }

// Len is the size in bytes.
func (m *HostMem) Len() uint64 { return m.bytes }

// Close frees the memory. Work that uses it must have ended and slices of it must be dropped.
func (m *HostMem) Close() error {
	if m.host == nil {
		return fmt.Errorf("host memory: %w", ErrClosed)
	}
	host, bytes := m.host, m.bytes
	m.host, m.device, m.bytes = nil, 0, 0
	m.ctx.count(kindHostAlloc, -1)
	m.ctx.count(kindHostBytes, -int64(bytes))
	if m.ctx.Lost() {
		return nil
	}
	return m.ctx.fail("free pinned memory", m.ctx.driver.table.hostFree(m.ctx.handle, host))
}

// check returns an error unless [offset, offset+bytes) lies in the memory.
func (m *HostMem) check(offset, bytes uint64) error {
	if m.host == nil {
		return fmt.Errorf("host memory: %w", ErrClosed)
	}
	if offset > m.bytes || bytes > m.bytes-offset {
		return fmt.Errorf("host memory: %w: [%d, +%d) of %d", ErrBounds, offset, bytes, m.bytes)
	}
	return nil
}

// HostSlice views count values of T at a byte offset of pinned memory. The offset must be aligned for T.
func HostSlice[T any](m *HostMem, offset, count uint64) ([]T, error) {
	var zero T
	size := uint64(unsafe.Sizeof(zero))
	if size == 0 || count > math.MaxInt64/size || offset%uint64(unsafe.Alignof(zero)) != 0 {
		return nil, fmt.Errorf("host slice: %w: %d values at %d", ErrBounds, count, offset)
	}
	if err := m.check(offset, count*size); err != nil {
		return nil, err
	}
	return unsafe.Slice((*T)(unsafe.Add(m.host, offset)), count), nil
}
