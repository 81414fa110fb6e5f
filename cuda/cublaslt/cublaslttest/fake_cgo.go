//go:build linux && cgo

package cublaslttest

/*
#include <stdlib.h>
#include "fake.h"
*/
import "C"

import (
	"testing"
	"unsafe"
)

func reset(_ testing.TB, o Options) {
	C.fake_lt_reset(C.size_t(o.Version), C.size_t(o.WorkspaceBytes))
}

func pointer() unsafe.Pointer { return unsafe.Pointer(C.fake_lt_table()) }

func fail(function string, status int) {
	c := C.CString(function)
	defer C.free(unsafe.Pointer(c))
	C.fake_lt_fail(c, C.int(status))
}

func open() int { return int(C.fake_lt_open()) }
