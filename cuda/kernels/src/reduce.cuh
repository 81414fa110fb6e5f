// Reductions over a warp and a block, in an order that depends on the thread count alone.
#pragma once

#define FULL_WARP 0xffffffffu

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(FULL_WARP, v, d);
	return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
	return v;
}

// block_sum gives every thread the sum over the block. THREADS is the block's size, a multiple of 32 up to 1024.
// scratch has 32 floats of shared memory; it may be reused after the call by everybody.
template <int THREADS>
__device__ __forceinline__ float block_sum(float v, float *scratch) {
	v = warp_sum(v);
	if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
	__syncthreads();
	float t = threadIdx.x % 32 < THREADS / 32 ? scratch[threadIdx.x % 32] : 0.0f;
	t = warp_sum(t);
	__syncthreads();
	return t;
}

// greater orders (value, id) pairs: larger value first, lower id on ties.
__device__ __forceinline__ bool greater(float a, int ia, float b, int ib) { return a > b || (a == b && ia < ib); }

// block_argmax gives every thread the first pair in the order of greater. scratch and ids have 32 entries each.
template <int THREADS>
__device__ __forceinline__ void block_argmax(float &v, int &id, float *scratch, int *ids) {
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) {
		float ov = __shfl_xor_sync(FULL_WARP, v, d);
		int oi = __shfl_xor_sync(FULL_WARP, id, d);
		if (greater(ov, oi, v, id)) v = ov, id = oi;
	}
	if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v, ids[threadIdx.x / 32] = id;
	__syncthreads();
	v = scratch[0], id = ids[0];
	for (int w = 1; w < THREADS / 32; w++)
		if (greater(scratch[w], ids[w], v, id)) v = scratch[w], id = ids[w];
	__syncthreads();
}
