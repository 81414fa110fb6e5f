package driver

import (
	"fmt"
	"unsafe"
)

// Module is a loaded device image.
type Module struct {
	ctx    *Context
	handle uintptr
}

// LoadModule loads a cubin, or PTX with a final zero byte. The image may be dropped afterwards.
func (c *Context) LoadModule(image []byte) (*Module, error) {
	if len(image) == 0 {
		return nil, fmt.Errorf("load module: %w: empty image", ErrBounds)
	}
	handle, code := c.driver.table.moduleLoad(c.handle, unsafe.Pointer(unsafe.SliceData(image)))
	if err := c.fail("load module", code); err != nil {
		return nil, err
	}
	c.count(kindModule, 1)
	return &Module{ctx: c, handle: handle}, nil
}

// Close unloads the module. Its functions must not be used any more, and graphs that launch them must be closed.
func (m *Module) Close() error {
	return m.ctx.closeObject(&m.handle, kindModule, "module", m.ctx.driver.table.moduleUnload)
}

// Global returns the address and size of a __device__ or __constant__ variable.
func (m *Module) Global(name string) (Ptr, uint64, error) {
	p, bytes, code := m.ctx.driver.table.moduleGlobal(m.ctx.handle, m.handle, name)
	return p, bytes, m.ctx.fail("find global "+name, code)
}

// Function is a kernel. It belongs to its module.
type Function struct {
	ctx        *Context
	handle     uintptr
	name       string
	paramBytes int32
}

// paramsUnknown and paramsMany are values of Function.paramBytes, as tr_function_params sets them.
const (
	paramsUnknown = -1
	paramsMany    = -2
)

// Function finds a kernel by its plain (extern "C") name. The kernel takes at most one parameter, by value.
func (m *Module) Function(name string) (*Function, error) {
	t := m.ctx.driver.table
	handle, code := t.moduleFunction(m.ctx.handle, m.handle, name)
	if err := m.ctx.fail("find kernel "+name, code); err != nil {
		return nil, err
	}
	bytes, code := t.functionParams(m.ctx.handle, handle)
	if err := m.ctx.fail("read parameters of kernel "+name, code); err != nil {
		return nil, err
	}
	if bytes == paramsMany {
		return nil, fmt.Errorf("kernel %s: %w: it has more than one parameter", name, ErrParams)
	}
	return &Function{ctx: m.ctx, handle: handle, name: name, paramBytes: bytes}, nil
}

// Name is the kernel's name.
func (f *Function) Name() string { return f.name }

// ParamBytes is the size of the kernel's parameter block; ok is false when the driver cannot say (before CUDA 12.4).
func (f *Function) ParamBytes() (bytes int, ok bool) {
	return max(int(f.paramBytes), 0), f.paramBytes != paramsUnknown
}

// Resources is what a kernel needs from an SM.
type Resources struct {
	// Registers and LocalBytes are per thread. Local memory holds spills and the stack, so 0 means no spill.
	Registers, LocalBytes int
	// SharedBytes is the static shared memory of a block, ConstBytes the constants of the kernel.
	SharedBytes, ConstBytes int
	// MaxThreads is the largest block that the registers allow.
	MaxThreads int
	// BinaryVersion is the architecture of the code, 90 for sm_90.
	BinaryVersion int
}

// Attributes of cuFuncGetAttribute.
const (
	functionMaxThreads    = 0
	functionSharedBytes   = 1
	functionConstBytes    = 2
	functionLocalBytes    = 3
	functionRegisters     = 4
	functionBinaryVersion = 6
	functionMaxDynShared  = 8
)

// Resources reads the kernel's needs.
func (f *Function) Resources() (Resources, error) {
	var r Resources
	for _, item := range []struct {
		attribute int32
		value     *int
	}{
		{functionMaxThreads, &r.MaxThreads}, {functionSharedBytes, &r.SharedBytes}, {functionConstBytes, &r.ConstBytes},
		{functionLocalBytes, &r.LocalBytes}, {functionRegisters, &r.Registers}, {functionBinaryVersion, &r.BinaryVersion},
	} {
		value, code := f.ctx.driver.table.functionAttribute(f.ctx.handle, f.handle, item.attribute)
		if err := f.ctx.fail("read attributes of kernel "+f.name, code); err != nil {
			return Resources{}, err
		}
		*item.value = int(value)
	}
	return r, nil
}

// SetMaxSharedBytes allows launches with up to bytes of dynamic shared memory. It is needed beyond 48 KiB.
func (f *Function) SetMaxSharedBytes(bytes int) error {
	code := f.ctx.driver.table.functionSet(f.ctx.handle, f.handle, functionMaxDynShared, int32(bytes))
	return f.ctx.fail(fmt.Sprintf("allow %d shared bytes for kernel %s", bytes, f.name), code)
}

// BlocksPerSM is the number of blocks of this size that fit on one SM.
func (f *Function) BlocksPerSM(threads int, sharedBytes uint64) (int, error) {
	blocks, code := f.ctx.driver.table.functionOccupancy(f.ctx.handle, f.handle, int32(threads), sharedBytes)
	return int(blocks), f.ctx.fail("read occupancy of kernel "+f.name, code)
}
