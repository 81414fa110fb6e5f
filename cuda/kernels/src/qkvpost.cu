// qkvpost: bias, per-head RMSNorm of q and k, rotary embedding, and the append to the paged cache.
//
//   q[t,h] = rope(norm(qkv[t,h] + bias, q_norm), pos[t])      h < HQ
//   cache[page, 0, h, off] = rope(norm(k + bias, k_norm))     cache[page, 1, h, off] = v + bias
//
// qkv [T, HQ + 2 HK, D] f32; cache [N, 2, HK, P, D] bf16; slots[t] = page * P + off, -1 stores nothing.
// Rotation pairs element i with i + D/2. One warp a (token, head); lane i holds elements i + 32 j and their partners.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

extern "C" __global__ void __launch_bounds__(128) qkvpost(const __grid_constant__ QkvpostParams p) {
	start_next();
	await_previous();
	constexpr int HALF = D / 2, PER = HALF / 32, HEADS = HQ + 2 * HK;
	const int t = blockIdx.x, h = blockIdx.y * 4 + threadIdx.x / 32, lane = threadIdx.x % 32;
	if (t >= p.head->tokens || h >= HEADS) return;
	const float *in = p.qkv + ((size_t)t * HEADS + h) * D;
	const bool is_q = h < HQ, is_v = h >= HQ + HK;
	float a[PER], b[PER];
	float sum = 0;
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = lane + 32 * j;
		a[j] = in[i], b[j] = in[i + HALF];
		if (p.bias) a[j] += bf16_to_float(p.bias[h * D + i]), b[j] += bf16_to_float(p.bias[h * D + i + HALF]);
		sum = fmaf(a[j], a[j], sum);
		sum = fmaf(b[j], b[j], sum);
	}
	if (!is_v) {
		const bf16 *norm = is_q ? p.q_norm : p.k_norm;
		if (norm) {
			const float inv = rsqrtf(warp_sum(sum) / D + p.eps);
#pragma unroll
			for (int j = 0; j < PER; j++) {
				const int i = lane + 32 * j;
				a[j] *= inv * bf16_to_float(norm[i]);
				b[j] *= inv * bf16_to_float(norm[i + HALF]);
			}
		}
		const float *rope = p.rope + (size_t)p.pos[t] * D;
#pragma unroll
		for (int j = 0; j < PER; j++) {
			const float2 cs = *(const float2 *)(rope + 2 * (lane + 32 * j));
			const float x = a[j], y = b[j];
			a[j] = x * cs.x - y * cs.y;
			b[j] = y * cs.x + x * cs.y;
		}
	}
	bf16 *out;
	if (is_q) {
		out = p.q + ((size_t)t * HQ + h) * D;
	} else {
		const int slot = p.slots[t];
		if (slot < 0) return;
		const int kh = h - HQ; // keys are heads [0, HK), values [HK, 2 HK) of a page
		out = p.cache + (((size_t)(slot / P) * 2 * HK + kh) * P + slot % P) * D;
	}
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = lane + 32 * j;
		out[i] = float_to_bf16(a[j]);
		out[i + HALF] = float_to_bf16(b[j]);
	}
}
