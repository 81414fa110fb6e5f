//go:build linux && amd64 && cgo

package simt

// #cgo LDFLAGS: -ldl
// #include "table.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// Open returns the emulated driver.
func Open() (*driver.Driver, error) {
	d, err := driver.NewFromTable(unsafe.Pointer(C.simt_table()))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return d, nil
}

// Backwards makes later launches run threads and blocks from the last to the first. Results must not change.
func Backwards(on bool) {
	n := C.int(0)
	if on {
		n = 1
	}
	C.simt_backwards(n)
}
