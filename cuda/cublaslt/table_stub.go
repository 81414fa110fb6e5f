//go:build !linux || !cgo

package cublaslt

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// table has the methods of table_cgo.go. No value of it is ever made in this build; the methods return cuBLAS's
// "not initialised".
type table struct{}

type plan struct{}

const notInitialised = 1

func (p *plan) workspaceBytes() uint64 { return 0 }

func openTable(dynlib.Library) (*table, string) { return nil, "dlopen (built without cgo)" }
func useTable(unsafe.Pointer) (*table, string)  { return nil, "dlopen (built without cgo)" }

func (t *table) version() uint64                         { return 0 }
func (t *table) status(int32) string                     { return "" }
func (t *table) create(*driver.Context) (uintptr, int32) { return 0, notInitialised }
func (t *table) destroy(*driver.Context, uintptr) int32  { return notInitialised }
func (t *table) planFree(*plan) int32                    { return notInitialised }
func (t *table) planMake(*driver.Context, uintptr, shape, uint64) (*plan, bool, int32) {
	return nil, false, notInitialised
}

func (t *table) matmul(*driver.Context, uintptr, *plan, uint64, uint64, uint64, float32, Workspace, uintptr) int32 {
	return notInitialised
}
