// logitstats: routing features and the top list of one row of raw logits over the real vocabulary.
//
//   max, argmax (lowest id on ties), margin = max - second largest (+inf without one),
//   lse = ln sum exp(z), entropy = -sum p ln p (nats, 0 ln 0 = 0), top = the k largest, lowest id first on ties
//
// logits [S, ld] f32. One block of 1024 threads a row. The features come from the parts that logitpart made; the list takes
// up to ten passes over the row: it is selected exactly, digit by digit, on keys that hold value and id.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "topkey.cuh"

constexpr int THREADS = 1024;

// features joins the parts of a row, in order, on one warp.
__device__ __forceinline__ void features(const LogitPart *parts, Stat &o) {
	static_assert(LOGIT_PARTS == 32, "a lane a part");
	const LogitPart own = parts[threadIdx.x];
	float first = own.max;
	int id = own.argmax;
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) {
		const float ov = __shfl_xor_sync(FULL_WARP, first, d);
		const int oi = __shfl_xor_sync(FULL_WARP, id, d);
		if (greater(ov, oi, first, id)) first = ov, id = oi;
	}
	const float second = warp_max(own.argmax == id ? own.second : own.max);
	const float scale = own.max > -INF ? expf(own.max - first) : 0.0f;
	const float sum = warp_sum(own.sum * scale);
	const float weighted = warp_sum(scale > 0 ? (own.weighted + (own.max - first) * own.sum) * scale : 0.0f);
	const bool bad = __ballot_sync(FULL_WARP, own.bad != 0) != 0 || first == -INF;
	if (threadIdx.x != 0) return;
	const float log_sum = logf(sum);
	o.max = first, o.lse = first + log_sum;
	o.entropy = fmaxf(log_sum - weighted / sum, 0.0f), o.margin = first - second;
	o.argmax = bad ? 0 : id, o.flags = bad, o.token = 0, o.logprob = 0, o.score = 0, o.pad = 0;
}

// threshold returns the k-th largest key. hist has 256 entries; bound and need are shared.
__device__ __forceinline__ u64 threshold(const float *z, int k, u32 *hist, u64 *bound, u32 *need) {
	u64 prefix = 0;
	u32 want = k;
	for (int digit = 7; digit >= 0; digit--) {
		for (int i = threadIdx.x; i < 256; i += THREADS) hist[i] = 0;
		__syncthreads();
		for (int i = threadIdx.x; i < V; i += THREADS) {
			const u64 key = top_key(z[i], i);
			if (matches(key, prefix, digit)) atomicAdd(&hist[key >> (8 * digit) & 255], 1u);
		}
		__syncthreads();
		if (threadIdx.x < 32) {
			u32 before;
			const int bin = pick_digit<u32>(hist, want, before);
			if (threadIdx.x == 0) {
				*bound = prefix | (u64)bin << (8 * digit);
				*need = hist[bin] == want - before ? 0 : want - before; // 0: the whole bin belongs to the list
			}
		}
		__syncthreads();
		prefix = *bound, want = *need;
		__syncthreads();
		if (want == 0) break;
	}
	return prefix;
}

// sort_keys sorts MAX_TOP keys, largest first.
__device__ __forceinline__ void sort_keys(u64 *keys) {
	for (int size = 2; size <= MAX_TOP; size *= 2)
		for (int gap = size / 2; gap > 0; gap /= 2) {
			__syncthreads();
			const int i = threadIdx.x, j = i ^ gap;
			if (i < MAX_TOP && j > i) {
				const bool down = (i & size) == 0;
				const u64 a = keys[i], b = keys[j];
				if (down ? a < b : a > b) keys[i] = b, keys[j] = a;
			}
		}
	__syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) logitstats(const __grid_constant__ LogitstatsParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	__shared__ u32 hist[256], need, found;
	__shared__ u64 bound, keys[MAX_TOP];
	const int s = blockIdx.x + p.first;
	if (s >= p.head->samples) return;
	const float *z = p.logits + (size_t)blockIdx.x * p.ld;
	if (threadIdx.x < 32) features(p.parts + (size_t)blockIdx.x * LOGIT_PARTS, p.stats[s]);
	__syncthreads();
	const int k = p.stats[s].flags ? 0 : min(p.samples[s].top, V);
	if (k <= 0) return;
	const u64 lowest = threshold(z, k, hist, &bound, &need);
	if (threadIdx.x == 0) found = 0;
	if (threadIdx.x < MAX_TOP) keys[threadIdx.x] = 0;
	__syncthreads();
	for (int i = threadIdx.x; i < V; i += THREADS) {
		const u64 key = top_key(z[i], i);
		if (key >= lowest) keys[atomicAdd(&found, 1u)] = key;
	}
	sort_keys(keys);
	if ((int)threadIdx.x < k) p.top[(size_t)s * MAX_TOP + threadIdx.x] = {key_id(keys[threadIdx.x]), key_value(keys[threadIdx.x])};
}
