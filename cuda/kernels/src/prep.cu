// prep: fetch a step's descriptor from the host and resolve page numbers.
//
//   out = in (only the parts in use);  table[slot][index] = page for each patch;
//   slots[t] = table[owner[t]][pos[t] / page_size] * page_size + pos[t] % page_size
//
// One block of 1024 threads. Precondition: in is complete before the launch; the host has checked every index.
// A token whose owner is -1 is padding and gets slot -1. Bytes: the descriptor once over the bus.
#include "bf16.cuh"
#include "params.cuh"

__device__ __forceinline__ void fetch(const PrepParams &p, int at, size_t bytes) {
	const char *in = (const char *)p.in + at;
	char *out = (char *)p.out + at;
	for (size_t i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16) *(uint4 *)(out + i) = load_host(in + i);
}

extern "C" __global__ void __launch_bounds__(1024) prep(const __grid_constant__ PrepParams p) {
	fetch(p, 0, sizeof(StepHead));
	__syncthreads();
	const StepHead &h = *(const StepHead *)p.out;
	fetch(p, p.ids_at, h.tokens * sizeof(int));
	fetch(p, p.pos_at, h.tokens * sizeof(int));
	fetch(p, p.owner_at, h.tokens * sizeof(int));
	fetch(p, p.patches_at, h.patches * sizeof(Patch));
	fetch(p, p.items_at, h.items * sizeof(AttnItem));
	fetch(p, p.combines_at, h.combines * sizeof(AttnCombine));
	fetch(p, p.samples_at, h.samples * sizeof(Sample));
	__syncthreads();
	const Patch *patches = (const Patch *)((const char *)p.out + p.patches_at);
	for (int i = threadIdx.x; i < h.patches; i += blockDim.x)
		p.table[(size_t)patches[i].slot * p.max_pages + patches[i].index] = patches[i].page;
	__syncthreads();
	const int *pos = (const int *)((const char *)p.out + p.pos_at);
	const int *owner = (const int *)((const char *)p.out + p.owner_at);
	for (int t = threadIdx.x; t < h.tokens; t += blockDim.x) {
		int s = owner[t], at = pos[t];
		p.slots[t] = s < 0 ? -1 : p.table[(size_t)s * p.max_pages + at / p.page_size] * p.page_size + at % p.page_size;
	}
}
