//go:build linux && cgo

package drivertest

/*
#include <stdlib.h>
#include "fake.h"
*/
import "C"

import (
	"sync"
	"testing"
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// inUse is held by the test that owns the process's one simulated driver.
var inUse sync.Mutex

// fakeTable is the C side of a Fake.
type fakeTable struct{ leaky bool }

func (t *fakeTable) start(_ testing.TB, o Options) {
	inUse.Lock()
	C.fake_reset(C.int(o.Version), C.int(max(o.Devices, 0)), C.size_t(o.Memory), C.size_t(o.GraphBytes),
		C.int(max(o.ParamBytes, 0)), C.int(boolInt(o.ParamBytes != 0)))
	for _, symbol := range o.Without {
		withString(symbol, func(s *C.char) { C.fake_without(s) })
	}
}

func (t *fakeTable) stop() { inUse.Unlock() }

func (t *fakeTable) pointer() unsafe.Pointer { return unsafe.Pointer(C.fake_table()) }

func (t *fakeTable) fail(function string, nth, code int) {
	withString(function, func(s *C.char) { C.fake_fail(s, C.int(nth), C.int(code)) })
}

func (t *fakeTable) poison(code int) { C.fake_poison(C.int(code)) }

func (t *fakeTable) fault(device, code int) { C.fake_fault(C.int(device), C.int(code)) }

func (t *fakeTable) missingKernel(name string) {
	withString(name, func(s *C.char) { C.fake_missing_kernel(s) })
}

func (t *fakeTable) busy(polls int) { C.fake_busy(C.int(polls)) }

func (t *fakeTable) calls() []string {
	out := make([]string, C.fake_call_count())
	for i := range out {
		out[i] = C.GoString(C.fake_call(C.long(i)))
	}
	return out
}

func (t *fakeTable) launches() []Launch {
	out := make([]Launch, C.fake_launch_count())
	for i := range out {
		c := C.fake_launch_at(C.long(i))
		l := Launch{
			Kernel: C.GoString(&c.kernel[0]), SharedBytes: uint32(c.shared_bytes), PDL: c.pdl != 0,
			Cooperative: c.cooperative != 0, Captured: c.captured != 0, Replay: c.replay != 0,
			Stream: uintptr(c.stream), Params: C.GoBytes(unsafe.Pointer(&c.params[0]), C.int(c.param_bytes)),
		}
		for k := range 3 {
			l.Grid[k], l.Block[k], l.Cluster[k] = uint32(c.grid[k]), uint32(c.block[k]), uint32(c.cluster[k])
		}
		out[i] = l
	}
	return out
}

func (t *fakeTable) open() Open {
	c := C.fake_counts()
	return Open{
		Contexts: int(c.contexts), DeviceAllocs: int(c.device_allocs), HostAllocs: int(c.host_allocs),
		Reservations: int(c.reservations), Mappings: int(c.mappings), Streams: int(c.streams), Events: int(c.events),
		Modules: int(c.modules), Graphs: int(c.graphs), GraphExecs: int(c.execs),
	}
}

func withString(s string, use func(*C.char)) {
	c := C.CString(s)
	defer C.free(unsafe.Pointer(c))
	use(c)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The longest parameter block of the fake is the driver's.
var _ [driver.MaxParamBytes - C.FAKE_MAX_PARAMS]struct{}
