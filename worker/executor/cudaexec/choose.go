package cudaexec

import "github.com/tokenrouter/tokenrouter/cuda/kernels"

// product is a kernel that multiplies matrices.
type product int

const (
	useGemv product = iota
	useBand
	useSlim
	usePanel
	useTile
	useLibrary
)

// product chooses the kernel for a step padded to a number of tokens and a matrix [n, k]. Reproducible steps have band, slim
// and panel or tile where they give the same bits.
func (e *Executor) product(tokens, n, k int) product {
	c, library := &e.cfg, e.device.blas != nil
	own := c.Reproducible || c.Products == ProductsOwn || !library
	if c.Products == ProductsLibrary && !own {
		return useLibrary
	}
	if e.banded(tokens, n, k) {
		return useBand
	}
	panel := e.launch.HasPanel()
	switch {
	case tokens <= 2 && !c.Reproducible && c.Products != ProductsOwn:
		return useGemv
	case tokens <= slimTokens(n, k), own && tokens <= ownSlim(n, k, panel):
		return useSlim
	case !own:
		return useLibrary
	case panel:
		return usePanel
	}
	return useTile
}

// banded says whether band is the product's kernel: from 3 to 8 tokens, for one and two in small matrices (gemv takes longer
// to begin, and then reads as fast), and where results must be reproducible for matrices whose other kernels give band's bits.
func (e *Executor) banded(tokens, n, k int) bool {
	if tokens > kernels.MaxBand || !e.launch.BandFits(n, k) {
		return false
	}
	if e.cfg.Reproducible {
		return slimForm(n, k) == kernels.SlimDeep && e.cfg.Products != ProductsSlim
	}
	switch e.cfg.Products {
	case ProductsAuto:
		return tokens > 2 || n*k <= shortMatrix
	case ProductsBand:
		return true
	}
	return false
}

// Elements of matrices, by the time that an H200 takes to read them. In a small one launches count more than bytes: 64 MiB,
// about 15 µs. A short one is read about as fast as kernels begin and end: 16 MiB, about 4 µs.
const (
	smallMatrix = 32 << 20
	shortMatrix = 8 << 20
)

// inOrder says that a product next to a norm or to attention begins no sooner than these let it: the product after a norm when
// the product before the norm has ended, the one after attention as attention's blocks end. A product that begins early
// fills its share of an SM with weights and then holds it while it waits, which slows down what it waits for. That pays
// in short matrices alone, where the beginning is much of the whole. The layer's largest matrix decides, gate over up.
func (e *Executor) inOrder() bool { return 2*e.model.FFN*e.model.Hidden > shortMatrix }

// slimTokens is the largest number of tokens for which slim beats the library, measured on an H200: in small matrices up
// to 16, where the library's launches count; in large ones never, since above gemv's two tokens the library reads the
// weights at nearly the full bandwidth.
func slimTokens(n, k int) int {
	if n*k <= smallMatrix {
		return 16
	}
	return 0
}

// ownSlim is the largest number of tokens for which slim is the best of our own kernels, measured on an H200: above 16 panel
// reads large matrices faster. Short ones of many rows have enough blocks of slim to fill the device.
func ownSlim(n, k int, panel bool) int {
	switch {
	case !panel, n*k <= shortMatrix && n > 2048:
		return 2 * kernels.MaxSlim
	case n*k <= shortMatrix:
		return kernels.MaxSlim
	}
	return kernels.MaxSlim / 2
}

// slimForm is the form of slim for a matrix [n, k]: blocks of more rows where there are enough of them to fill the
// device twice.
func slimForm(n, _ int) kernels.SlimForm {
	const multiprocessors = 132
	if n/32 >= 2*multiprocessors {
		return kernels.SlimWide
	}
	return kernels.SlimDeep
}
