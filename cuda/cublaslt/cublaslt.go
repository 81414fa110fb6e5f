package cublaslt

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

var (
	// ErrNoLibrary means that cuBLASLt is absent, of another major version, or that the build has no cgo.
	ErrNoLibrary = errors.New("no cuBLASLt library")
	// ErrUnsupported means that the library knows no algorithm for a shape within the workspace.
	ErrUnsupported = errors.New("cuBLASLt has no algorithm for this shape")
	// ErrWorkspace means that the workspace of a call is smaller than the chosen algorithm needs.
	ErrWorkspace = errors.New("workspace is too small")
	// ErrClosed means that a handle was used after Close.
	ErrClosed = errors.New("cuBLASLt handle is closed")
)

// Error is a call that the library refused.
type Error struct {
	// Op is what was tried; Status cuBLAS's code and Name its symbol.
	Op     string
	Status int
	Name   string
}

func (e *Error) Error() string { return fmt.Sprintf("cublaslt: %s: %s (%d)", e.Op, e.Name, e.Status) }

// driverStatus is where the codes of a failed cuCtxSetCurrent begin; TR_LT_DRIVER in table.h.
const driverStatus = 100000

// Options says which library to load. The zero value takes the newest one found.
type Options struct {
	// LibraryPath is a file to open instead of searching.
	LibraryPath string
	// MaxMajor is the newest major version to take, 0 for any: pass the driver's.
	MaxMajor int
}

// Library is a loaded cuBLASLt. It lives until the process ends and is safe for concurrent use.
type Library struct {
	table   *table
	path    string
	version uint64
}

// Load opens the library.
func Load(o Options) (*Library, error) {
	var sonames []string
	for _, major := range []int{13, 12} {
		if o.MaxMajor == 0 || major <= o.MaxMajor {
			sonames = append(sonames, fmt.Sprintf("libcublasLt.so.%d", major))
		}
	}
	lib, err := dynlib.Open(dynlib.Candidates(o.LibraryPath, sonames...))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoLibrary, err)
	}
	t, missing := openTable(lib)
	return newLibrary(t, missing, lib.Path)
}

// NewFromTable makes a Library from a struct trctl_cublaslt of table.h in C memory. It exists for package cublaslttest.
func NewFromTable(functions unsafe.Pointer) (*Library, error) {
	t, missing := useTable(functions)
	return newLibrary(t, missing, "table")
}

func newLibrary(t *table, missing, path string) (*Library, error) {
	if t == nil || missing != "" {
		return nil, fmt.Errorf("%w: %s: function %s is missing", ErrNoLibrary, path, missing)
	}
	l := &Library{table: t, path: path, version: t.version()}
	if major := l.version / 10000; major != 12 && major != 13 {
		return nil, fmt.Errorf("%w: %s is version %s, want 12 or 13", ErrNoLibrary, path, l.Version())
	}
	return l, nil
}

// Version is the library's version, such as "13.1.0".
func (l *Library) Version() string {
	return fmt.Sprintf("%d.%d.%d", l.version/10000, l.version/100%100, l.version%100)
}

// Path is the library that was opened.
func (l *Library) Path() string { return l.path }

// fail makes an error from a status that is not zero.
func (l *Library) fail(op string, status int32) error {
	switch {
	case status == 0:
		return nil
	case status >= driverStatus:
		return &driver.Error{Op: op, Code: driver.Code(status - driverStatus), Name: "CUDA_ERROR"}
	}
	return &Error{Op: op, Status: int(status), Name: l.table.status(status)}
}

// Handle multiplies in one context. It is safe for concurrent use.
type Handle struct {
	lib       *Library
	ctx       *driver.Context
	workspace uint64

	mu sync.Mutex
	// handle is the library's, 0 after Close. Guarded by mu.
	handle uintptr
	// plans are the shapes asked about. A nil plan is a shape without algorithm. Guarded by mu.
	plans map[shape]*plan
	// asked counts the questions to the library. Guarded by mu.
	asked int
}

// shape is what an algorithm is chosen for.
type shape struct {
	tokens, n, k int
	outF32       bool
}

// maxPlans bounds the remembered shapes. Callers round T up, so this is far beyond what they use.
const maxPlans = 4096

// NewHandle makes a handle for a context. Algorithms are chosen among those that need at most workspaceBytes; 32 MiB
// is a good size on sm_90.
func (l *Library) NewHandle(ctx *driver.Context, workspaceBytes uint64) (*Handle, error) {
	h := &Handle{lib: l, ctx: ctx, workspace: workspaceBytes, plans: make(map[shape]*plan)}
	handle, status := l.table.create(ctx)
	if err := l.fail("create handle", status); err != nil {
		return nil, err
	}
	h.handle = handle
	return h, nil
}

