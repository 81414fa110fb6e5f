// sample: the next token of each row, by the recipe of Go's package worker/sampler, in float64.
//
//   given id: that one; greedy (temperature 0): argmax z, lowest id on ties
//   else: order by (z descending, id ascending); top-k keeps the first k; top-p keeps the shortest prefix whose sum of
//   e(i) = exp((z(i) - max) / T) reaches p times the candidates' sum; min-p keeps (z(i) - max) / T >= ln(min-p);
//   draw argmax z(i)/T + g(i), lowest id on ties,
//   g(i) = -ln(-ln(1 - (w + 0.5) / 2^32)), w = word i of the stream (seed, position, model, token)
//
// One block of 512 threads a row. Both cuts are found exactly, on 64-bit keys that order by value and id: values are counted
// (or their e summed) in BINS bins of equal width below the largest, the keys of the bin where the count is reached are
// gathered in shared memory, and the key is found among them digit by digit. A bin with more than LIST keys is searched in
// the row itself. What a small top-k keeps stays in shared memory for all that follows. Sums of e are integers in units of
// 2^-40: their order does not matter. The draw first bounds a score from above in float32, and computes it in float64 only
// if it may win.
// Precondition: logitstats has run. Rows flagged by it keep token 0. The logits of samples with adjustments have been changed
// since: their largest is found again here, and adjust sets their log-probability later.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "topkey.cuh"
#include "philox.cuh"

constexpr int THREADS = 512, AHEAD = 8, BINS = 2048, LIST = 2048;
constexpr double UNIT = 1099511627776.0; // 2^40
constexpr double NOTHING = 28.0;         // e is 0 units from here on: 2^40 exp(-28) < 1

struct Scratch {
	u64 masses[BINS], list[LIST], hist[256], shared[2];
	double scores[32];
	float values[32];
	int ids[32], n, winner;
};

__device__ __forceinline__ u64 mass(float z, float best, double temperature) {
	return (u64)(exp(((double)z - (double)best) / temperature) * UNIT);
}

// for_each calls f with every value and id of the row; AHEAD reads are under way at a time.
template <class F>
__device__ __forceinline__ void for_each(const float *z, F f) {
#pragma unroll 1
	for (int base = threadIdx.x; base < V; base += AHEAD * THREADS) {
		float v[AHEAD];
#pragma unroll
		for (int j = 0; j < AHEAD; j++) v[j] = base + j * THREADS < V ? z[base + j * THREADS] : 0.0f;
#pragma unroll
		for (int j = 0; j < AHEAD; j++)
			if (base + j * THREADS < V) f(v[j], base + j * THREADS);
	}
}

// Bins are of equal width, from the largest value down; the last one has all that is below.
struct Bins {
	float best, inverse;
	__device__ __forceinline__ int of(float v) const {
		const float d = (best - v) * inverse;
		return d < BINS - 1 ? (int)d : BINS - 1; // the last for NaN, which only -Inf or a width of 0 make
	}
};

// List is keys in shared memory, Row those of a row from bound up, in one bin if bin is not negative.
struct List {
	const u64 *keys;
	int n;
	template <class F>
	__device__ __forceinline__ void each(F f) const {
		for (int i = threadIdx.x; i < n; i += THREADS) f(keys[i]);
	}
};
struct Row {
	const float *z;
	u64 bound;
	Bins bins;
	int bin;
	template <class F>
	__device__ __forceinline__ void each(F f) const {
		for_each(z, [&](float v, int i) {
			const u64 key = top_key(v, i);
			if (key >= bound && (bin < 0 || bins.of(v) == bin)) f(key);
		});
	}
};

// gather lists a row's keys and returns how many there are. If they are more than LIST the list is of no use.
__device__ __forceinline__ int gather(const Row &row, Scratch &s) {
	__syncthreads();
	if (threadIdx.x == 0) s.n = 0;
	__syncthreads();
	row.each([&](u64 key) {
		const int at = atomicAdd(&s.n, 1);
		if (at < LIST) s.list[at] = key;
	});
	__syncthreads();
	return s.n;
}

// pick_bin finds the first bin at which the running total of amount reaches need, for one warp. It returns the bin and the
// total before it.
__device__ __forceinline__ int pick_bin(const u64 *amount, u64 need, u64 &before) {
	constexpr int PER = BINS / 32;
	const int lane = threadIdx.x % 32, first = lane * PER;
	u64 own = 0;
	for (int i = 0; i < PER; i++) own += amount[first + (i + lane) % PER];
	u64 upto = own;
	for (int d = 1; d < 32; d <<= 1) {
		const u64 o = __shfl_up_sync(FULL_WARP, upto, d);
		if (lane >= d) upto += o;
	}
	int bin = -1;
	u64 sum = upto - own;
	if (sum < need && upto >= need) {
		bin = first;
		while (sum + amount[bin] < need) sum += amount[bin++];
	}
	const u32 owners = __ballot_sync(FULL_WARP, bin >= 0);
	const int owner = owners ? __ffs(owners) - 1 : 0;
	before = __shfl_sync(FULL_WARP, sum, owner);
	return __shfl_sync(FULL_WARP, bin, owner);
}

