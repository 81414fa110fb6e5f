// rmsnorm: x += delta;  out = bf16(x * rsqrt(mean(x^2) + eps) * weight)
//
// x, delta [T, C] f32, x with a row for each block; weight [C] bf16; out [T, C] bf16; out32 the same before rounding. With samples, row r works on
// token samples[first + r].token and x is not written; first is 0 otherwise.
// One block of 256 threads a row; the row stays in registers. The sum's order depends on C alone. The weights come before the wait, and x,
// which was written half a layer ago, to the L2 at least.
//
// The next kernel's blocks are placed while these run, on the multiprocessors with the fewest. A block without a row (graphs have more
// blocks than some steps have rows) stays as long as the others therefore: were it to leave early, the place would look free, two of
// band's blocks would share a multiprocessor, and the whole product would wait for them.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

extern "C" __global__ void __launch_bounds__(256) rmsnorm(const __grid_constant__ RmsnormParams p) {
	TIMELINE_BLOCK;
	constexpr int THREADS = 256, PER = (C + THREADS * 4 - 1) / (THREADS * 4);
	__shared__ float scratch[32];
	const int r = blockIdx.x;
	if (!p.late) start_next();
	uint2 w[PER];
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = (j * THREADS + threadIdx.x) * 4;
		w[j] = i < C ? *(const uint2 *)(p.weight + i) : make_uint2(0, 0);
	}
	if (!p.samples)
		for (int i = threadIdx.x * 32; i < C; i += THREADS * 32) prefetch_keep(p.x + (size_t)r * C + i);
	await_previous();
	if (p.late) start_next();
	const int count = *p.count, row = min(r + p.first, count - 1);
	if (row < 0) return;
	const bool idle = row < r + p.first; // reads what no block writes
	const float *x = idle && p.delta ? p.delta : p.x, *delta = idle ? nullptr : p.delta;
	const size_t from = (size_t)(p.samples ? p.samples[row].token : row) * C, to = (size_t)r * C;
	float4 v[PER];
	float sum = 0;
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = (j * THREADS + threadIdx.x) * 4;
		v[j] = make_float4(0, 0, 0, 0);
		if (i >= C) continue;
		v[j] = *(const float4 *)(x + from + i);
		if (delta) {
			const float4 d = *(const float4 *)(delta + from + i);
			v[j].x += d.x, v[j].y += d.y, v[j].z += d.z, v[j].w += d.w;
			if (!p.samples) *(float4 *)(p.x + from + i) = v[j];
		}
		sum = fmaf(v[j].x, v[j].x, sum);
		sum = fmaf(v[j].y, v[j].y, sum);
		sum = fmaf(v[j].z, v[j].z, sum);
		sum = fmaf(v[j].w, v[j].w, sum);
	}
	const float inv = rsqrtf(block_sum<THREADS>(sum, scratch) / C + p.eps);
	if (idle) return;
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = (j * THREADS + threadIdx.x) * 4;
		if (i >= C) continue;
		const float a = v[j].x * inv * bf16_lo(w[j].x), b = v[j].y * inv * bf16_hi(w[j].x);
		const float c = v[j].z * inv * bf16_lo(w[j].y), d = v[j].w * inv * bf16_hi(w[j].y);
		*(uint2 *)(p.out + to + i) = make_uint2(pack_bf16(a, b), pack_bf16(c, d));
		if (p.out32) *(float4 *)(p.out32 + to + i) = make_float4(a, b, c, d);
	}
}
