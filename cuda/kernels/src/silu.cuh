// The gate of the feed-forward part.
#pragma once
#include "ptx.cuh"

// silu is x / (1 + exp(-x)). Every operation is spelled out, since a compiler that may contract them does so differently from kernel
// to kernel, and kernels must agree to the last bit.
__device__ __forceinline__ float silu(float x) {
	const float e = exp2_fast(__fmul_rn(x, -1.44269504088896f));
	return __fmul_rn(x, reciprocal(__fadd_rn(1.0f, e)));
}
