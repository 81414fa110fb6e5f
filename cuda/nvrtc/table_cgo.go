//go:build linux && cgo

package nvrtc

/*
#include <stdlib.h>
#include "table.h"
*/
import "C"

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// table holds NVRTC's functions, in C memory that stays for the life of the process, as the library does.
type table struct{ c *C.trctl_nvrtc }

func newTable(lib dynlib.Library) (*table, error) {
	t := &table{c: (*C.trctl_nvrtc)(C.calloc(1, C.sizeof_trctl_nvrtc))}
	if missing := C.tr_nvrtc_resolve(t.c, C.uintptr_t(lib.Handle)); missing != nil {
		return nil, fmt.Errorf("function %s is missing", C.GoString(missing))
	}
	return t, nil
}

func (t *table) errorText(code C.int) string {
	return strings.TrimPrefix(C.GoString(C.tr_nvrtc_error(t.c, code)), "NVRTC_ERROR_")
}

func (t *table) version() (major, minor int, err error) {
	var a, b C.int
	if code := C.tr_nvrtc_version(t.c, &a, &b); code != 0 {
		return 0, 0, fmt.Errorf("read version: %s", t.errorText(code))
	}
	return int(a), int(b), nil
}

// maxArchs bounds what the library may claim.
const maxArchs = 256

func (t *table) archs() ([]int, error) {
	var count C.int
	if code := C.tr_nvrtc_arch_count(t.c, &count); code != 0 || count < 0 || count > maxArchs {
		return nil, fmt.Errorf("count architectures: %s", t.errorText(code))
	}
	var list [maxArchs]C.int
	if code := C.tr_nvrtc_archs(t.c, &list[0]); code != 0 {
		return nil, fmt.Errorf("list architectures: %s", t.errorText(code))
	}
	out := make([]int, count)
	for i := range out {
		out[i] = int(list[i])
	}
	slices.Sort(out)
	return out, nil
}

// compile returns what the library made, and the reason when it made no cubin.
func (t *table) compile(p *Program) (Binary, string) {
	names := slices.Sorted(maps.Keys(p.Headers))
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = p.Headers[name]
	}
	arguments := p.arguments()
	var arena cStrings
	defer arena.free()
	var out C.tr_compiled
	C.tr_nvrtc_compile(t.c, arena.one(p.Source), arena.one(p.Name), C.int(len(names)), arena.list(texts), arena.list(names),
		C.int(len(arguments)), arena.list(arguments), &out)
	defer C.free(unsafe.Pointer(out.log))
	defer C.free(unsafe.Pointer(out.cubin))
	b := Binary{
		Cubin: C.GoBytes(unsafe.Pointer(out.cubin), C.int(out.cubin_bytes)),
		Log:   strings.TrimSpace(C.GoStringN(out.log, C.int(out.log_bytes))),
	}
	if out.code != 0 {
		return b, C.GoString(out.stage) + ": " + t.errorText(out.code)
	}
	return b, ""
}

// cStrings owns C copies of strings until free.
type cStrings struct{ blocks []unsafe.Pointer }

func (a *cStrings) one(s string) *C.char {
	c := C.CString(s)
	a.blocks = append(a.blocks, unsafe.Pointer(c))
	return c
}

// list returns an array in C memory, because C must not get an array of Go memory.
func (a *cStrings) list(texts []string) **C.char {
	block := C.calloc(C.size_t(len(texts)+1), C.size_t(unsafe.Sizeof(uintptr(0))))
	a.blocks = append(a.blocks, block)
	array := unsafe.Slice((**C.char)(block), len(texts))
	for i, s := range texts {
		array[i] = a.one(s)
	}
	return (**C.char)(block)
}

func (a *cStrings) free() {
	for _, block := range a.blocks {
		C.free(block)
	}
}
