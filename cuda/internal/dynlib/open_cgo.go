//go:build linux && cgo

package dynlib

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// dlopen and dlerror run in one call because the error text belongs to the thread.
static uintptr_t trctl_open(const char *name, char *reason, int size) {
	void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL) {
		const char *text = dlerror();
		snprintf(reason, size, "%s", text != NULL ? text : "unknown loader error");
	}
	return (uintptr_t)handle;
}

static uintptr_t trctl_symbol(uintptr_t handle, const char *name) {
	return (uintptr_t)dlsym((void *)handle, name);
}
*/
import "C"

import "unsafe"

// open returns the handle, or 0 and the loader's message.
func open(name string) (uintptr, string) {
	const reasonBytes = 512
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	reason := (*C.char)(C.calloc(1, reasonBytes))
	defer C.free(unsafe.Pointer(reason))
	handle := C.trctl_open(cname, reason, reasonBytes)
	return uintptr(handle), C.GoString(reason)
}

// Has reports whether the library exports the symbol.
func (l Library) Has(symbol string) bool {
	cname := C.CString(symbol)
	defer C.free(unsafe.Pointer(cname))
	return C.trctl_symbol(C.uintptr_t(l.Handle), cname) != 0
}
