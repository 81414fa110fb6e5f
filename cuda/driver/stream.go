package driver

import (
	"fmt"
	"unsafe"
)

// Stream is a queue of device work, made non-blocking towards the default stream. Work is enqueued by one goroutine at
// a time.
type Stream struct {
	ctx    *Context
	handle uintptr
}

// NewStream makes a stream. A smaller priority is more urgent; the driver clamps it to Context.Priorities.
func (c *Context) NewStream(priority int) (*Stream, error) {
	handle, code := c.driver.table.streamCreate(c.handle, int32(priority))
	if err := c.fail("create stream", code); err != nil {
		return nil, err
	}
	c.count(kindStream, 1)
	return &Stream{ctx: c, handle: handle}, nil
}

// Close destroys the stream. Work still queued runs to its end.
func (s *Stream) Close() error {
	return s.ctx.closeObject(&s.handle, kindStream, "stream", s.ctx.driver.table.streamDestroy)
}

// Context is the context of the stream.
func (s *Stream) Context() *Context { return s.ctx }

// Handle is the CUstream, for libraries such as cuBLASLt. It is 0 after Close.
func (s *Stream) Handle() uintptr { return s.handle }

// ok refuses a closed stream: its handle would mean the default stream.
func (s *Stream) ok() error {
	if s.handle == 0 {
		return fmt.Errorf("stream: %w", ErrClosed)
	}
	return nil
}

// Synchronize blocks the thread until all work of the stream has ended. It reports errors of that work.
func (s *Stream) Synchronize() error {
	if err := s.ok(); err != nil {
		return err
	}
	return s.ctx.fail("synchronise stream", s.ctx.driver.table.streamSynchronize(s.ctx.handle, s.handle))
}

// Done reports, without waiting, whether all work of the stream has ended.
func (s *Stream) Done() (bool, error) {
	if err := s.ok(); err != nil {
		return false, err
	}
	code := s.ctx.driver.table.streamQuery(s.ctx.handle, s.handle)
	if Code(code) == CodeNotReady {
		return false, nil
	}
	return code == 0, s.ctx.fail("query stream", code)
}

// WaitFor makes later work of the stream wait for the event, which may belong to another stream or device.
func (s *Stream) WaitFor(e *Event) error {
	if err := s.ok(); err != nil {
		return err
	}
	return s.ctx.fail("wait for event", s.ctx.driver.table.streamWait(s.ctx.handle, s.handle, e.handle))
}

// CopyToDevice enqueues a copy of bytes from src at offset. The source must stay unchanged until it has ended.
func (s *Stream) CopyToDevice(dst Ptr, src *HostMem, offset, bytes uint64) error {
	if err := s.ok(); err != nil {
		return err
	}
	if err := src.check(offset, bytes); err != nil || bytes == 0 {
		return err
	}
	from := unsafe.Add(src.host, offset)
	return s.ctx.fail("copy to device", s.ctx.driver.table.copyHtoD(s.ctx.handle, s.handle, dst, from, bytes))
}

// CopyToHost enqueues a copy of bytes into dst at offset. The content is there when the stream has ended.
func (s *Stream) CopyToHost(dst *HostMem, offset uint64, src Ptr, bytes uint64) error {
	if err := s.ok(); err != nil {
		return err
	}
	if err := dst.check(offset, bytes); err != nil || bytes == 0 {
		return err
	}
	to := unsafe.Add(dst.host, offset)
	return s.ctx.fail("copy to host", s.ctx.driver.table.copyDtoH(s.ctx.handle, s.handle, to, src, bytes))
}

// Copy enqueues a copy between two places of this device.
func (s *Stream) Copy(dst, src Ptr, bytes uint64) error {
	if err := s.ok(); err != nil || bytes == 0 {
		return err
	}
	return s.ctx.fail("copy on device", s.ctx.driver.table.copyDtoD(s.ctx.handle, s.handle, dst, src, bytes))
}

// CopyPeer enqueues a copy between the memories of two contexts, one of which is the stream's.
func (s *Stream) CopyPeer(dst Ptr, dstCtx *Context, src Ptr, srcCtx *Context, bytes uint64) error {
	if err := s.ok(); err != nil || bytes == 0 {
		return err
	}
	code := s.ctx.driver.table.copyPeer(s.ctx.handle, s.handle, dst, dstCtx.handle, src, srcCtx.handle, bytes)
	return s.ctx.fail("copy between devices", code)
}

// Set8 enqueues a fill of count bytes.
func (s *Stream) Set8(dst Ptr, value uint8, count uint64) error {
	if err := s.ok(); err != nil || count == 0 {
		return err
	}
	return s.ctx.fail("set bytes", s.ctx.driver.table.set8(s.ctx.handle, s.handle, dst, uint32(value), count))
}

// Set32 enqueues a fill of count 32-bit words. dst must be aligned to 4 bytes.
func (s *Stream) Set32(dst Ptr, value uint32, count uint64) error {
	if err := s.ok(); err != nil || count == 0 {
		return err
	}
	return s.ctx.fail("set words", s.ctx.driver.table.set32(s.ctx.handle, s.handle, dst, value, count))
}
