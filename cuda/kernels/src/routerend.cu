// routerend: the score of a router net, sigmoid(w . norm(x) + bias), with a layer norm if there is a gain.   x [S, K] f32
//
// One block of 256 threads a sample. Samples that do not want the net keep their score. It runs after sampling.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "router.cuh"

extern "C" __global__ void __launch_bounds__(ROUTER_THREADS) routerend(const __grid_constant__ RouterEndParams p) {
	TIMELINE_BLOCK;
	__shared__ float scratch[32];
	start_next();
	await_previous();
	const int r = blockIdx.x, s = r + p.first;
	if (!router_wants(p.head, p.samples, p.stats, s, p.net)) return;
	const float *x = p.x + (size_t)r * p.k;
	float mean = 0, scale = 1;
	if (p.gain) {
		float sum = 0, squares = 0;
		for (int i = threadIdx.x; i < p.k; i += ROUTER_THREADS) sum += x[i];
		mean = block_sum<ROUTER_THREADS>(sum, scratch) / p.k;
		for (int i = threadIdx.x; i < p.k; i += ROUTER_THREADS) squares = fmaf(x[i] - mean, x[i] - mean, squares);
		scale = 1.0f / sqrtf(block_sum<ROUTER_THREADS>(squares, scratch) / p.k + ROUTER_EPS);
	}
	float dot = 0;
	for (int i = threadIdx.x; i < p.k; i += ROUTER_THREADS) {
		const float v = p.gain ? fmaf((x[i] - mean) * scale, p.gain[i], p.shift[i]) : x[i];
		dot = fmaf(v, p.w[i], dot);
	}
	dot = block_sum<ROUTER_THREADS>(dot, scratch) + p.bias;
	if (threadIdx.x == 0) p.stats[s].score = 1.0f / (1.0f + expf(-dot));
}
