// score: a linear router head.   score[s] = hidden[s] . weight + bias, through a sigmoid if asked.   hidden [S, C] f32
//
// One warp a sample. It runs after sampling; samples that do not want a score keep 0.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"

extern "C" __global__ void __launch_bounds__(128) score(const __grid_constant__ ScoreParams p) {
	start_next();
	await_previous();
	const int r = blockIdx.x * 4 + threadIdx.x / 32, s = r + p.first, lane = threadIdx.x % 32;
	if (s >= p.head->samples || !(p.samples[s].want & WANT_SCORE)) return;
	float sum = 0;
	for (int i = lane; i < C; i += 32) sum = fmaf(p.hidden[(size_t)r * C + i], p.weight[i], sum);
	sum = warp_sum(sum) + p.bias;
	if (lane == 0) p.stats[s].score = p.sigmoid ? 1.0f / (1.0f + expf(-sum)) : sum;
}
