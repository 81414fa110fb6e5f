// publish: copy a step's results to mapped host memory, then write the step number there.
//
// Block r copies what sample first + r asked for. The last block to arrive writes the flag, so the host sees all results
// once it sees the number; it also runs when the step has no samples (launch at least one block). Samples that pass
// the head in several launches write the flag in the last one only: launches of a stream end in order.
#include "bf16.cuh"
#include "params.cuh"

template <class T> __device__ __forceinline__ T *entry(T *first, u64 bytes) { return (T *)((char *)first + bytes); }

extern "C" __global__ void __launch_bounds__(256) publish(const __grid_constant__ PublishParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	const int r = blockIdx.x, s = r + p.first;
	if (s < p.head->samples) {
		const Sample q = p.samples[s];
		const u64 ring = p.ring_bytes * p.head->ring;
		if (threadIdx.x == 0) *entry(p.out_stats + s, ring) = p.stats[s];
		const int top = q.want & WANT_NO_TOP ? 0 : q.top;
		for (int i = threadIdx.x; i < top; i += 256)
			*entry(p.out_top + (size_t)s * MAX_TOP + i, ring) = p.top[(size_t)s * MAX_TOP + i];
		if (q.want & WANT_HIDDEN)
			for (int i = threadIdx.x; i < p.c; i += 256)
				*entry(p.out_hidden + (size_t)s * p.c + i, ring) = p.hidden[(size_t)r * p.c + i];
		if (q.want & WANT_LOGITS)
			for (int i = threadIdx.x; i < p.v; i += 256)
				*entry(p.out_logits + (size_t)s * p.v + i, ring) = p.logits[(size_t)r * p.ld + i];
	}
	if (!p.out_step) return;
	__threadfence_system();
	__syncthreads();
	if (threadIdx.x != 0) return;
	if (atomicAdd(p.arrived, 1u) != gridDim.x - 1) return;
	*p.arrived = 0;
	store_release_system(p.out_step, p.head->step);
}
