// gemm: y[t,n] = sum_k w[n,k] x[t,k] on tensor cores.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// A warp computes 16 GEMM_M rows of w for 8 GEMM_N tokens; GEMM_W of the block's 4 warps lie along n, the rest along t.
// Fragments come straight from memory, 16 bytes a lane: the inner index of step s of a block of 32 is
// 8 (lane % 4) + 4 s + {0..3} on both sides. The next block's loads are issued before this block's products.
// Each output is one warp's sum over k in ascending blocks: the bits depend neither on T nor on GEMM_M and GEMM_N.
// Blocks (token tiles, row tiles) of 128 threads. Precondition: K % 8 == 0, rows 16-byte aligned.
#include "bf16.cuh"
#include "params.cuh"

constexpr int WN = GEMM_W, WT = 4 / GEMM_W;

struct Frag {
	uint4 w[GEMM_M][2], x[GEMM_N];
};

__device__ __forceinline__ void load(Frag &f, const MatmulParams &p, int n0, int t0, int tokens, int k) {
	const int g = threadIdx.x % 32 / 4;
	const uint4 zero = make_uint4(0, 0, 0, 0);
	const bool in = k < p.k;
#pragma unroll
	for (int i = 0; i < GEMM_M; i++)
#pragma unroll
		for (int r = 0; r < 2; r++) {
			const int n = n0 + 16 * i + 8 * r + g;
			f.w[i][r] = in && n < p.n ? *(const uint4 *)(p.w + (size_t)n * p.k + k) : zero;
		}
#pragma unroll
	for (int j = 0; j < GEMM_N; j++) {
		const int t = t0 + 8 * j + g;
		f.x[j] = in && t < tokens ? *(const uint4 *)(p.x + (size_t)t * p.k + k) : zero;
	}
}

__device__ __forceinline__ void multiply(float (&acc)[GEMM_M][GEMM_N][4], const Frag &f) {
#pragma unroll
	for (int s = 0; s < 2; s++)
#pragma unroll
		for (int i = 0; i < GEMM_M; i++)
#pragma unroll
			for (int j = 0; j < GEMM_N; j++)
				mma_bf16(acc[i][j], word(f.w[i][0], 2 * s), word(f.w[i][1], 2 * s), word(f.w[i][0], 2 * s + 1),
				         word(f.w[i][1], 2 * s + 1), word(f.x[j], 2 * s), word(f.x[j], 2 * s + 1));
}

extern "C" __global__ void __launch_bounds__(128) gemm(const __grid_constant__ MatmulParams p) {
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, tokens = *p.count;
	const int n0 = (blockIdx.y * WN + warp % WN) * 16 * GEMM_M, t0 = (blockIdx.x * WT + warp / WN) * 8 * GEMM_N;
	if (n0 >= p.n || t0 >= tokens) return;
	float acc[GEMM_M][GEMM_N][4];
#pragma unroll
	for (int i = 0; i < GEMM_M * GEMM_N * 4; i++) acc[i / 4 / GEMM_N][i / 4 % GEMM_N][i % 4] = 0.0f;
	Frag now;
	load(now, p, n0, t0, tokens, 8 * c);
	for (int k = 32; k - 32 < p.k; k += 32) {
		Frag next;
		load(next, p, n0, t0, tokens, k + 8 * c);
		multiply(acc, now);
		now = next;
	}
#pragma unroll
	for (int i = 0; i < GEMM_M; i++)
#pragma unroll
		for (int j = 0; j < GEMM_N; j++)
#pragma unroll
			for (int x = 0; x < 4; x++) { // x / 2: row g or g + 8; x % 2: token 2c or 2c + 1
				const int n = n0 + 16 * i + x / 2 * 8 + g, t = t0 + 8 * j + 2 * c + x % 2;
				if (n < p.n && t < tokens) p.y[(size_t)t * p.ldy + n] = acc[i][j][x];
			}
}
