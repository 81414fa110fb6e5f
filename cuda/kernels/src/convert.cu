// convert: out[i] = bf16(in[i]) from float32 or float16, to nearest even.   Four elements a thread.
#include "bf16.cuh"
#include "params.cuh"

// half_to_float widens exactly; subnormals are scaled by hand.
__device__ __forceinline__ float half_to_float(unsigned short h) {
	const u32 sign = (u32)(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 1023;
	if (exponent == 31) return __uint_as_float(sign | 0x7f800000u | fraction << 13);
	if (exponent != 0) return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
	const float v = (float)fraction * 0x1p-24f;
	return sign ? -v : v;
}

extern "C" __global__ void __launch_bounds__(256) convert(const __grid_constant__ ConvertParams p) {
	TIMELINE_BLOCK;
	const u64 from = ((u64)blockIdx.x * 256 + threadIdx.x) * 4;
	for (u64 i = from; i < from + 4 && i < p.n; i++)
		p.out[i] = float_to_bf16(p.from == 1 ? ((const float *)p.in)[i] : half_to_float(((const unsigned short *)p.in)[i]));
}
