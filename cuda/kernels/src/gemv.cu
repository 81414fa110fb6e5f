// gemv: y[t,n] = sum_k w[n,k] x[t,k] for few tokens.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// One warp computes GEMV_R rows for GEMV_T tokens, so weights are read once for GEMV_T tokens, 16 bytes a lane. Lane i
// sums elements 8 i + {0..7} + 256 j in order of j, then lanes are summed by a butterfly: the order depends on K alone.
// Blocks (ceil(N / (4 GEMV_R)), ceil(T / GEMV_T)) of 128 threads. Precondition: K % 8 == 0, rows 16-byte aligned.
// Bytes: 2 N K for each GEMV_T tokens.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

extern "C" __global__ void __launch_bounds__(128) gemv(const __grid_constant__ MatmulParams p) {
	const int lane = threadIdx.x % 32, row0 = (blockIdx.x * 4 + threadIdx.x / 32) * GEMV_R, t0 = blockIdx.y * GEMV_T;
	const int tokens = *p.count;
	if (row0 >= p.n || t0 >= tokens) return;
	const bf16 *w[GEMV_R], *x[GEMV_T]; // past the end, the last row and token are computed again and not stored
#pragma unroll
	for (int r = 0; r < GEMV_R; r++) w[r] = p.w + (size_t)min(row0 + r, p.n - 1) * p.k;
#pragma unroll
	for (int t = 0; t < GEMV_T; t++) x[t] = p.x + (size_t)min(t0 + t, tokens - 1) * p.k;
	float acc[GEMV_R][GEMV_T];
#pragma unroll
	for (int i = 0; i < GEMV_R * GEMV_T; i++) acc[i / GEMV_T][i % GEMV_T] = 0.0f;
#pragma unroll GEMV_U
	for (int k = lane * 8; k < p.k; k += 256) {
		uint4 packed[GEMV_R];
#pragma unroll
		for (int r = 0; r < GEMV_R; r++) packed[r] = load_stream(w[r] + k);
		float wide[GEMV_R][8];
#pragma unroll
		for (int r = 0; r < GEMV_R; r++) unpack8(packed[r], wide[r]);
#pragma unroll
		for (int t = 0; t < GEMV_T; t++) {
			float v[8];
			unpack8(*(const uint4 *)(x[t] + k), v);
#pragma unroll
			for (int r = 0; r < GEMV_R; r++)
#pragma unroll
				for (int j = 0; j < 8; j++) acc[r][t] = fmaf(wide[r][j], v[j], acc[r][t]);
		}
	}
#pragma unroll
	for (int r = 0; r < GEMV_R; r++)
#pragma unroll
		for (int t = 0; t < GEMV_T; t++) {
			const float sum = warp_sum(acc[r][t]);
			if (lane == 0 && row0 + r < p.n && t0 + t < tokens) p.y[(size_t)(t0 + t) * p.ldy + row0 + r] = sum;
		}
}
