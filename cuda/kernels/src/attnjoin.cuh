// What attn does with the sums of spans: joins them, writes them, and joins what several blocks have written.
//
// The last block of a tile joins its partials while nothing else runs, and its time is that of waits for memory. Narrow tiles have few
// rows and up to 32 partials of each: they come to registers, a row's all at once. Wide ones have up to 64 rows and 8 partials of
// each: as many as fit come to shared memory at once. Each form was measured with the other's way and was slower.
#pragma once
#include "attnstate.cuh"

// join_state joins a state into that of all before it. Joined into a clear one it stays what it is.
template <typename T, typename U>
__device__ __forceinline__ void join_state(T &all, const U &next) {
#pragma unroll
	for (int x = 0; x < 2; x++) {
		SoftmaxState s = {all.maxima[x], all.sums[x]};
		const float2 f = join_factors(s, next.maxima[x], next.sums[x]);
		all.maxima[x] = s.maximum, all.sums[x] = s.sum;
#pragma unroll
		for (int t = 0; t < NT; t++)
#pragma unroll
			for (int j = 2 * x; j < 2 * x + 2; j++) all.out[t][j] = join(all.out[t][j], next.out[t][j], f);
	}
}

// store writes a tile's output.
__device__ __forceinline__ void store(const AttnParams &p, const AttnItem &item, const Longer &state) {
	const Place at = here();
	const int h = blockIdx.y, token = item.token, rows = item.ntok * G;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const int row = at.row0 + 8 * x + at.g;
		if (row >= rows) continue;
		const float inverse = reciprocal(state.sums[x]);
		bf16 *out = p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + at.part * (D / PARTS) + 2 * at.c;
#pragma unroll
		for (int t = 0; t < NT; t++) *(u32 *)(out + 8 * t) = pack_bf16(state.out[t][2 * x] * inverse, state.out[t][2 * x + 1] * inverse);
	}
}

// store_partial writes a tile's rows of one chunk, or of a group in the place of its first chunk.
__device__ __forceinline__ void store_partial(const AttnParams &p, const AttnItem &item, int chunk, const State &state) {
	const Place at = here();
	const int h = blockIdx.y, rows = item.ntok * G, first = item.partial + chunk * rows;
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const int row = at.row0 + 8 * x + at.g;
		if (row >= rows) continue;
		const size_t to = (size_t)(first + row) * HK + h;
		float *out = p.part_o + to * D + at.part * (D / PARTS) + 2 * at.c;
#pragma unroll
		for (int t = 0; t < NT; t++) *(float2 *)(out + 8 * t) = make_float2(state.out[t][2 * x], state.out[t][2 * x + 1]);
		if (at.part == 0 && at.c == 0) *(float2 *)(p.part_ml + to * 2) = make_float2(state.maxima[x], state.sums[x]);
	}
}

// whole reports whether the group of a chunk is one partial.
__device__ __forceinline__ bool whole(u32 groups, int chunk) { return groups >> chunk / GROUP & 1; }

#if ATTN_FRESH
// Joined is two columns of a row: the group at hand, and the groups before.
struct Joined {
	SoftmaxState group, all;
	float2 group_out, all_out;
};

// close_group joins the group at hand into those before.
__device__ __forceinline__ void close_group(Joined &j) {
	const float2 f = join_factors(j.all, j.group.maximum, j.group.sum);
	j.all_out.x = join(j.all_out.x, j.group_out.x, f), j.all_out.y = join(j.all_out.y, j.group_out.y, f);
	j.group = {-INF, 0.0f}, j.group_out = make_float2(0, 0);
}

// join_partials joins the partials of a tile in order and writes the output; a thread has two columns of a row at a time, and MOST
// partials of them on their way at once. Where a place has no partial (its group is one, or the tile has ended), what is joined
// is clear and changes nothing, so there are no branches.
__device__ __forceinline__ void join_partials(const AttnParams &p, int h, Shared &s) {
	constexpr int MOST = 20, PAIRS = D / 2, STEP = THREADS / PAIRS; // partials on their way, and rows that the block has, at a time
	const int rows = s.item.ntok * G, length = s.item.spans * SPAN, partial = s.item.partial, token = s.item.token;
	const int chunks = (s.item.pos + s.item.ntok + length - 1) / length;
	const u32 groups = s.item.whole;
	float2(*ml)[MAX_CHUNKS + MOST] = (float2(*)[MAX_CHUNKS + MOST])s.places;
	static_assert(ROWS * sizeof(*ml) <= sizeof(Shared::places), "they take the place of keys and values");
	const int all = (chunks + MOST - 1) / MOST * MOST;
#pragma unroll 4
	for (int j = threadIdx.x; j < rows * all; j += THREADS) { // many at once: each wait for memory counts here
		const int chunk = j / rows;
		float2 x = make_float2(-INF, 0.0f);
		if (chunk < chunks && (chunk % GROUP == 0 || !whole(groups, chunk))) x = __ldcg((const float2 *)p.part_ml + (size_t)(partial + j) * HK + h);
		ml[j % rows][chunk] = x;
	}
	__syncthreads();
	const int step = rows * HK * PAIRS, column = threadIdx.x % PAIRS;
#pragma unroll 1
	for (int row = threadIdx.x / PAIRS; row < rows; row += STEP) {
		const float2 *from = (const float2 *)p.part_o + ((size_t)(partial + row) * HK + h) * PAIRS + column;
		Joined j = {{-INF, 0.0f}, {-INF, 0.0f}, {0, 0}, {0, 0}};
#pragma unroll 1
		for (int first = 0; first < chunks; first += MOST) {
			float2 x[MOST];
#pragma unroll
			for (int c = 0; c < MOST; c++, from += step) {
				const int chunk = first + c;
				x[c] = make_float2(0, 0);
				if (chunk < chunks && (chunk % GROUP == 0 || !whole(groups, chunk))) x[c] = __ldcg(from);
			}
#pragma unroll
			for (int c = 0; c < MOST; c++) {
				const float2 m = ml[row][first + c], f = join_factors(j.group, m.x, m.y);
				j.group_out.x = join(j.group_out.x, x[c].x, f), j.group_out.y = join(j.group_out.y, x[c].y, f);
				if ((c + 1) % GROUP == 0) close_group(j);
			}
		}
		const float inverse = reciprocal(j.all.sum);
		*(u32 *)(p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + 2 * column) = pack_bf16(j.all_out.x * inverse, j.all_out.y * inverse);
	}
}

