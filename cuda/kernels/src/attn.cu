// attn: out[t,h] = softmax(scale * q[t,h] . K[0..pos[t]]) V[0..pos[t]] over the pages of t's sequence.
//
// q, out [T, HQ, D] bf16; cache [N, 2, HK, P, D] bf16; causal by absolute position; scores and sums in f32.
//
// A work item is a tile of ROWS packed rows: row r is token r / G and query head h * G + r % G, so one tile serves
// ROWS / G tokens, and all of them share each read of a key. Keys are walked in spans of 64 positions from 0, each with a
// softmax of its own. A number of spans that depends on the token's position alone (AttnPlan) makes a chunk, four chunks make a
// group: spans are joined in order to a chunk, chunks to a group, groups to the result. An item covers either all chunks of its tile (and writes out) or
// some, and writes a partial for each group that it has whole and for each other chunk; the block that finds all partials of a
// tile there joins them, in the same order. So a token's bits depend on its own sequence alone: not on the other rows, on how
// many tokens it came with, on how the work was spread, or on the variant.
//
// Variants. ATTN_ROWS 16 with ATTN_FRESH is for rows of few tokens: it makes queries, keys and values of the step's tokens
// itself, as qkvpost does, and appends to the cache. ATTN_ROWS 64 is for rows of many: qkvpost has come before. Keys and values
// of earlier steps do not depend on the kernel before, so an item's first ones are on their way before the wait.
//
// Four warps make the scores of 16 rows (ATTN_ROWS 16) or 32 (64, with two such groups of warps) by 16 positions each,
// m16n8k16 products over D in order. They exchange maxima, write probabilities to shared memory and then make D / 4
// columns each of the output, over the span's positions in order; sums are added in the order of warps. Keys and values of
// spans take turns in a ring of three places: what has been used is replaced by what comes three later. Rows of shared memory
// are 16-byte units, unit u of row r at u ^ r % 8, free of bank conflicts. Positions after the tile's last are not read at all
// (their pages may hold anything).
//
// Blocks (items, HK) of 128 or 256 threads. Bytes: 4 D a key position, tile and key head. Flops: 4 ROWS D the same.
#include "bf16.cuh"
#include "heads.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "softmax.cuh"

constexpr int SPAN = 64, ROWS = ATTN_ROWS, M = ROWS == 16 ? 1 : 2, GROUPS = ROWS / 16 / M, WARPS = 4 * GROUPS, THREADS = 32 * WARPS;
constexpr int UNITS = D / 8, NT = D / 32; // 16-byte units of a row; tiles of 8 columns that a warp has of the output
constexpr int MAX_CHUNKS = 32, GROUP = 4;
constexpr int TUNE_LAST = 1;
constexpr bool WHOLE = P % SPAN == 0; // a span lies in one page
constexpr int VALUES = HK * P * D;    // from a key to its value

struct Shared {
	uint4 q[ROWS][UNITS], ring[3][SPAN][UNITS], probs[ROWS][SPAN / 8];
	float maxima[4][ROWS], sums[4][ROWS];
	AttnItem item; // what a thread does not keep in registers of the item at hand
};

// thread is the thread's index, computed anew: else the compiler keeps what depends on it in registers from item to item.
__device__ __forceinline__ int thread() {
	u32 i = threadIdx.x;
	forget(i);
	return i;
}

// Walk is what a block knows of its item.
struct Walk {
	const int *table;
	int token, ntok, pos, fresh, partial;
	int length, start, end; // positions of a chunk, a power of two; the item's first position, and the end of its chunks or of its positions
};

// State is the softmax of a thread's rows: row x / 2 * 16 + x % 2 * 8 + lane / 4 of its warp's, D / 4 columns.
struct State {
	float maxima[2 * M], sums[2 * M], out[M][NT][4];
};

// Total is a State that is touched once a chunk of several spans, or once a group: in local memory, as there are registers for
// one State only.
struct Total {
	volatile float maxima[2 * M], sums[2 * M], out[M][NT][4];
};

