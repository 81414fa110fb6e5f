// adjust: a mixture with another model, then penalties, bias and banned ids, on the logits of some ids, and back again.
//
//   mixture: p(i) = w exp(z(i) - lse) + m(i), with m only for the ids of its entries: y(i) = base + ln p(i), base = lse - ln w,
//            which is z(i) for all other ids. What follows works on y - base, the logarithm of the mixture.
//   seen:  y = y > 0 ? y / repetition : y * repetition     (1 and 0 are off)
//   n > 0: y = y - frequency * n, then y = y - presence
//   then y = y + bias, then y = -inf if banned; each operation rounded to float32 on its own
//
// The entries of one sample's mixture name different ids, and so do its adjustments; so the order within each does not matter.
// The old values are kept in saved; a second launch, with settle, puts them back after sampling and reads the token's
// log-probability from the raw logits.
// One block of 256 threads a sample; samples without entries are left alone. Bytes: 16 an entry over the bus.
// Precondition: logitstats has run.
#include "bf16.cuh"
#include "params.cuh"

// blend is the logit of the mixture's id.
__device__ __forceinline__ float blend(float z, float mass, float weight, float lse, float base) {
	return __fadd_rn(base, logf(weight * expf(z - lse) + mass));
}

extern "C" __global__ void __launch_bounds__(256) adjust(const __grid_constant__ AdjustParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	const int r = blockIdx.x, s = r + p.first;
	if (s >= p.head->samples) return;
	const Sample q = p.samples[s];
	const int end = q.mix_n + q.adjust_n;
	if (end == 0) return;
	float *z = p.logits + (size_t)r * p.ld;
	float *saved = p.saved + q.adjust_at;
	const Adjust *adjusts = p.adjusts + (size_t)p.head->ring * p.ring_entries + q.adjust_at;
	const float lse = p.stats[s].lse, base = q.mix > 0.0f ? lse - logf(q.mix) : 0.0f;
	if (p.settle) { // in the reverse order
		for (int i = q.mix_n + threadIdx.x; i < end; i += 256) z[load_host(adjusts + i).x] = saved[i];
		__syncthreads();
		for (int i = threadIdx.x; i < q.mix_n; i += 256) z[load_host(adjusts + i).x] = saved[i];
		__syncthreads();
		if (threadIdx.x == 0 && !p.stats[s].flags) p.stats[s].logprob = z[p.stats[s].token] - lse;
		return;
	}
	for (int i = threadIdx.x; i < q.mix_n; i += 256) {
		const uint4 w = load_host(adjusts + i);
		const float y = z[w.x];
		saved[i] = y;
		z[w.x] = blend(y, __uint_as_float(w.w), q.mix, lse, base);
	}
	__syncthreads();
	for (int i = q.mix_n + threadIdx.x; i < end; i += 256) {
		const uint4 w = load_host(adjusts + i);
		const int n = (int)w.z;
		float y = z[w.x];
		saved[i] = y;
		y = __fsub_rn(y, base);
		if ((w.y & ADJUST_SEEN) && q.repetition != 0.0f && q.repetition != 1.0f)
			y = y > 0.0f ? __fdiv_rn(y, q.repetition) : __fmul_rn(y, q.repetition);
		if (n > 0) y = __fsub_rn(__fsub_rn(y, __fmul_rn(q.frequency, (float)n)), q.presence);
		y = __fadd_rn(y, __uint_as_float(w.w));
		z[w.x] = w.y & ADJUST_BANNED ? -INF : __fadd_rn(y, base);
	}
}
