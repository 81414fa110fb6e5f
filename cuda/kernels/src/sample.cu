// sample: the next token of each row, by the recipe of Go's package worker/sampler, in float64.
//
//   given id: that one; greedy (temperature 0): argmax z, lowest id on ties
//   else: order by (z descending, id ascending); top-k keeps the first k; top-p keeps the shortest prefix whose sum of
//   e(i) = exp((z(i) - max) / T) reaches p times the candidates' sum; min-p keeps (z(i) - max) / T >= ln(min-p);
//   draw argmax z(i)/T + g(i), lowest id on ties,
//   g(i) = -ln(-ln(1 - (w + 0.5) / 2^32)), w = word i of the stream (seed, position, model, token)
//
// One block of 512 threads a row. Both cuts are found exactly on 64-bit keys, digit by digit, so the kept set is the
// ids whose key is at least a bound. Sums of e for top-p are integers in units of 2^-40: their order does not matter.
// Precondition: logitstats has run. Rows flagged by it keep token 0. The logits of samples with adjustments have been changed
// since: their largest is found again here, and adjust sets their log-probability later.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "topkey.cuh"
#include "philox.cuh"

constexpr int THREADS = 512;
constexpr double GUMBEL_MAX = 23.0;   // above every g
constexpr double UNIT = 1099511627776.0; // 2^40

__device__ __forceinline__ u64 mass(float z, float best, double temperature) {
	return (u64)(exp(((double)z - (double)best) / temperature) * UNIT);
}

// count_bound returns the k-th largest key.
__device__ __forceinline__ u64 count_bound(const float *z, u64 k, u64 *hist, u64 *shared) {
	u64 prefix = 0;
	for (int digit = 7; digit >= 0; digit--) {
		for (int i = threadIdx.x; i < 256; i += THREADS) hist[i] = 0;
		__syncthreads();
		for (int i = threadIdx.x; i < V; i += THREADS) {
			const u64 key = top_key(z[i], i);
			if (matches(key, prefix, digit)) atomicAdd(&hist[key >> (8 * digit) & 255], 1ull);
		}
		__syncthreads();
		if (threadIdx.x < 32) {
			u64 before;
			const int bin = pick_digit<u64>(hist, k, before);
			if (threadIdx.x == 0) {
				shared[0] = prefix | (u64)bin << (8 * digit);
				shared[1] = hist[bin] == k - before ? 0 : k - before;
			}
		}
		__syncthreads();
		prefix = shared[0], k = shared[1];
		__syncthreads();
		if (k == 0) break;
	}
	return prefix;
}

// mass_bound returns the key at which the running sum of e, from the largest key down, reaches share of the sum over the
// keys from bound up.
__device__ __forceinline__ u64 mass_bound(const float *z, u64 bound, float share, float best, double temperature,
                                          u64 *hist, u64 *shared) {
	u64 prefix = 0, need = 0;
	for (int digit = 7; digit >= 0; digit--) {
		for (int i = threadIdx.x; i < 256; i += THREADS) hist[i] = 0;
		__syncthreads();
		for (int i = threadIdx.x; i < V; i += THREADS) {
			const u64 key = top_key(z[i], i);
			if (key >= bound && matches(key, prefix, digit))
				atomicAdd(&hist[key >> (8 * digit) & 255], mass(z[i], best, temperature));
		}
		__syncthreads();
		if (digit == 7) {
			u64 total = 0;
			for (int i = 0; i < 256; i++) total += hist[i];
			need = (u64)ceil((double)share * (double)total);
			need = need < 1 ? 1 : need > total ? total : need;
		}
		if (threadIdx.x < 32) {
			u64 before;
			const int bin = pick_digit<u64>(hist, need, before);
			if (threadIdx.x == 0) shared[0] = prefix | (u64)bin << (8 * digit), shared[1] = need - before;
		}
		__syncthreads();
		prefix = shared[0], need = shared[1];
		__syncthreads();
	}
	return prefix;
}

__device__ __forceinline__ double gumbel(u32 w) {
	const double v = ((double)w + 0.5) * (1.0 / 4294967296.0);
	return -log(-log1p(-v));
}

