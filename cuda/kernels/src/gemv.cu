// gemv: y[t,n] = sum_k w[n,k] x[t,k] for very few tokens.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// With GEMV_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// One warp computes GEMV_R rows for GEMV_T tokens, so weights are read once for GEMV_T tokens, 16 bytes a lane. Lane i
// sums elements 8 i + {0..7} + 256 j in order of j, then lanes are summed by a butterfly: the order depends on K alone.
// Weights do not depend on earlier kernels, so the first ones are fetched before the wait.
// Blocks (ceil(N / (4 GEMV_R)), ceil(T / GEMV_T)) of 128 threads. Precondition: K % 8 == 0, rows 16-byte aligned.
// Bytes: 2 N K for each GEMV_T tokens.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "silu.cuh"

// add adds eight products of each row and token.
__device__ __forceinline__ void add(float (&acc)[GEMV_R][GEMV_T], const uint4 (&w)[GEMV_R], const bf16 *(&x)[GEMV_T], int k) {
	float wide[GEMV_R][8];
#pragma unroll
	for (int r = 0; r < GEMV_R; r++) unpack8(w[r], wide[r]);
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

extern "C" __global__ void __launch_bounds__(128) gemv(const __grid_constant__ MatmulParams p) {
	TIMELINE_BLOCK;
	constexpr int PER = GEMV_ACT ? 1 : GEMV_R; // outputs of a warp
	static_assert(!GEMV_ACT || GEMV_R == 2, "a gate and its up");
	const int lane = threadIdx.x % 32, out0 = (blockIdx.x * 4 + threadIdx.x / 32) * PER, t0 = blockIdx.y * GEMV_T;
	const int outs = GEMV_ACT ? p.n / 2 : p.n;
	const bf16 *w[GEMV_R], *x[GEMV_T]; // past the end, the last row and token are computed again and not stored
#pragma unroll
	for (int r = 0; r < GEMV_R; r++)
		w[r] = p.w + (size_t)(GEMV_ACT ? min(out0, outs - 1) + r * outs : min(out0 + r, outs - 1)) * p.k;
	if (!p.late) start_next();
	uint4 ahead[GEMV_U][GEMV_R];
#pragma unroll
	for (int u = 0; u < GEMV_U; u++)
#pragma unroll
		for (int r = 0; r < GEMV_R; r++)
			ahead[u][r] = lane * 8 + 256 * u < p.k ? load_stream(w[r] + lane * 8 + 256 * u) : make_uint4(0, 0, 0, 0);
	await_previous();
	if (p.late) start_next();
	const int tokens = *p.count;
	if (out0 >= outs || t0 >= tokens) return;
#pragma unroll
	for (int t = 0; t < GEMV_T; t++) x[t] = p.x + (size_t)min(t0 + t, tokens - 1) * p.k;
	float acc[GEMV_R][GEMV_T];
#pragma unroll
	for (int i = 0; i < GEMV_R * GEMV_T; i++) acc[i / GEMV_T][i % GEMV_T] = 0.0f;
#pragma unroll
	for (int u = 0; u < GEMV_U; u++)
		if (lane * 8 + 256 * u < p.k) add(acc, ahead[u], x, lane * 8 + 256 * u);
#pragma unroll GEMV_U
	for (int k = lane * 8 + 256 * GEMV_U; k < p.k; k += 256) {
		uint4 packed[GEMV_R];
#pragma unroll
		for (int r = 0; r < GEMV_R; r++) packed[r] = load_stream(w[r] + k);
		add(acc, packed, x, k);
	}
#pragma unroll
	for (int t = 0; t < GEMV_T; t++) {
		float sum[GEMV_R];
#pragma unroll
		for (int r = 0; r < GEMV_R; r++) sum[r] = warp_sum(acc[r][t]);
		if (lane != 0 || t0 + t >= tokens) continue;
#if GEMV_ACT
		((bf16 *)p.y)[(size_t)(t0 + t) * p.ldy + out0] = float_to_bf16(silu(sum[0]) * sum[1]);
#else
#pragma unroll
		for (int r = 0; r < GEMV_R; r++)
			if (out0 + r < outs) ((float *)p.y)[(size_t)(t0 + t) * p.ldy + out0 + r] = sum[r];
#endif
	}
}
