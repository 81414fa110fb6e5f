// prep: fetch a step's descriptor from the host and resolve page numbers.
//
//   out = entry turn % ring of in (only the parts in use);  turn++;  table[slot][index] = page for each patch;
//   ids[t] = last[owner[t]] where source[t] is SOURCE_LAST;
//   slots[t] = table[owner[t]][pos[t] / page_size] * page_size + pos[t] % page_size
//
// One block of 1024 threads; all arrays are fetched at once, because a round trip over the bus takes about a microsecond.
// Preconditions: the entry is complete before the launch; the host has checked every index and counts launches as turn
// does. Bytes: the descriptor once over the bus.
#include "bf16.cuh"
#include "params.cuh"

constexpr int ARRAYS = 7;

extern "C" __global__ void __launch_bounds__(1024) prep(const __grid_constant__ PrepParams p) {
	TIMELINE_BLOCK;
	start_next();
	await_previous();
	const char *in = (const char *)p.in + (size_t)(*p.turn % p.ring) * p.entry_bytes;
	char *out = (char *)p.out;
	for (int i = threadIdx.x * 16; i < (int)sizeof(StepHead); i += 1024 * 16) *(uint4 *)(out + i) = load_host(in + i);
	__syncthreads();
	if (threadIdx.x == 0) *p.turn = *p.turn + 1;
	const StepHead &h = *(const StepHead *)p.out;
	const int at[ARRAYS] = {p.ids_at, p.source_at, p.pos_at, p.owner_at, p.patches_at, p.items_at, p.samples_at};
	const int bytes[ARRAYS] = {h.tokens * 4, h.tokens * 4, h.tokens * 4, h.tokens * 4, h.patches * (int)sizeof(Patch),
	                           h.items * (int)sizeof(AttnItem), h.samples * (int)sizeof(Sample)};
	int total = 0;
#pragma unroll
	for (int a = 0; a < ARRAYS; a++) total += (bytes[a] + 15) / 16;
	for (int i = threadIdx.x; i < total; i += 1024) {
		int from = 0, before = 0, upto = 0;
#pragma unroll
		for (int a = 0; a < ARRAYS; a++) { // the array that word i lies in
			if (i >= upto) from = at[a], before = upto;
			upto += (bytes[a] + 15) / 16;
		}
		from += (i - before) * 16;
		*(uint4 *)(out + from) = load_host(in + from);
	}
	__syncthreads();
	const Patch *patches = (const Patch *)(out + p.patches_at);
	for (int i = threadIdx.x; i < h.patches; i += 1024)
		p.table[(size_t)patches[i].slot * p.max_pages + patches[i].index] = patches[i].page;
	__syncthreads();
	int *ids = (int *)(out + p.ids_at);
	const int *source = (const int *)(out + p.source_at), *pos = (const int *)(out + p.pos_at), *owner = (const int *)(out + p.owner_at);
	for (int t = threadIdx.x; t < h.tokens; t += 1024) {
		const int s = owner[t];
		if (source[t] == SOURCE_LAST) ids[t] = p.last[s];
		p.slots[t] = s < 0 ? -1 : p.table[(size_t)s * p.max_pages + pos[t] / p.page_size] * p.page_size + pos[t] % p.page_size;
	}
}
