// hashfill: dummy weights.   out[i] = bf16(offset + scale * u),  u = int16(mix(key + (first + i + 1) * golden) >> 48) / 2^15
//
// mix is the finaliser of splitmix64. The same numbers come from Go (package models/dummy) and models/dummy/reference.py:
// each operation is rounded to float32 on its own. Eight elements a thread.
#include "bf16.cuh"
#include "params.cuh"

__device__ __forceinline__ u64 mix(u64 x) {
	x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
	x = (x ^ x >> 27) * 0x94D049BB133111EBull;
	return x ^ x >> 31;
}

extern "C" __global__ void __launch_bounds__(256) hashfill(const __grid_constant__ HashfillParams p) {
	TIMELINE_BLOCK;
	const u64 from = ((u64)blockIdx.x * 256 + threadIdx.x) * 8;
	for (u64 i = from; i < from + 8 && i < p.n; i++) {
		const u64 x = mix(p.key + (p.first + i + 1) * 0x9E3779B97F4A7C15ull);
		const float u = __fmul_rn((float)(short)(x >> 48), 0x1p-15f);
		p.out[i] = float_to_bf16(__fadd_rn(p.offset, __fmul_rn(p.scale, u)));
	}
}
