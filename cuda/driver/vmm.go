package driver

import (
	"fmt"
	"sync"
)

// Reservation is a range of device addresses to which memory is mapped piece by piece, so that a pool can grow and
// shrink without moving. It is safe for concurrent use.
type Reservation struct {
	ctx     *Context
	base    Ptr
	bytes   uint64
	granule uint64

	mu sync.Mutex
	// mapped maps the offset of each mapped piece to its size and memory handle. Guarded by mu.
	mapped map[uint64]piece
}

type piece struct{ bytes, memory uint64 }

// Granule is the unit of Reserve and Map on this device, 2 MiB on all present ones.
func (c *Context) Granule() (uint64, error) {
	bytes, code := c.driver.table.granularity(c.device.handle)
	if err := c.fail("read granularity", code); err != nil {
		return 0, err
	}
	return max(bytes, 1), nil
}

// Reserve takes addresses, no memory. bytes must be a positive multiple of Granule.
func (c *Context) Reserve(bytes uint64) (*Reservation, error) {
	granule, err := c.Granule()
	if err != nil {
		return nil, err
	}
	if bytes == 0 || bytes%granule != 0 {
		return nil, fmt.Errorf("reserve %d bytes: %w: not a multiple of %d", bytes, ErrBounds, granule)
	}
	base, code := c.driver.table.reserve(c.handle, bytes)
	if err := c.fail(fmt.Sprintf("reserve %d bytes", bytes), code); err != nil {
		return nil, err
	}
	c.count(kindReservation, 1)
	return &Reservation{ctx: c, base: base, bytes: bytes, granule: granule, mapped: make(map[uint64]piece)}, nil
}

// Base is the first address.
func (r *Reservation) Base() Ptr { return r.base }

// Len is the size in bytes.
func (r *Reservation) Len() uint64 { return r.bytes }

// Map puts new memory behind [offset, offset+bytes), readable and writable by the context's device and by the peers.
// Both numbers are multiples of Granule, and no part may be mapped already.
func (r *Reservation) Map(offset, bytes uint64, peers ...Device) error {
	if bytes == 0 || offset%r.granule != 0 || bytes%r.granule != 0 || offset > r.bytes || bytes > r.bytes-offset {
		return fmt.Errorf("map [%d, +%d): %w", offset, bytes, ErrBounds)
	}
	handles := make([]int32, len(peers))
	for i, p := range peers {
		handles[i] = p.handle
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapped == nil {
		return fmt.Errorf("reservation: %w", ErrClosed)
	}
	for at, p := range r.mapped {
		if offset < at+p.bytes && at < offset+bytes {
			return fmt.Errorf("map [%d, +%d): %w: mapped already", offset, bytes, ErrBounds)
		}
	}
	memory, code := r.ctx.driver.table.mapMemory(r.ctx.handle, r.ctx.device.handle, r.base+Ptr(offset), bytes, handles)
	if err := r.ctx.fail(fmt.Sprintf("map %d bytes", bytes), code); err != nil {
		return err
	}
	r.mapped[offset] = piece{bytes: bytes, memory: memory}
	r.ctx.count(kindMapping, 1)
	r.ctx.count(kindDeviceBytes, int64(bytes))
	return nil
}

// Unmap gives back the piece that Map put at offset. Work that uses it must have ended.
func (r *Reservation) Unmap(offset uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.unmapLocked(offset)
}

func (r *Reservation) unmapLocked(offset uint64) error {
	p, ok := r.mapped[offset]
	if !ok {
		return fmt.Errorf("unmap at %d: %w: nothing is mapped there", offset, ErrBounds)
	}
	delete(r.mapped, offset)
	r.ctx.count(kindMapping, -1)
	r.ctx.count(kindDeviceBytes, -int64(p.bytes))
	if r.ctx.Lost() {
		return nil
	}
	return r.ctx.fail("unmap memory", r.ctx.driver.table.unmap(r.ctx.handle, r.base+Ptr(offset), p.bytes, p.memory))
}

// Close unmaps every piece and gives the addresses back. It goes on after an error and returns the first.
func (r *Reservation) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mapped == nil {
		return fmt.Errorf("reservation: %w", ErrClosed)
	}
	var first error
	for offset := range r.mapped {
		if err := r.unmapLocked(offset); err != nil && first == nil {
			first = err
		}
	}
	r.mapped = nil
	r.ctx.count(kindReservation, -1)
	if r.ctx.Lost() {
		return first
	}
	code := r.ctx.driver.table.unreserve(r.ctx.handle, r.base, r.bytes)
	if err := r.ctx.fail("give addresses back", code); err != nil && first == nil {
		first = err
	}
	return first
}
