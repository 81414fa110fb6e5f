// embed: x[t] = float32(table[ids[t]]).   table [rows, C] bf16, x [T, C] f32
//
// One block a token, 8 values a thread. Precondition: 0 <= ids[t] < rows, checked by the host.
// Bytes: 2 C read and 4 C written a token.
#include "bf16.cuh"
#include "params.cuh"

extern "C" __global__ void __launch_bounds__(128) embed(const __grid_constant__ EmbedParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	const int t = blockIdx.x;
	if (t >= p.head->tokens) return;
	const bf16 *row = p.table + (size_t)p.ids[t] * C;
	float *x = p.x + (size_t)t * C;
	for (int i = threadIdx.x * 8; i < C; i += 128 * 8) {
		float v[8];
		unpack8(*(const uint4 *)(row + i), v);
		*(float4 *)(x + i) = make_float4(v[0], v[1], v[2], v[3]);
		*(float4 *)(x + i + 4) = make_float4(v[4], v[5], v[6], v[7]);
	}
}
