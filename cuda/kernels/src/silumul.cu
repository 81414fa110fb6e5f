// silumul: out[t,i] = bf16(silu(gu[t,i]) * gu[t,F+i]),  silu(x) = x / (1 + exp(-x)).   gu [T, 2F] f32, out [T, F] bf16
//
// Four values a thread; blocks (F / 1024, T).
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

extern "C" __global__ void __launch_bounds__(256) silumul(const __grid_constant__ SilumulParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	const int t = blockIdx.y, i = (blockIdx.x * 256 + threadIdx.x) * 4;
	if (t >= p.head->tokens || i >= F) return;
	const float4 g = *(const float4 *)(p.gu + (size_t)t * 2 * F + i);
	const float4 u = *(const float4 *)(p.gu + (size_t)t * 2 * F + F + i);
	*(uint2 *)(p.out + (size_t)t * F + i) = make_uint2(pack_bf16(silu(g.x) * u.x, silu(g.y) * u.y),
	                                                   pack_bf16(silu(g.z) * u.z, silu(g.w) * u.w));
}