#else

// Joining is shared memory while partials are joined, in the place of queries, keys and values. A wide tile's partials are groups
// (AttnPlan).
struct Joining {
	static constexpr int MOST = MAX_CHUNKS / GROUP; // partials of a row
	static constexpr int ROOM = (sizeof(Shared::q) + sizeof(Shared::places)) / 16 - ROWS / 4 - ROWS * MOST / 2;
	float inverse[ROWS];
	float2 factors[ROWS][MOST]; // that join a partial into those before; its maximum and sum first
	float4 partials[ROOM];      // of some rows
};
static_assert(sizeof(Joining) <= sizeof(Shared::q) + sizeof(Shared::places), "it takes their place");
static_assert(Joining::ROOM >= Joining::MOST * D / 4, "there is room for a row at a time");

// join_row turns maxima and sums of a row's partials to factors, and returns what the row is multiplied with in the end.
__device__ __forceinline__ float join_row(float2 *row, int n) {
	SoftmaxState all = {-INF, 0.0f};
#pragma unroll 1
	for (int i = 0; i < n; i++) row[i] = join_factors(all, row[i].x, row[i].y);
	return reciprocal(all.sum);
}

// join_partials joins the partials of a tile in order and writes the output, for as many rows at a time as fit shared memory. Time
// here is the number of waits for memory, and code: a step's weights drive it out of the caches, so loops are not unrolled.
__device__ __forceinline__ void join_partials(const AttnParams &p, int h, Shared &s) {
	constexpr int QUADS = D / 4, SLOTS = THREADS / QUADS; // a thread has four columns of every SLOTS-th row
	Joining &j = *(Joining *)&s;
	const int rows = s.item.ntok * G, length = s.item.spans * SPAN, partial = s.item.partial, token = s.item.token;
	const int n = (s.item.pos + s.item.ntok + GROUP * length - 1) / (GROUP * length);
	const int batch = min(rows, Joining::ROOM / (n * QUADS)), quad = threadIdx.x % QUADS, slot = threadIdx.x / QUADS;
	const auto fetch_rows = [&](int first) {
#pragma unroll 1
		for (int i = 0; i < n; i++) {
			const float4 *from = (const float4 *)p.part_o + ((size_t)(partial + GROUP * i * rows + first) * HK + h) * QUADS + quad;
#pragma unroll 1
			for (int r = slot; r < min(batch, rows - first); r += SLOTS)
				copy_async(&j.partials[(i * batch + r) * QUADS + quad], from + (size_t)r * HK * QUADS, true);
		}
		copy_commit();
	};
	fetch_rows(0);
#pragma unroll 4
	for (int i = threadIdx.x; i < rows * n; i += THREADS)
		j.factors[i % rows][i / rows] = __ldcg((const float2 *)p.part_ml + (size_t)(partial + i / rows * GROUP * rows + i % rows) * HK + h);
	__syncthreads();
	if (threadIdx.x < rows) j.inverse[threadIdx.x] = join_row(j.factors[threadIdx.x], n);
#pragma unroll 1
	for (int first = 0; first < rows; first += batch) {
		copy_wait<0>();
		__syncthreads(); // all copies, and factors, are there
#pragma unroll 1
		for (int r = slot; r < min(batch, rows - first); r += SLOTS) {
			const int row = first + r;
			float4 all = make_float4(0, 0, 0, 0);
#pragma unroll 1
			for (int i = 0; i < n; i++) {
				const float2 f = j.factors[row][i];
				const float4 x = j.partials[(i * batch + r) * QUADS + quad];
				// A group joined into none before it is itself, but for the sign of zero.
				all.x = join(all.x, x.x + 0.0f, f), all.y = join(all.y, x.y + 0.0f, f);
				all.z = join(all.z, x.z + 0.0f, f), all.w = join(all.w, x.w + 0.0f, f);
			}
			const float inverse = j.inverse[row];
			*(uint2 *)(p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + 4 * quad) =
			    make_uint2(pack_bf16(all.x * inverse, all.y * inverse), pack_bf16(all.z * inverse, all.w * inverse));
		}
		__syncthreads(); // partials have been used
		if (first + batch < rows) fetch_rows(first + batch);
	}
}
#endif