template <typename T>
__device__ __forceinline__ void clear(T &s) {
#pragma unroll
	for (int x = 0; x < 2 * M; x++) s.maxima[x] = -INF, s.sums[x] = 0.0f;
#pragma unroll
	for (int i = 0; i < M * NT * 4; i++) s.out[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
}

// read_item reads an item, also into shared memory; another kernel wrote it, which may have ended a moment ago.
__device__ __forceinline__ Walk read_item(const AttnParams &p, int i, Shared &s) {
	static_assert(sizeof(AttnItem) == 48, "three words");
	const uint4 *from = (const uint4 *)(p.items + i);
	const uint4 a = __ldcg(from), b = __ldcg(from + 1), c = __ldcg(from + 2);
	if (threadIdx.x == 0) {
		uint4 *to = (uint4 *)&s.item;
		to[0] = a, to[1] = b, to[2] = c;
	}
	Walk w;
	w.token = a.x, w.ntok = a.y, w.pos = a.z, w.table = p.table + (size_t)a.w * p.max_pages;
	w.partial = b.z;
	w.length = (int)c.x * SPAN, w.fresh = c.y;
	w.start = (int)b.x * w.length;
	w.end = min(w.pos + w.ntok, (int)b.y * w.length);
	return w;
}

// page_of returns the page of a span that lies in one, or 0.
__device__ __forceinline__ int page_of(const Walk &w, int base) { return WHOLE && base < w.end ? __ldcg(w.table + base / P) : 0; }

// fetch starts the copy of a span's keys or values, except those that the block makes itself. tile is the head's part of page 0.
__device__ __forceinline__ void fetch(const Walk &w, uint4 (*to)[UNITS], const bf16 *tile, int base, int page) {
	const int me = thread();
	constexpr int STEP = THREADS / UNITS; // rows that the block copies at a time
	static_assert(STEP % 8 == 0, "a thread's units lie in one column");
	if (base < w.end) {
		const int row = me / UNITS, unit = me % UNITS;
		uint4 *at = &to[row][unit ^ row % 8];
		const bf16 *from = tile + ((size_t)page * 2 * HK * P + base % P + row) * D + 8 * unit;
#pragma unroll
		for (int j = 0; j < SPAN / STEP; j++) {
			const int pos = base + j * STEP + row;
			const bool in = pos < w.end;
#if ATTN_FRESH
			if (in && pos >= w.fresh) continue;
#endif
			if (!WHOLE) {
				const int other = in ? __ldcg(w.table + pos / P) : 0;
				copy_async(at + j * STEP * UNITS, tile + ((size_t)other * 2 * HK * P + pos % P) * D + 8 * unit, in);
			} else {
				copy_async(at + j * STEP * UNITS, from + j * STEP * D, in);
			}
		}
	}
	copy_commit();
}

#if ATTN_FRESH
// put_head writes a head's elements into a row of shared memory, and into the cache if there is a place.
__device__ __forceinline__ void put_head(uint4 (*rows)[UNITS], int row, const float (&v)[2 * HEAD_PER], bf16 *out) {
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int j = 0; j < 2 * HEAD_PER; j++) {
		const int e = lane + 32 * j;
		const bf16 x = float_to_bf16(v[j]);
		((bf16 *)&rows[row][e / 8 ^ row % 8])[e % 8] = x;
		if (out) out[e] = x;
	}
}

// make_span makes the keys and values that the step adds to a span, and appends those of the tile's own tokens.
__device__ __forceinline__ void make_span(const AttnParams &p, const Walk &w, int h, int base, uint4 (*keys)[UNITS], uint4 (*values)[UNITS]) {
	const int from = max(w.fresh, base), n = min(w.end, base + SPAN) - from;
#pragma unroll 1
	for (int i = threadIdx.x / 32; i < 2 * n; i += WARPS) {
		const int at = from + i / 2, value = i % 2;
		float v[2 * HEAD_PER];
		finish_head(p.heads, w.token + at - w.pos, HQ + value * HK + h, at, v);
		bf16 *out = nullptr;
		if (at >= w.pos) out = p.cache + (((size_t)w.table[at / P] * 2 * HK + value * HK + h) * P + at % P) * D;
		put_head(value ? values : keys, at - base, v, out);
	}
}
#endif

