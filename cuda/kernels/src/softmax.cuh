// The state of an online softmax and how two of them join. Attention in one block and attention spread over blocks use
// the same function in the same order, so that both give the same bits.
#pragma once
#include "ptx.cuh"

// Exponents are base 2. maximum is -inf while nothing has been seen.
struct SoftmaxState {
	float maximum, sum;
};

// join_factors returns what the two outputs must be multiplied with, and joins b into a.
__device__ __forceinline__ float2 join_factors(SoftmaxState &a, float b_max, float b_sum) {
	const float m = fmaxf(a.maximum, b_max);
	if (m == -INF) return make_float2(0.0f, 0.0f);
	const float fa = exp2_fast(a.maximum - m), fb = exp2_fast(b_max - m);
	a.maximum = m;
	a.sum = fmaf(a.sum, fa, __fmul_rn(b_sum, fb));
	return make_float2(fa, fb);
}

__device__ __forceinline__ float join(float a, float b, float2 f) { return fmaf(a, f.x, __fmul_rn(b, f.y)); }