// find_bin gives every thread the bin where the total of s.masses reaches need, and what of need is left in it.
__device__ __forceinline__ int find_bin(Scratch &s, u64 &need) {
	__syncthreads();
	if (threadIdx.x < 32) {
		u64 before;
		const int bin = pick_bin(s.masses, need, before);
		if (threadIdx.x == 0) s.shared[0] = (u64)bin, s.shared[1] = need - before;
	}
	__syncthreads();
	need = s.shared[1];
	return (int)s.shared[0];
}

// bound_among returns the key at which the total of amount(key), from the largest key of a source down, reaches need.
template <class Source, class Amount>
__device__ __forceinline__ u64 bound_among(const Source &from, u64 need, Amount amount, Scratch &s) {
	u64 prefix = 0;
#pragma unroll 1
	for (int digit = 7; digit >= 0; digit--) {
		__syncthreads();
		for (int i = threadIdx.x; i < 256; i += THREADS) s.hist[i] = 0;
		__syncthreads();
		from.each([&](u64 key) {
			if (matches(key, prefix, digit)) atomicAdd(&s.hist[key >> (8 * digit) & 255], amount(key));
		});
		__syncthreads();
		if (threadIdx.x < 32) {
			u64 before;
			const int bin = pick_digit<u64>(s.hist, need, before);
			if (threadIdx.x == 0) s.shared[0] = prefix | (u64)bin << (8 * digit), s.shared[1] = need - before;
		}
		__syncthreads();
		prefix = s.shared[0], need = s.shared[1];
	}
	return prefix;
}

__device__ __forceinline__ void clear_bins(Scratch &s) {
	__syncthreads();
	for (int i = threadIdx.x; i < BINS; i += THREADS) s.masses[i] = 0;
	__syncthreads();
}

// least is the smallest value above -Inf of a row whose largest is best.
__device__ __forceinline__ float least(const float *z, float best, Scratch &s) {
	float low = best;
	for_each(z, [&](float v, int) { low = v > -INF ? fminf(low, v) : low; });
	low = -warp_max(-low);
	if (threadIdx.x % 32 == 0) s.values[threadIdx.x / 32] = low;
	__syncthreads();
	for (int w = 0; w < THREADS / 32; w++) low = fminf(low, s.values[w]);
	return low;
}

// count_bound returns the k-th largest key of a row, 0 < k < V.
__device__ __forceinline__ u64 count_bound(const float *z, u64 k, float best, Scratch &s) {
	const Bins bins = {best, (float)BINS / (best - least(z, best, s))};
	clear_bins(s);
	u32 *counts = (u32 *)s.masses; // the low halves
	for_each(z, [&](float v, int) { atomicAdd(&counts[2 * bins.of(v)], 1u); });
	const int bin = find_bin(s, k);
	const Row row = {z, 0, bins, bin};
	const int n = gather(row, s);
	const auto one = [](u64) { return 1ull; };
	return n <= LIST ? bound_among(List{s.list, n}, k, one, s) : bound_among(row, k, one, s);
}

// share_of is the amount that the kept keys must reach together.
__device__ __forceinline__ u64 share_of(float share, u64 total) {
	const u64 need = (u64)ceil((double)share * (double)total);
	return need < 1 ? 1 : need > total ? total : need;
}

// block_total gives every thread the sum of all threads' own sums.
__device__ __forceinline__ u64 block_total(u64 own, Scratch &s) {
	__syncthreads();
	if (threadIdx.x == 0) s.shared[0] = 0;
	__syncthreads();
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) own += __shfl_xor_sync(FULL_WARP, own, d);
	if (threadIdx.x % 32 == 0) atomicAdd(&s.shared[0], own);
	__syncthreads();
	return s.shared[0];
}

// mass_bound returns the key at which the total of e, from the largest key down, reaches share of its total over the keys of
// the row from bound up; if n is not negative, those are the list.
__device__ __forceinline__ u64 mass_bound(const float *z, u64 bound, int n, float share, float best, double temperature, Scratch &s) {
	const auto amount = [&](u64 key) { return mass(key_value(key), best, temperature); };
	u64 own = 0;
	if (n >= 0) {
		const List list = {s.list, n};
		list.each([&](u64 key) { own += amount(key); });
		return bound_among(list, share_of(share, block_total(own, s)), amount, s);
	}
	const Bins bins = {best, (float)(BINS / (NOTHING * temperature))};
	const float low = (float)((double)best - NOTHING * temperature);
	clear_bins(s);
	for_each(z, [&](float v, int i) {
		if (v < low || top_key(v, i) < bound) return; // e is 0, or not a candidate
		const u64 e = mass(v, best, temperature);
		own += e;
		atomicAdd(&s.masses[bins.of(v)], e);
	});
	u64 need = share_of(share, block_total(own, s));
	const int bin = find_bin(s, need);
	const Row row = {z, bound, bins, bin};
	n = gather(row, s);
	return n <= LIST ? bound_among(List{s.list, n}, need, amount, s) : bound_among(row, need, amount, s);
}