// load_queries fills the block's queries; missing rows are zero.
__device__ __forceinline__ void load_queries(const AttnParams &p, const Walk &w, int h, Shared &s) {
	const int me = thread();
	const int rows = w.ntok * G;
#if ATTN_FRESH
	for (int r = me / 32; r < ROWS; r += WARPS) {
		float v[2 * HEAD_PER];
#pragma unroll
		for (int j = 0; j < 2 * HEAD_PER; j++) v[j] = 0.0f;
		if (r < rows) finish_head(p.heads, w.token + r / G, h * G + r % G, w.pos + r / G, v);
		put_head(s.q, r, v, nullptr);
	}
#else
#pragma unroll
	for (int j = 0; j < ROWS * UNITS / THREADS; j++) {
		const int i = j * THREADS + me, r = i / UNITS, unit = i % UNITS;
		uint4 x = make_uint4(0, 0, 0, 0);
		if (r < rows) x = *(const uint4 *)(p.q + ((size_t)(w.token + r / G) * HQ + h * G + r % G) * D + 8 * unit);
		s.q[r][unit ^ r % 8] = x;
	}
#endif
}

// scores makes the scores of a warp's rows at its 16 positions of a span, -inf where masked, and leaves the rows' maxima.
__device__ __forceinline__ void scores(const Walk &w, Shared &s, const uint4 (*keys)[UNITS], int base, float (&z)[M][2][4]) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
#pragma unroll
	for (int i = 0; i < M * 8; i++) z[i / 8][i / 4 % 2][i % 4] = 0.0f;
	const int krow = 16 * part + lane % 8 + lane / 16 * 8, qrow = row0 + lane % 16;
	const u32 kat = (krow * UNITS + (lane / 8 % 2 ^ krow % 8)) * 16, qat = (qrow * UNITS + (lane / 16 ^ qrow % 8)) * 16;
#pragma unroll
	for (int n = 0; n < D / 16; n++) {
		u32 k[4], q[4];
		load_matrices(k, keys, kat ^ 32 * n); // unit 2 n further
#pragma unroll
		for (int m = 0; m < M; m++) {
			load_matrices(q, s.q[16 * m], qat ^ 32 * n);
			mma_bf16(z[m][0], q[0], q[1], q[2], q[3], k[0], k[1]);
			mma_bf16(z[m][1], q[0], q[1], q[2], q[3], k[2], k[3]);
		}
	}
	if (base + SPAN - 1 > w.pos) {
#pragma unroll
		for (int i = 0; i < M * 8; i++) {
			const int m = i / 8, t = i / 4 % 2, j = i % 4, row = row0 + 16 * m + j / 2 * 8 + g;
			if (base + 16 * part + 8 * t + 2 * c + j % 2 > w.pos + row / G) z[m][t][j] = -INF;
		}
	}
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int m = x / 2, j = x % 2 * 2;
		float top = fmaxf(fmaxf(z[m][0][j], z[m][0][j + 1]), fmaxf(z[m][1][j], z[m][1][j + 1]));
		top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
		top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
		if (c == 0) s.maxima[part][row0 + 16 * m + x % 2 * 8 + g] = top;
	}
}

// exponentiate writes probabilities relative to the span's maximum, which it returns, and their sums.
__device__ __forceinline__ void exponentiate(const AttnParams &p, Shared &s, const float (&z)[M][2][4], float (&maxima)[2 * M]) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int m = x / 2, j = x % 2 * 2, row = row0 + 16 * m + x % 2 * 8 + g;
		const float top = fmaxf(fmaxf(s.maxima[0][row], s.maxima[1][row]), fmaxf(s.maxima[2][row], s.maxima[3][row]));
		maxima[x] = __fmul_rn(top, p.scale);
		const float from = maxima[x] == -INF ? 0.0f : maxima[x];
		float sum = 0.0f;
#pragma unroll
		for (int t = 0; t < 2; t++) {
			const float a = exp2_fast(fmaf(z[m][t][j], p.scale, -from)), b = exp2_fast(fmaf(z[m][t][j + 1], p.scale, -from));
			sum += a, sum += b;
			((u32 *)&s.probs[row][(2 * part + t) ^ row % 8])[c] = pack_bf16(a, b);
		}
		sum += __shfl_xor_sync(FULL_WARP, sum, 1);
		sum += __shfl_xor_sync(FULL_WARP, sum, 2);
		if (c == 0) s.sums[part][row] = sum;
	}
}

