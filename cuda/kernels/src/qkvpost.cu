// qkvpost: bias, per-head RMSNorm of q and k, rotary embedding, and the append to the paged cache.
//
//   q[t,h] = rope(norm(qkv[t,h] + bias, q_norm), pos[t])      h < HQ
//   cache[page, 0, h, off] = rope(norm(k + bias, k_norm))     cache[page, 1, h, off] = v + bias
//
// qkv [T, HQ + 2 HK, D] f32; cache [N, 2, HK, P, D] bf16; slots[t] = page * P + off, -1 stores nothing.
// Rotation pairs element i with i + D/2. One warp a (token, head); lane i holds elements i + 32 j and their partners.
#include "bf16.cuh"
#include "params.cuh"
#include "heads.cuh"
#include "reduce.cuh"

extern "C" __global__ void __launch_bounds__(128) qkvpost(const __grid_constant__ QkvpostParams p) {
	TIMELINE_BLOCK;
	await_previous();
	start_next();
	const int t = blockIdx.x, h = blockIdx.y * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
	if (t >= p.head->tokens || h >= HEADS) return;
	float v[2 * HEAD_PER];
	finish_head(p.heads, t, h, p.pos[t], v);
	bf16 *out;
	if (h < HQ) {
		out = p.q + ((size_t)t * HQ + h) * D;
	} else {
		const int slot = p.slots[t];
		if (slot < 0) return;
		const int kh = h - HQ; // keys are heads [0, HK), values [HK, 2 HK) of a page
		out = p.cache + (((size_t)(slot / P) * 2 * HK + kh) * P + slot % P) * D;
	}
#pragma unroll
	for (int j = 0; j < 2 * HEAD_PER; j++) out[lane + 32 * j] = float_to_bf16(v[j]);
}