// narrow puts bound in the place of the list's keys below it: bound is a key of the list, and drawing it again changes
// nothing.
__device__ __forceinline__ int narrow(u64 bound, int n, Scratch &s) {
	__syncthreads();
	for (int i = threadIdx.x; i < n; i += THREADS)
		if (s.list[i] < bound) s.list[i] = bound;
	__syncthreads();
	return n;
}

__device__ __forceinline__ double gumbel(u32 w) {
	const double v = ((double)w + 0.5) * (1.0 / 4294967296.0);
	return -log(-log1p(-v));
}

// gumbel_above is a little above gumbel(w), in float32: by .0001 where the word is in the lower half, else the value at half.
__device__ __forceinline__ float gumbel_above(u32 w) {
	if (w >= 0x80000000u) return 0.37f;
	return 0.0001f - logf(-log1pf(-((float)w + 0.5f) * (1.0f / 4294967296.0f)));
}

// draw leaves the winner in s.winner. best is a candidate, the one with the largest logit.
template <class Source>
__device__ __forceinline__ void draw(const Source &from, const Sample &q, float top, int best, Scratch &s) {
	const double temperature = q.temperature;
	const float inverse = 1.0f / q.temperature;
	const double low = q.min_p > 0.0f ? log((double)q.min_p) : 0.0;
	const u32 stream = q.model & 255; // purpose 0: token
	const PhiloxBlock first = philox_block(best / 4, q.position, stream, q.seed_lo, q.seed_hi);
	double score = (double)top / temperature + gumbel(pick(first, best % 4));
	int id = best;
	from.each([&](u64 key) {
		const int i = key_id(key);
		const float z = key_value(key);
		if (q.min_p > 0.0f && ((double)z - (double)top) / temperature < low) return;
		const u32 word = pick(philox_block(i / 4, q.position, stream, q.seed_lo, q.seed_hi), i % 4);
		const float about = z * inverse;
		if (about + gumbel_above(word) + (0.001f + 1e-6f * fabsf(about)) < (float)score) return;
		const double got = (double)z / temperature + gumbel(word);
		if (got > score || (got == score && i < id)) score = got, id = i;
	});
#pragma unroll
	for (int d = 16; d > 0; d >>= 1) {
		const double os = __shfl_xor_sync(FULL_WARP, score, d);
		const int oi = __shfl_xor_sync(FULL_WARP, id, d);
		if (os > score || (os == score && oi < id)) score = os, id = oi;
	}
	__syncthreads();
	if (threadIdx.x % 32 == 0) s.scores[threadIdx.x / 32] = score, s.ids[threadIdx.x / 32] = id;
	__syncthreads();
	if (threadIdx.x != 0) return;
	for (int w = 1; w < THREADS / 32; w++)
		if (s.scores[w] > score || (s.scores[w] == score && s.ids[w] < id)) score = s.scores[w], id = s.ids[w];
	s.winner = id;
}

// adjusted_largest finds the largest of a row, and reports false for NaN, +Inf, or nothing above -Inf.
__device__ __forceinline__ bool adjusted_largest(const float *z, float &best, int &first, float *scratch, int *ids) {
	best = -INF, first = 0x7fffffff;
	int bad = 0;
	for_each(z, [&](float v, int i) {
		if (!(v < INF)) bad = 1;
		else if (greater(v, i, best, first)) best = v, first = i;
	});
	block_argmax<THREADS>(best, first, scratch, ids);
	return !__syncthreads_or(bad) && best > -INF;
}

// choose notes the token, for the host and for the row that goes on from it.
__device__ __forceinline__ void choose(Stat &stat, int *last, int slot, int token, float logit) {
	stat.token = token, stat.logprob = logit - stat.lse;
	if (slot >= 0) last[slot] = token;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) sample(const __grid_constant__ SampleParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	__shared__ Scratch scratch;
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
	if (q.mix_n + q.adjust_n > 0 && !adjusted_largest(z, best, first, scratch.values, scratch.ids)) {
		if (threadIdx.x == 0) stat.flags = 1;
		return;
	}
	if (q.temperature == 0.0f) {
		if (threadIdx.x == 0) choose(stat, p.last, q.slot, first, best);
		return;
	}
	u64 bound = 0;
	int n = -1; // candidates in the list; negative where they are those of the row from bound up
	if (q.top_k > 0 && q.top_k < V) {
		bound = count_bound(z, q.top_k, best, scratch);
		if (q.top_k <= LIST) n = gather(Row{z, bound, {}, -1}, scratch);
	}
	if (q.top_p > 0.0f && q.top_p < 1.0f) {
		bound = mass_bound(z, bound, n, q.top_p, best, q.temperature, scratch);
		if (n < 0) n = gather(Row{z, bound, {}, -1}, scratch);
		else n = narrow(bound, n, scratch);
		if (n > LIST) n = -1;
	}
	if (n >= 0) draw(List{scratch.list, n}, q, best, first, scratch);
	else draw(Row{z, bound, {}, -1}, q, best, first, scratch);
	if (threadIdx.x == 0) choose(stat, p.last, q.slot, scratch.winner, z[scratch.winner]);
}