// weigh joins the products of a span's probabilities and values into the state.
__device__ __forceinline__ void weigh(Shared &s, const uint4 (*values)[UNITS], const float (&maxima)[2 * M], State &state) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
	float2 f[2 * M];
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int row = row0 + x / 2 * 16 + x % 2 * 8 + g;
		float sum = 0.0f;
#pragma unroll
		for (int i = 0; i < 4; i++) sum += s.sums[i][row];
		SoftmaxState joined = {state.maxima[x], state.sums[x]};
		f[x] = join_factors(joined, maxima[x], sum);
		state.maxima[x] = joined.maximum, state.sums[x] = joined.sum;
	}
	const int row16 = lane % 16;
	const u32 vat = (row16 * UNITS + ((part * NT + lane / 16) ^ row16 % 8)) * 16, pat = ((row0 + row16) * 8 + (lane / 16 ^ row16 % 8)) * 16;
#pragma unroll
	for (int t = 0; t < NT; t += 2) { // 16 columns at a time, for the registers' sake
		float o[M][2][4];
#pragma unroll
		for (int i = 0; i < M * 8; i++) o[i / 8][i / 4 % 2][i % 4] = 0.0f;
#pragma unroll
		for (int n = 0; n < SPAN / 16; n++) {
			u32 a[4], v[4];
			load_matrices_transposed(v, values[16 * n], vat ^ 16 * t);
#pragma unroll
			for (int m = 0; m < M; m++) {
				load_matrices(a, s.probs[16 * m], pat ^ 32 * n);
				mma_bf16(o[m][0], a[0], a[1], a[2], a[3], v[0], v[1]);
				mma_bf16(o[m][1], a[0], a[1], a[2], a[3], v[2], v[3]);
			}
		}
#pragma unroll
		for (int i = 0; i < M * 8; i++) {
			const int m = i / 8, u = i / 4 % 2, j = i % 4;
			state.out[m][t + u][j] = join(state.out[m][t + u][j], o[m][u][j], f[2 * m + j / 2]);
		}
	}
}

// join_state joins a state into that of all before it. Joined into a clear one it stays what it is.
template <typename T, typename U>
__device__ __forceinline__ void join_state(T &all, const U &next) {
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		SoftmaxState s = {all.maxima[x], all.sums[x]};
		const float2 f = join_factors(s, next.maxima[x], next.sums[x]);
		all.maxima[x] = s.maximum, all.sums[x] = s.sum;
#pragma unroll
		for (int t = 0; t < NT; t++)
#pragma unroll
			for (int j = x % 2 * 2; j < x % 2 * 2 + 2; j++) all.out[x / 2][t][j] = join(all.out[x / 2][t][j], next.out[x / 2][t][j], f);
	}
}

// store writes a tile's output.
__device__ __forceinline__ void store(const AttnParams &p, const AttnItem &item, const Total &state) {
	const int me = thread(), h = blockIdx.y;
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
	const int token = item.token, rows = item.ntok * G;
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int row = row0 + x / 2 * 16 + x % 2 * 8 + g, j = x % 2 * 2;
		if (row >= rows) continue;
		const float inverse = reciprocal(state.sums[x]);
		bf16 *out = p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + part * (D / 4) + 2 * c;
#pragma unroll
		for (int t = 0; t < NT; t++)
			*(u32 *)(out + 8 * t) = pack_bf16(state.out[x / 2][t][j] * inverse, state.out[x / 2][t][j + 1] * inverse);
	}
}

// store_partial writes a tile's rows of one chunk, or of a group in the place of its first chunk.
__device__ __forceinline__ void store_partial(const AttnParams &p, const AttnItem &item, int chunk, const State &state) {
	const int me = thread(), h = blockIdx.y;
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
	const int rows = item.ntok * G, first = item.partial + chunk * rows;
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int row = row0 + x / 2 * 16 + x % 2 * 8 + g, j = x % 2 * 2;
		if (row >= rows) continue;
		const size_t at = (size_t)(first + row) * HK + h;
		float *out = p.part_o + at * D + part * (D / 4) + 2 * c;
#pragma unroll
		for (int t = 0; t < NT; t++) *(float2 *)(out + 8 * t) = make_float2(state.out[x / 2][t][j], state.out[x / 2][t][j + 1]);
		if (part == 0 && c == 0) *(float2 *)(p.part_ml + at * 2) = make_float2(state.maxima[x], state.sums[x]);
	}
}

