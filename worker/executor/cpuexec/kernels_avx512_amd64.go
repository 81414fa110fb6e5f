//go:build amd64 && !noasm

package cpuexec

import "golang.org/x/sys/cpu"

// hasAVX512 reports whether matmul8bAVX512 runs here.
func hasAVX512() bool {
	return cpu.X86.HasAVX512F && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512BW
}

// matmul8bAVX512 computes y[t][r] = x[t] · w[r] for eight packed rows of x. Rows of
// w are ld elements apart, row t of y begins at t·ldy. k is a positive multiple of
// 8, n a multiple of 4.
//
//go:noescape
func matmul8bAVX512(y, x *float32, w *uint16, n, k, ld, ldy int)

func avx512Matmul8b(y, x []float32, w []uint16, n, k, ldy int) {
	if n == 0 {
		return
	}
	// The slice expressions check the bounds that the assembly relies on.
	y, x, w = y[:7*ldy+n], x[:8*k], w[:n*k]
	matmul8bAVX512(&y[0], &x[0], &w[0], n, k, k, ldy)
}
