// adjust: penalties, bias and banned ids on the logits of some ids, and back again.
//
//   seen:  y = y > 0 ? y / repetition : y * repetition     (1 and 0 are off)
//   n > 0: y = y - frequency * n, then y = y - presence
//   then y = y + bias, then y = -inf if banned; each operation rounded to float32 on its own
//
// The entries of one sample name different ids, so their order does not matter. The old values are kept in saved; a second
// launch, with settle, puts them back after sampling and reads the token's log-probability from the raw logits.
// One block of 256 threads a sample; samples without entries are left alone. Bytes: 16 an entry over the bus.
#include "bf16.cuh"
#include "params.cuh"

extern "C" __global__ void __launch_bounds__(256) adjust(const __grid_constant__ AdjustParams p) {
	start_next();
	await_previous();
	const int r = blockIdx.x, s = r + p.first;
	if (s >= p.head->samples) return;
	const Sample q = p.samples[s];
	if (q.adjust_n == 0) return;
	float *z = p.logits + (size_t)r * p.ld;
	const Adjust *adjusts = p.adjusts + (size_t)p.head->ring * p.ring_entries + q.adjust_at;
	for (int i = threadIdx.x; i < q.adjust_n; i += 256) {
		const uint4 w = load_host(adjusts + i);
		const int id = (int)w.x, n = (int)w.z;
		if (p.settle) {
			z[id] = p.saved[q.adjust_at + i];
			continue;
		}
		float y = z[id];
		p.saved[q.adjust_at + i] = y;
		if ((w.y & ADJUST_SEEN) && q.repetition != 0.0f && q.repetition != 1.0f)
			y = y > 0.0f ? __fdiv_rn(y, q.repetition) : __fmul_rn(y, q.repetition);
		if (n > 0) y = __fsub_rn(__fsub_rn(y, __fmul_rn(q.frequency, (float)n)), q.presence);
		y = __fadd_rn(y, __uint_as_float(w.w));
		z[id] = w.y & ADJUST_BANNED ? -INF : y;
	}
	if (!p.settle) return;
	__syncthreads();
	if (threadIdx.x == 0 && !p.stats[s].flags) p.stats[s].logprob = z[p.stats[s].token] - p.stats[s].lse;
}