// draw leaves the winner in *winner. best is a candidate, the one with the largest logit.
__device__ __forceinline__ void draw(const float *z, const Sample &q, u64 bound, float top, int best, double *scores,
                                     int *ids, int *winner) {
	const double temperature = q.temperature;
	const double low = q.min_p > 0.0f ? log((double)q.min_p) : 0.0;
	const u32 stream = q.model & 255; // purpose 0: token
	const PhiloxBlock first = philox_block(best / 4, q.position, stream, q.seed_lo, q.seed_hi);
	double score = (double)top / temperature + gumbel(pick(first, best % 4));
	int id = best;
	for (int group = threadIdx.x; group < (V + 3) / 4; group += THREADS) {
		bool drawn = false;
		PhiloxBlock block;
		for (int j = 0; j < 4; j++) {
			const int i = 4 * group + j;
			if (i >= V || top_key(z[i], i) < bound) continue;
			if (q.min_p > 0.0f && ((double)z[i] - (double)top) / temperature < low) continue;
			const double base = (double)z[i] / temperature;
			if (base + GUMBEL_MAX < score) continue;
			if (!drawn) block = philox_block(group, q.position, stream, q.seed_lo, q.seed_hi), drawn = true;
			const double got = base + gumbel(pick(block, j));
			if (got > score || (got == score && i < id)) score = got, id = i;
		}
	}
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) {
		const double os = __shfl_xor_sync(FULL_WARP, score, d);
		const int oi = __shfl_xor_sync(FULL_WARP, id, d);
		if (os > score || (os == score && oi < id)) score = os, id = oi;
	}
	if (threadIdx.x % 32 == 0) scores[threadIdx.x / 32] = score, ids[threadIdx.x / 32] = id;
	__syncthreads();
	if (threadIdx.x != 0) return;
	for (int w = 1; w < THREADS / 32; w++)
		if (scores[w] > score || (scores[w] == score && ids[w] < id)) score = scores[w], id = ids[w];
	*winner = id;
}

// adjusted_largest finds the largest of a row, and reports false for NaN, +Inf, or nothing above -Inf.
__device__ __forceinline__ bool adjusted_largest(const float *z, float &best, int &first, float *scratch, int *ids) {
	best = -INF, first = 0x7fffffff;
	int bad = 0;
	for (int i = threadIdx.x; i < V; i += THREADS) {
		const float v = z[i];
		if (!(v < INF)) bad = 1;
		else if (greater(v, i, best, first)) best = v, first = i;
	}
	block_argmax<THREADS>(best, first, scratch, ids);
	return !__syncthreads_or(bad) && best > -INF;
}

// choose notes the token, for the host and for the row that goes on from it.
__device__ __forceinline__ void choose(Stat &stat, int *last, int slot, int token, float logit) {
	stat.token = token, stat.logprob = logit - stat.lse;
	if (slot >= 0) last[slot] = token;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const __grid_constant__ SampleParams p) {
	start_next();
	await_previous();
	__shared__ u64 hist[256], shared[2];
	__shared__ double scores[32];
	__shared__ float scratch[32];
	__shared__ int ids[32], winner;
	const int s = blockIdx.x + p.first;
	if (s >= p.head->samples) return;
	Stat &stat = p.stats[s];
	if (stat.flags) return;
	const Sample q = p.samples[s];
	const float *z = p.logits + (size_t)blockIdx.x * p.ld;
	if (q.given >= 0) {
		if (threadIdx.x == 0) stat.token = q.given, stat.logprob = z[q.given] - stat.lse;
		return;
	}
	float best = stat.max;
	int first = stat.argmax;
	if (q.adjust_n > 0 && !adjusted_largest(z, best, first, scratch, ids)) {
		if (threadIdx.x == 0) stat.flags = 1;
		return;
	}
	if (q.temperature == 0.0f) {
		if (threadIdx.x == 0) choose(stat, p.last, q.slot, first, best);
		return;
	}
	u64 bound = 0;
	if (q.top_k > 0 && q.top_k < V) bound = count_bound(z, q.top_k, hist, shared);
	if (q.top_p > 0.0f && q.top_p < 1.0f) bound = mass_bound(z, bound, q.top_p, best, q.temperature, hist, shared);
	draw(z, q, bound, best, first, scores, ids, &winner);
	if (threadIdx.x == 0) choose(stat, p.last, q.slot, winner, z[winner]);
}