// Close destroys the handle and its plans. Work that it enqueued must have ended.
func (h *Handle) Close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.handle == 0 {
		return ErrClosed
	}
	first := h.dropPlansLocked()
	status := h.lib.table.destroy(h.ctx, h.handle)
	h.handle = 0
	if err := h.lib.fail("destroy handle", status); first == nil {
		first = err
	}
	return first
}

func (h *Handle) dropPlansLocked() error {
	var first error
	for s, p := range h.plans {
		if p != nil {
			if err := h.lib.fail("free plan", h.lib.table.planFree(p)); first == nil {
				first = err
			}
		}
		delete(h.plans, s)
	}
	return first
}

// Asked counts how often the library was asked for an algorithm.
func (h *Handle) Asked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked
}

// Workspace is device memory that a call may overwrite, aligned to 256 bytes.
type Workspace struct {
	Ptr   driver.Ptr
	Bytes uint64
}

// alignment is what the library is told that every operand keeps.
const alignment = 16

// operands checks the three arrays and returns their shape.
func operands(out, x, w tensor.View) (shape, error) {
	var sizes tensor.Sizes
	sizes.Bind("x", x, "T", "K")
	sizes.Bind("w", w, "N", "K")
	sizes.Bind("out", out, "T", "N")
	if err := sizes.Err(); err != nil {
		return shape{}, err
	}
	s := shape{tokens: sizes.Get("T"), n: sizes.Get("N"), k: sizes.Get("K"), outF32: out.DType == tensor.F32}
	outType := tensor.BF16
	if s.outF32 {
		outType = tensor.F32
	}
	err := errors.Join(x.Check("x", tensor.BF16, alignment, s.tokens, s.k), w.Check("w", tensor.BF16, alignment, s.n, s.k),
		out.Check("out", outType, alignment, s.tokens, s.n))
	if err != nil {
		return shape{}, err
	}
	if s.n == 0 || s.k == 0 {
		return shape{}, fmt.Errorf("weights: %w: %v", tensor.ErrShape, w)
	}
	return s, nil
}

// Prepare chooses the algorithm for a shape, so that a later Matmul of it does nothing else but enqueue, and returns
// the workspace that it needs. out is bf16 or f32.
func (h *Handle) Prepare(tokens, n, k int, out tensor.DType) (workspaceBytes uint64, err error) {
	if tokens <= 0 || n <= 0 || k <= 0 {
		return 0, fmt.Errorf("prepare matmul: %w: T=%d N=%d K=%d", tensor.ErrShape, tokens, n, k)
	}
	if out != tensor.BF16 && out != tensor.F32 {
		return 0, fmt.Errorf("prepare matmul: %w: %v", tensor.ErrDType, out)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.planLocked(shape{tokens: tokens, n: n, k: k, outF32: out == tensor.F32})
	if err != nil {
		return 0, err
	}
	return p.workspaceBytes(), nil
}

func (h *Handle) planLocked(s shape) (*plan, error) {
	if h.handle == 0 {
		return nil, ErrClosed
	}
	p, known := h.plans[s]
	if !known {
		if len(h.plans) >= maxPlans {
			if err := h.dropPlansLocked(); err != nil {
				return nil, err
			}
		}
		h.asked++
		made, found, status := h.lib.table.planMake(h.ctx, h.handle, s, h.workspace)
		if err := h.lib.fail("choose algorithm", status); err != nil {
			return nil, fmt.Errorf("matmul T=%d N=%d K=%d: %w", s.tokens, s.n, s.k, err)
		}
		if found {
			p = made
		}
		h.plans[s] = p
	}
	if p == nil {
		return nil, fmt.Errorf("matmul T=%d N=%d K=%d: %w", s.tokens, s.n, s.k, ErrUnsupported)
	}
	return p, nil
}

// Matmul enqueues out[T, N] = x[T, K] · w[N, K]ᵀ on the stream; with accumulate it adds to what out holds. x and w are
// bf16, out is bf16 or f32. No tokens is no work. The workspace is busy until the work has ended.
func (h *Handle) Matmul(s *driver.Stream, out, x, w tensor.View, accumulate bool, ws Workspace) error {
	shape, err := operands(out, x, w)
	if err != nil {
		return fmt.Errorf("matmul: %w", err)
	}
	if shape.tokens == 0 {
		return nil
	}
	if s.Handle() == 0 {
		return fmt.Errorf("matmul: %w", driver.ErrClosed)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p, err := h.planLocked(shape)
	if err != nil {
		return err
	}
	if need := p.workspaceBytes(); need > ws.Bytes {
		return fmt.Errorf("matmul: %w: %d bytes, need %d", ErrWorkspace, ws.Bytes, need)
	}
	var beta float32
	if accumulate {
		beta = 1
	}
	return h.lib.fail("matmul", h.lib.table.matmul(h.ctx, h.handle, p, out.Ptr, x.Ptr, w.Ptr, beta, ws, s.Handle()))
}