// Joined is four columns of a row: the group at hand, and the groups before.
struct Joined {
	SoftmaxState group, all;
	float group_out[4], all_out[4];
};

// close_group joins the group at hand into those before.
__device__ __forceinline__ void close_group(Joined &j) {
	const float2 f = join_factors(j.all, j.group.maximum, j.group.sum);
#pragma unroll
	for (int i = 0; i < 4; i++) j.all_out[i] = join(j.all_out[i], j.group_out[i], f), j.group_out[i] = 0.0f;
	j.group = {-INF, 0.0f};
}

// whole reports whether the group of a chunk is one partial.
__device__ __forceinline__ bool whole(u32 groups, int chunk) { return groups >> chunk / GROUP & 1; }

// after is the chunk whose place has the partial after that in the place of a chunk.
__device__ __forceinline__ int after(u32 groups, int chunk) { return whole(groups, chunk) ? chunk + GROUP : chunk + 1; }

// Joining is how join_partials uses the memory of Shared up to its item: as many rows of partials at a time as there is room for.
struct Joining {
	float2 ml[ROWS][MAX_CHUNKS];
	float4 out[1]; // [partial][row][D / 4]
};

// join_partials joins the partials of a tile in order and writes the output.
__device__ __forceinline__ void join_partials(const AttnParams &p, int h, Shared &s) {
	constexpr int QUADS = D / 4, ROOM = (sizeof(Shared) - sizeof(AttnItem) - sizeof(Joining::ml)) / (QUADS * sizeof(float4));
	static_assert(ROOM >= MAX_CHUNKS, "a row at least");
	Joining &room = *(Joining *)&s;
	const int rows = s.item.ntok * G, length = s.item.spans * SPAN, n = (s.item.pos + s.item.ntok + length - 1) / length;
	const u32 groups = s.item.whole;
	int partials = 0;
	for (int chunk = 0; chunk < n; chunk = after(groups, chunk)) partials++;
	const int some = min(ROOM / partials, rows);
#pragma unroll 1
	for (int first = 0; first < rows; first += some) {
		__syncthreads(); // shared memory is free
		const int count = min(some, rows - first), quads = count * QUADS;
		float4 *to = room.out;
#pragma unroll 1
		for (int chunk = 0; chunk < n; chunk = after(groups, chunk)) {
			const size_t row0 = s.item.partial + chunk * rows + first;
			for (int j = threadIdx.x; j < quads; j += THREADS)
				copy_async(to + j, (const float4 *)p.part_o + ((row0 + j / QUADS) * HK + h) * QUADS + j % QUADS, true);
			for (int j = threadIdx.x; j < count; j += THREADS)
				room.ml[j][chunk] = __ldcg((const float2 *)p.part_ml + (row0 + j) * HK + h);
			to += quads;
		}
		copy_commit();
		copy_wait<0>();
		__syncthreads();
#pragma unroll 1
		for (int j = threadIdx.x; j < quads; j += THREADS) {
			const int row = first + j / QUADS;
			Joined joined = {{-INF, 0.0f}, {-INF, 0.0f}, {0, 0, 0, 0}, {0, 0, 0, 0}};
			const float4 *from = room.out + j;
#pragma unroll 1
			for (int chunk = 0, next; chunk < n; chunk = next, from += quads) {
				const float2 m = room.ml[j / QUADS][chunk], f = join_factors(joined.group, m.x, m.y);
				const float4 x = *from;
				const float o[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
				for (int i = 0; i < 4; i++) joined.group_out[i] = join(joined.group_out[i], o[i], f);
				next = after(groups, chunk);
				if (next % GROUP == 0 || next >= n) close_group(joined);
			}
			const float inverse = reciprocal(joined.all.sum), *o = joined.all_out;
			bf16 *out = p.out + ((size_t)(s.item.token + row / G) * HQ + h * G + row % G) * D + j % QUADS * 4;
			*(uint2 *)out = make_uint2(pack_bf16(o[0] * inverse, o[1] * inverse), pack_bf16(o[2] * inverse, o[3] * inverse));
		}
	}
}

// attend walks an item's spans; begin has been called, and returned page. It writes partials, or all joined.
template <bool PARTIALS>
__device__ __forceinline__ void attend(const AttnParams &p, const Walk &w, int h, const bf16 *keys, int page, Shared &s) {
	State now; // the chunk at hand, or all of the group at hand where chunks are spans
	Total group, all;
	clear(now), clear(group);
	if constexpr (!PARTIALS) clear(all);
	int place = 0; // of the span's keys; its values are in the next one, and the next span's keys in the third
#pragma unroll 1
	for (int base = w.start; base < w.end; base += SPAN) {
		const int next = base + SPAN, later_page = page_of(w, next + SPAN), second = place == 2 ? 0 : place + 1, third = 3 - place - second;
#if ATTN_FRESH
		if (next > w.fresh) make_span(p, w, h, base, s.ring[place], s.ring[second]);
#endif
		if (base == w.start) copy_wait<2>();
		else copy_wait<1>();
		__syncthreads(); // queries and keys are there, and the values before have been used
		if (base > w.start) fetch(w, s.ring[third], keys, next, page);
		float z[M][2][4], maxima[2 * M];
		scores(w, s, s.ring[place], base, z);
		__syncthreads(); // maxima are there, and the keys have been used
		fetch(w, s.ring[place], keys + VALUES, next, page);
		exponentiate(p, s, z, maxima);
		copy_wait<2>();
		__syncthreads(); // probabilities and values are there
		weigh(s, s.ring[second], maxima, now);
		page = later_page, place = third;
		if ((next & (w.length - 1)) != 0 && next < w.end) continue;
		const int c = base / w.length;
		if (PARTIALS && !whole(s.item.whole, c)) {
			store_partial(p, s.item, c, now);
			clear(now);
			continue;
		}
		const bool complete = (next & (GROUP * w.length - 1)) == 0 || next >= w.end;
		if (w.length > SPAN) {
			join_state(group, now);
			clear(now);
			if (complete) join_state(now, group), clear(group);
		}
		if (complete) {
			if constexpr (PARTIALS) store_partial(p, s.item, c & -GROUP, now);
			else join_state(all, now);
			clear(now);
		}
	}
	if constexpr (!PARTIALS) store(p, s.item, all);
}

// begin starts the copies of an item's first span, and of the second's keys; it returns the second's page.
__device__ __forceinline__ int begin(const Walk &w, const bf16 *keys, Shared &s) {
	const int page = page_of(w, w.start), next = page_of(w, w.start + SPAN);
	fetch(w, s.ring[0], keys, w.start, page);
	fetch(w, s.ring[1], keys + VALUES, w.start, page);
	fetch(w, s.ring[2], keys, w.start + SPAN, next);
	return next;
}

extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 16 ? 4 : 2) attn(const __grid_constant__ AttnParams p) {
	SHARED_STRUCT(Shared, s);
	const int h = blockIdx.y;
	const bf16 *keys = p.cache + (size_t)h * P * D; // of page 0
	const int items = __ldcg(&p.head->items);
	Walk w = read_item(p, blockIdx.x, s); // there is room for as many items as blocks
	int page = 0;
	// The narrow variant makes what is new itself, and skips it here; for the wide one qkvpost is yet to append it.
	const bool some = blockIdx.x < items, early = ATTN_FRESH || min(w.start + 2 * SPAN, w.end) <= w.fresh;
	if (some && early) page = begin(w, keys, s);
	await_previous();
	if (!p.last) start_next();
	if (some && !early) page = begin(w, keys, s);
	for (int i = blockIdx.x; i < items;) {
		const bool final = i + gridDim.x >= items;
		load_queries(p, w, h, s);
		if (w.partial < 0) {
			attend<false>(p, w, h, keys, page, s);
		} else {
			attend<true>(p, w, h, keys, page, s);
			if (TUNE_LAST && p.last && final) start_next();
			__threadfence();
			__syncthreads();
			bool last = false;
			if (threadIdx.x == 0) {
				u32 *arrived = p.arrived + (size_t)s.item.combine * HK + h;
				last = atomicAdd(arrived, 1u) == (u32)s.item.parts - 1;
				if (last) *arrived = 0;
				__threadfence();
			}
			if (__syncthreads_or(last)) join_partials(p, h, s);
		}
		if (final) break;
		i += gridDim.x;
		__syncthreads(); // shared memory is free again
		w = read_item(p, i, s);
		page = begin(w, keys, s);
	}
	if (p.last) start_next();
}
