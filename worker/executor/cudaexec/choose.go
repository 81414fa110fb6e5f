package cudaexec

import "github.com/tokenrouter/tokenrouter/cuda/kernels"

// product is a kernel that multiplies matrices.
type product int

const (
	useGemv product = iota
	useBand
	useSlim
	useTile
	useLibrary
)

// product chooses the kernel for a step padded to a number of tokens and a matrix [n, k]. Reproducible steps have band, slim
// and tile where they give the same bits.
func (e *Executor) product(tokens, n, k int) product {
	c, library := &e.cfg, e.device.blas != nil
	own := c.Reproducible || c.Products == ProductsOwn
	if c.Products == ProductsLibrary && library && !own {
		return useLibrary
	}
	if e.banded(tokens, n, k) {
		return useBand
	}
	switch {
	case tokens <= 2 && !own:
		return useGemv
	case tokens <= kernels.MaxBand && k > kernels.BandSlice && slimForm(n, k) == kernels.SlimWide && !own && c.Products == ProductsAuto:
		return useSlim // band would read the tokens in several slices, and has few tiles for each block
	case tokens <= slimTokens(n, k) || !(library && !own) && tokens <= 2*kernels.MaxSlim:
		return useSlim
	case library && !own:
		return useLibrary
	}
	return useTile
}

// banded says whether band is the product's kernel: for up to 8 tokens where matrices or blocks are such that it beats the
// others, and where results must be reproducible for matrices whose other kernels give band's bits.
func (e *Executor) banded(tokens, n, k int) bool {
	if tokens > kernels.MaxBand || !e.launch.BandFits(n, k) {
		return false
	}
	if e.cfg.Reproducible {
		return slimForm(n, k) == kernels.SlimDeep && e.cfg.Products != ProductsSlim
	}
	switch e.cfg.Products {
	case ProductsAuto:
		if tokens <= 2 { // gemv takes longer to begin, and then reads as fast
			return n*k <= smallMatrix/4
		}
		return slimForm(n, k) == kernels.SlimDeep || k <= kernels.BandSlice
	case ProductsBand:
		return true
	}
	return false
}

// smallMatrix is the elements of a matrix in which launches count more than bytes: 64 MiB, about 15 µs.
const smallMatrix = 32 << 20

// slimTokens is the largest number of tokens for which slim beats the library, measured on an H200: in small matrices up
// to 16, where the library's launches count; in large ones never, since above gemv's two tokens the library reads the
// weights at nearly the full bandwidth.
func slimTokens(n, k int) int {
	if n*k <= smallMatrix {
		return 16
	}
	return 0
}

// slimForm is the form of slim for a matrix [n, k]: blocks of more rows where there are enough of them to fill the
// device twice, or about once with so long rows that a block has much to do.
func slimForm(n, k int) kernels.SlimForm {
	const multiprocessors = 132
	if n/32 >= 2*multiprocessors || k > kernels.BandSlice && n/32 >= multiprocessors*9/10 {
		return kernels.SlimWide
	}
	return kernels.SlimDeep
}
