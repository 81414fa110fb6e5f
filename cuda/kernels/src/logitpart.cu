// logitpart: what one part of a row of raw logits adds to its features.   logits [S, ld] f32
//
//   max, argmax (lowest id on ties), second largest, sum exp(z - max), sum (z - max) exp(z - max)
//
// A row is cut into LOGIT_PARTS parts, so that many blocks read it; logitstats joins them. A part stays in registers, so
// logits are read once. Blocks (LOGIT_PARTS, samples) of 256 threads. The sums' order depends on V alone.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

constexpr int THREADS = 256, SPAN = (V + LOGIT_PARTS - 1) / LOGIT_PARTS, PER = (SPAN + THREADS - 1) / THREADS;

extern "C" __global__ void __launch_bounds__(THREADS) logitpart(const __grid_constant__ LogitpartParams p) {
	TIMELINE_BLOCK;
	__shared__ float scratch[32];
	__shared__ int ids[32];
	start_next();
	await_previous();
	const int r = blockIdx.y;
	if (r + p.first >= p.head->samples) return;
	const float *z = p.logits + (size_t)r * p.ld;
	const int start = blockIdx.x * SPAN, end = min(start + SPAN, V);
	float v[PER];
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = start + j * THREADS + threadIdx.x;
		v[j] = i < end ? z[i] : -INF;
	}
	float first = -INF, second = -INF;
	int id = 0x7fffffff, bad = 0;
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const int i = start + j * THREADS + threadIdx.x;
		if (i >= end) continue;
		if (!(v[j] < INF)) {
			bad = 1;
		} else if (greater(v[j], i, first, id)) {
			second = first, first = v[j], id = i;
		} else if (v[j] > second) {
			second = v[j];
		}
	}
	const float own = first, own_second = second;
	const int own_id = id;
	block_argmax<THREADS>(first, id, scratch, ids);
	float rest = own_id == id ? own_second : own;
	int rest_id = 0;
	block_argmax<THREADS>(rest, rest_id, scratch, ids);
	bad = __syncthreads_or(bad);
	float sum = 0, weighted = 0;
#pragma unroll
	for (int j = 0; j < PER; j++) {
		const float d = v[j] - first, e = v[j] > -INF && v[j] < INF ? expf(d) : 0.0f;
		sum += e;
		if (e > 0) weighted = fmaf(d, e, weighted);
	}
	sum = block_sum<THREADS>(sum, scratch);
	weighted = block_sum<THREADS>(weighted, scratch);
	if (threadIdx.x == 0) p.parts[(size_t)r * LOGIT_PARTS + blockIdx.x] = {first, rest, sum, weighted, id, bad};
}
