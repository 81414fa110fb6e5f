//go:build !linux || !cgo

package drivertest

import (
	"testing"
	"unsafe"
)

// fakeTable needs C functions; without cgo it skips the test that asks for it.
type fakeTable struct{ leaky bool }

func (t *fakeTable) start(tb testing.TB, _ Options) {
	tb.Helper()
	tb.Skip("the simulated CUDA driver needs cgo")
}
func (t *fakeTable) stop()                   {}
func (t *fakeTable) pointer() unsafe.Pointer { return nil }
func (t *fakeTable) fail(string, int, int)   {}
func (t *fakeTable) poison(int)              {}
func (t *fakeTable) fault(int, int)          {}
func (t *fakeTable) missingKernel(string)    {}
func (t *fakeTable) busy(int)                {}
func (t *fakeTable) calls() []string         { return nil }
func (t *fakeTable) launches() []Launch      { return nil }
func (t *fakeTable) open() Open              { return Open{} }
