package cudaexec

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
)

// Which kernel multiplies the matrices of the 32B and 0.6B models, with cuBLASLt at hand.
func TestProductChoice(t *testing.T) {
	d, _ := openTest(t)
	if d.blas == nil {
		lib, err := cublaslttest.New(t, cublaslttest.Options{WorkspaceBytes: 1 << 20}).Load()
		if err != nil {
			t.Skipf("skip: %v", err)
		}
		if d, err = NewDevice(d.ctx, d.builder, lib); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	cfg := graphLimits()
	cfg.Eager = true
	e := build(t, d, cfg, Dummy("odd", oddConfig(), 3))
	large, small := [2]int{51_200, 5120}, [2]int{1024, 2048}
	for _, c := range []struct {
		products     Products
		reproducible bool
		shape        [2]int
		want         map[int]product // by tokens
	}{
		{ProductsAuto, false, large, map[int]product{1: useGemv, 2: useGemv, 3: useBand, 8: useBand, 9: useLibrary, 64: useLibrary, 256: useLibrary}},
		{ProductsAuto, false, small, map[int]product{1: useBand, 8: useBand, 16: useSlim, 24: useLibrary}},
		{ProductsStreamk, false, large, map[int]product{1: useGemv, 2: useGemv, 8: useBand, 9: useStreamk, 48: useStreamk, 64: useStreamk, 96: useLibrary}},
		{ProductsStreamk, false, small, map[int]product{8: useBand, 16: useSlim, 24: useLibrary}},
		{ProductsStreamk, true, large, map[int]product{16: useSlim, 48: useSlim, 96: useTile}},
		{ProductsOwn, false, large, map[int]product{1: useSlim, 16: useSlim, 96: useTile}},
		{ProductsLibrary, false, large, map[int]product{1: useLibrary, 16: useLibrary}},
	} {
		e.cfg.Products, e.cfg.Reproducible = c.products, c.reproducible
		for tokens, want := range c.want {
			if got := e.product(tokens, c.shape[0], c.shape[1]); got != want {
				t.Errorf("products %d, reproducible %v, %v, %d tokens: kernel %d, want %d", c.products, c.reproducible, c.shape, tokens, got, want)
			}
		}
	}
}

// Products by streamk against the others, with every buffer poisoned.
func TestStreamkAgrees(t *testing.T) {
	d, dev := openTest(t)
	if dev.Simulated && testing.Short() {
		t.Skip("skip: no CUDA driver")
	}
	ids := make([]int32, 90)
	for i := range ids {
		ids[i] = int32(i * 7 % 99)
	}
	logits := func(p Products) [][]float32 {
		e := build(t, d, Config{
			Vocab: 99, MaxSlots: 1, MaxContext: 128, MaxTokens: 90, Pages: 2, Partials: 4, Poison: true, BlockEachOp: true, Products: p, streamkFrom: 1,
		}, Dummy("odd", oddConfig(), 3))
		out, _ := allLogits(t, e, ids, 40)
		return out
	}
	if d := distance(logits(ProductsStreamk), logits(ProductsAuto)); !(d > 0 && d < 5e-3) {
		t.Errorf("distance %.2g between streamk's and other products", d)
	}
}
