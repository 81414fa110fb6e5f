// bfloat16 as raw bits, and eight of them in a 16-byte word.
#pragma once
#include "ptx.cuh"

typedef unsigned short bf16;

__device__ __forceinline__ float bf16_to_float(bf16 v) { return __uint_as_float((unsigned)v << 16); }

// bf16_lo and bf16_hi widen the two halves of a 32-bit word.
__device__ __forceinline__ float bf16_lo(unsigned w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float bf16_hi(unsigned w) { return __uint_as_float(w & 0xffff0000u); }

// float_to_bf16 rounds to nearest even; every NaN becomes 0x7fff, as the hardware conversion does.
__device__ __forceinline__ bf16 float_to_bf16(float f) { return (bf16)(pack_bf16(f, 0.0f) & 0xffffu); }

// unpack8 widens eight values, in memory order.
__device__ __forceinline__ void unpack8(uint4 w, float (&v)[8]) {
	v[0] = bf16_lo(w.x), v[1] = bf16_hi(w.x);
	v[2] = bf16_lo(w.y), v[3] = bf16_hi(w.y);
	v[4] = bf16_lo(w.z), v[5] = bf16_hi(w.z);
	v[6] = bf16_lo(w.w), v[7] = bf16_hi(w.w);
}

// word returns the i-th 32-bit word; i is a constant after unrolling.
__device__ __forceinline__ unsigned word(const uint4 &w, int i) {
	return i == 0 ? w.x : i == 1 ? w.y : i == 2 ? w.z : w.w;
}
