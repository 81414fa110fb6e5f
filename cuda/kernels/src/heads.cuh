// What makes a head's query, key or value of the product that holds them all: bias, RMSNorm and rotation. One function for
// all kernels that do it, so that they agree to the last bit.
#pragma once
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

constexpr int HEADS = HQ + 2 * HK, HEAD_PER = D / 64; // pairs of elements of a lane

// finish_head makes head h of token t at a position: queries are heads [0, HQ), then come keys, then values. A warp works on
// it; v[j] of a lane is element lane + 32 j. Rotation pairs element i with i + D/2.
__device__ __forceinline__ void finish_head(const HeadsParams &p, int t, int h, int pos, float (&v)[2 * HEAD_PER]) {
	constexpr int HALF = D / 2;
	const int lane = threadIdx.x % 32;
	const float *in = p.qkv + ((size_t)t * HEADS + h) * D;
	const bool is_v = h >= HQ + HK;
	const bf16 *norm = is_v ? nullptr : h < HQ ? p.q_norm : p.k_norm;
	const float *rope = p.rope + (size_t)pos * D;
	float2 turn[HEAD_PER];
	float weight[2 * HEAD_PER];
#pragma unroll
	for (int j = 0; j < 2 * HEAD_PER; j++) {
		v[j] = in[lane + 32 * j];
		weight[j] = norm ? bf16_to_float(norm[lane + 32 * j]) : 0.0f;
		if (j < HEAD_PER) turn[j] = is_v ? make_float2(1, 0) : *(const float2 *)(rope + 2 * (lane + 32 * j));
	}
	if (p.bias) {
#pragma unroll
		for (int j = 0; j < 2 * HEAD_PER; j++) v[j] += bf16_to_float(p.bias[h * D + lane + 32 * j]);
	}
	if (is_v) return;
	if (norm) {
		float sum = 0;
#pragma unroll
		for (int j = 0; j < HEAD_PER; j++) sum = fmaf(v[j], v[j], sum), sum = fmaf(v[j + HEAD_PER], v[j + HEAD_PER], sum);
		const float inv = rsqrtf(warp_sum(sum) / D + p.eps);
#pragma unroll
		for (int j = 0; j < 2 * HEAD_PER; j++) v[j] *= __fmul_rn(inv, weight[j]);
	}
	static_assert(HALF == 32 * HEAD_PER, "pairs of one lane");
#pragma unroll
	for (int j = 0; j < HEAD_PER; j++) {
		const float x = v[j], y = v[j + HEAD_PER];
		v[j] = fmaf(x, turn[j].x, -__fmul_rn(y, turn[j].y));
		v[j + HEAD_PER] = fmaf(y, turn[j].x, __fmul_rn(x, turn[j].y));
	}
}
