// attncombine: join the one-chunk partials of a tile, in chunk order, and write the output.   out [T, HQ, D] bf16
//
// Blocks (combines, HK) of 128 threads, 8 threads a packed row. See attn for rows and order.
#include "bf16.cuh"
#include "params.cuh"
#include "softmax.cuh"

extern "C" __global__ void __launch_bounds__(128) attncombine(const __grid_constant__ CombineParams p) {
	constexpr int PER = D / 8, ROWS = 16;
	const int row = threadIdx.x / 8, from = threadIdx.x % 8 * PER, h = blockIdx.y;
	for (int w = blockIdx.x; w < p.head->combines; w += gridDim.x) {
		const AttnCombine it = p.combines[w];
		if (row >= it.ntok * G) continue;
		SoftmaxState state = {-INF, 0.0f};
		float acc[PER];
#pragma unroll
		for (int i = 0; i < PER; i++) acc[i] = 0.0f;
		for (int n = 0; n < it.nchunks; n++) {
			const size_t at = ((size_t)(it.partial + n) * HK + h) * ROWS + row;
			const float2 f = join_factors(state, p.part_ml[at * 2], p.part_ml[at * 2 + 1]);
#pragma unroll
			for (int i = 0; i < PER; i++) acc[i] = join(acc[i], p.part_o[at * D + from + i], f);
		}
		bf16 *out = p.out + ((size_t)(it.token + row / G) * HQ + h * G + row % G) * D + from;
#pragma unroll
		for (int i = 0; i < PER; i += 2) *(u32 *)(out + i) = pack_bf16(acc[i] / state.sum, acc[i + 1] / state.sum);
	}
}
