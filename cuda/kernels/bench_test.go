package kernels_test

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest/simt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// rig is a device with the kernels of one shape.
type rig struct {
	*cudatest.Device
	set *kernels.Set
	tb  testing.TB

	partial, arrived driver.Ptr // of products in parts, made when they are first asked for
}

func newRig(tb testing.TB, d kernels.Dims) *rig {
	tb.Helper()
	dev := cudatest.Open(tb)
	return &rig{Device: dev, set: dev.Load(tb, d), tb: tb}
}

// withBig adds the vocabulary and heads of a real model on a GPU; the emulator would take minutes.
func withBig(tb testing.TB, dims ...kernels.Dims) []kernels.Dims {
	tb.Helper()
	if cudatest.Open(tb).Simulated {
		return dims
	}
	return append(dims, kernels.Dims{Hidden: 1024, FFN: 3072, Heads: 16, KVHeads: 8, HeadDim: 128, PageSize: 64, Vocab: 151669})
}

// ok fails the test on a failed launch.
func (r *rig) ok(err error) {
	r.tb.Helper()
	if err != nil {
		r.tb.Fatal(err)
	}
}

// room is for the partial sums of Panel, counters for the parts that are done.
func (r *rig) room() driver.Ptr {
	if r.partial == 0 {
		r.partial = cudatest.Make[float32](r.tb, r.Device, kernels.PanelRoom)
	}
	return r.partial
}

func (r *rig) counters() driver.Ptr {
	if r.arrived == 0 {
		r.arrived = cudatest.Put(r.tb, r.Device, make([]uint32, kernels.PanelTiles))
	}
	return r.arrived
}

// head puts a step's head on the device.
func (r *rig) head(h kernels.StepHead) driver.Ptr {
	return cudatest.Put(r.tb, r.Device, []kernels.StepHead{h})
}

// bothOrders runs f; on the emulator it runs again with threads in the other order and compares. f must start from
// fresh outputs each time.
func bothOrders[T comparable](r *rig, f func() []T) []T {
	r.tb.Helper()
	out := f()
	if !r.Simulated {
		return out
	}
	simt.Backwards(true)
	defer simt.Backwards(false)
	for i, v := range f() {
		if v != out[i] && !(v != v && out[i] != out[i]) {
			r.tb.Fatalf("element %d is %v with threads in order and %v backwards: a barrier is missing", i, out[i], v)
		}
	}
	return out
}

var (
	tiny = kernels.Dims{Hidden: 128, FFN: 256, Heads: 2, KVHeads: 1, HeadDim: 64, PageSize: 16, Vocab: 749}
	odd  = kernels.Dims{Hidden: 192, FFN: 1032, Heads: 6, KVHeads: 2, HeadDim: 64, PageSize: 8, Vocab: 5}
	wide = kernels.Dims{Hidden: 1088, FFN: 264, Heads: 16, KVHeads: 2, HeadDim: 128, PageSize: 64, Vocab: 2500}
	five = kernels.Dims{Hidden: 1280, FFN: 1024, Heads: 10, KVHeads: 2, HeadDim: 128, PageSize: 32, Vocab: 33}
)
