package cudaexec

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
)

// Products by cuBLASLt (the real one on a GPU, a simulated one on the emulator) against our own.
func TestLibraryAgrees(t *testing.T) {
	dev := cudatest.Open(t)
	blas := dev.Blas
	if dev.Simulated {
		if testing.Short() {
			t.Skip("skip: no CUDA driver")
		}
		var err error
		if blas, err = cublaslttest.New(t, cublaslttest.Options{WorkspaceBytes: 1 << 20}).Load(); err != nil {
			t.Skipf("skip: %v", err)
		}
	}
	if blas == nil {
		t.Skip("skip: no cuBLASLt")
	}
	ids := make([]int32, 90)
	for i := range ids {
		ids[i] = int32(i * 7 % 99)
	}
	limits := Config{Vocab: 99, MaxSlots: 1, MaxContext: 128, MaxTokens: 90, Pages: 2, Partials: 4, Poison: true, BlockEachOp: true}
	logits := func(library bool) [][]float32 {
		lib := blas
		if !library {
			lib = nil
		}
		d, err := NewDevice(dev.Context, dev.Builder, lib)
		if err != nil {
			t.Fatal(err)
		}
		e, err := New(t.Context(), limits, d, Dummy("odd", oddConfig(), 3))
		if err != nil {
			t.Fatal(err)
		}
		out, _ := allLogits(t, e, ids, 50)
		if d.HasCuBLASLt() != library || library && d.blas.Asked() == 0 {
			t.Errorf("library %v: the device has it: %v", library, d.HasCuBLASLt())
		}
		if err := joinClose(nil, e.Shutdown, d.Close); err != nil {
			t.Fatal(err)
		}
		return out
	}
	with, without := logits(true), logits(false)
	if d := distance(with, without); !(d < 5e-3) {
		t.Errorf("distance %.2g between cuBLASLt's and our products", d)
	} else {
		t.Logf("distance %.2g", d)
	}
}
