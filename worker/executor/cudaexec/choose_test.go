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
	large, small, many := [2]int{51_200, 5120}, [2]int{1024, 2048}, [2]int{4096, 1024}
	above, most := useTile, useSlim // for 48 and 96 tokens of our own kernels
	if e.launch.HasPanel() {
		above, most = usePanel, usePanel
	}
	for _, c := range []struct {
		products     Products
		reproducible bool
		shape        [2]int
		want         map[int]product // by tokens
	}{
		{ProductsAuto, false, large, map[int]product{1: useGemv, 2: useGemv, 3: useBand, 8: useBand, 9: useLibrary, 64: useLibrary, 256: useLibrary}},
		{ProductsAuto, false, small, map[int]product{1: useBand, 8: useBand, 16: useSlim, 24: useLibrary}},
		{ProductsAuto, true, large, map[int]product{16: useSlim, 48: most, 96: above}},
		{ProductsAuto, true, small, map[int]product{16: useSlim, 32: useSlim, 48: most, 96: above}},
		{ProductsAuto, true, many, map[int]product{16: useSlim, 48: useSlim, 64: useSlim, 96: above}},
		{ProductsOwn, false, large, map[int]product{1: useSlim, 16: useSlim, 96: above}},
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
