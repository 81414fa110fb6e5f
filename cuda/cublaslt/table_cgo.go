//go:build linux && cgo

package cublaslt

/*
#cgo noescape tr_lt_matmul
#cgo nocallback tr_lt_matmul
#include <stdlib.h>
#include "table.h"
*/
import "C"

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// table holds cuBLASLt's functions, in C memory that stays for the life of the process, as the library does.
type table struct{ c *C.trctl_cublaslt }

// plan is a shape with its algorithm, in C memory.
type plan struct{ c *C.tr_lt_plan }

func (p *plan) workspaceBytes() uint64 { return uint64(p.c.chosen.workspace) }

func openTable(lib dynlib.Library) (t *table, missing string) {
	t = &table{c: (*C.trctl_cublaslt)(C.calloc(1, C.sizeof_trctl_cublaslt))}
	return t, C.GoString(C.tr_lt_resolve(t.c, C.uintptr_t(lib.Handle)))
}

func useTable(p unsafe.Pointer) (t *table, missing string) {
	t = &table{c: (*C.trctl_cublaslt)(p)}
	return t, C.GoString(C.tr_lt_missing(t.c))
}

func (t *table) version() uint64 { return uint64(C.tr_lt_version(t.c)) }

func (t *table) status(status int32) string { return C.GoString(C.tr_lt_status(t.c, C.int(status))) }

func current(ctx *driver.Context) C.tr_lt_context {
	function, handle := ctx.SetCurrent()
	return C.tr_lt_context{set_current: C.uintptr_t(function), handle: C.uintptr_t(handle)}
}

func (t *table) create(ctx *driver.Context) (uintptr, int32) {
	c := current(ctx)
	var handle C.uintptr_t
	status := C.tr_lt_create(t.c, &c, &handle)
	return uintptr(handle), int32(status)
}

func (t *table) destroy(ctx *driver.Context, handle uintptr) int32 {
	c := current(ctx)
	return int32(C.tr_lt_destroy(t.c, &c, C.uintptr_t(handle)))
}

func (t *table) planMake(ctx *driver.Context, handle uintptr, s shape, workspace uint64) (*plan, bool, int32) {
	c := current(ctx)
	p := &plan{c: (*C.tr_lt_plan)(C.calloc(1, C.sizeof_tr_lt_plan))}
	var outF32, found C.int
	if s.outF32 {
		outF32 = 1
	}
	status := C.tr_lt_plan_make(t.c, &c, C.uintptr_t(handle), C.int64_t(s.tokens), C.int64_t(s.n), C.int64_t(s.k), outF32,
		C.uint64_t(workspace), p.c, &found)
	if status != 0 || found == 0 {
		C.free(unsafe.Pointer(p.c))
		return nil, false, int32(status)
	}
	return p, true, 0
}

func (t *table) planFree(p *plan) int32 {
	status := C.tr_lt_plan_free(t.c, p.c)
	C.free(unsafe.Pointer(p.c))
	p.c = nil
	return int32(status)
}

func (t *table) matmul(ctx *driver.Context, handle uintptr, p *plan, out, x, w uint64, beta float32, ws Workspace, stream uintptr) int32 {
	c := current(ctx)
	return int32(C.tr_lt_matmul(t.c, &c, C.uintptr_t(handle), p.c, C.uint64_t(out), C.uint64_t(x), C.uint64_t(w), C.float(beta),
		C.uint64_t(ws.Ptr), C.uint64_t(ws.Bytes), C.uintptr_t(stream)))
}
