// attn: out[t,h] = softmax(scale * q[t,h] . K[0..pos[t]]) V[0..pos[t]] over the pages of t's sequence.
//
// q, out [T, HQ, D] bf16; cache [N, 2, HK, P, D] bf16; causal by absolute position; scores and sums in f32.
//
// A work item is a tile of ROWS packed rows: row r is token r / G and query head h * G + r % G, so one tile serves
// ROWS / G tokens, and all of them share each read of a key. Keys are walked in spans of 64 positions from 0, each with a
// softmax of its own. A number of spans that depends on the token's position alone (AttnPlan) makes a chunk, four chunks make a
// group: spans are joined in order to a chunk, chunks to a group, groups to the result. An item covers either all chunks of its
// tile (and writes out) or some, and writes a partial for each group that it has whole and for each other chunk; the block that
// finds all partials of a tile there joins them, in the same order. So a token's bits depend on its own sequence alone: not on
// the other rows, on how many tokens it came with, on how the work was spread, or on the variant.
//
// Variants. ATTN_ROWS 16 with ATTN_FRESH is for rows of few tokens: it makes queries, keys and values of the step's tokens
// itself, as qkvpost does, and appends to the cache. ATTN_ROWS 64 is for rows of many: qkvpost has come before. Keys and values
// of earlier steps do not depend on the kernel before, so an item's first ones are on their way before the wait.
//
// Products are m16n8k16, scores over D in order, outputs over a span's positions in order. Narrow: four warps make the scores of
// 16 rows by 16 positions each, exchange maxima, write probabilities to shared memory and then make D / 4 columns each of the
// output. Wide: each of four warps has 16 rows of its own, all positions and all columns, and its probabilities stay in
// registers. Sums are of 16 positions first, then of those in order, in both.
//
// Keys and values of spans take turns in places of shared memory. Narrow: two, so that blocks leave room for those of the products
// before and after; a span's keys are replaced by the next one's as soon as its scores are there, its values when it is done.
// Wide: three, what has been used is replaced by what comes three later. Rows of shared memory are 16-byte units, unit u of
// row r at u ^ r % 8, free of bank conflicts. Positions after the tile's last are not read at all (their pages may hold anything).
//
// Blocks (items, HK) of 128 threads. Bytes: 4 D a key position, tile and key head. Flops: 4 ROWS D the same.
#include "bf16.cuh"
#include "heads.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "softmax.cuh"

constexpr int SPAN = 64, ROWS = ATTN_ROWS, THREADS = 128, WARPS = 4;
constexpr int PARTS = WARPS * 16 / ROWS; // that warps make of a span's positions and of the output's columns
constexpr int PLACES = ROWS == 16 ? 2 : 3;
constexpr int UNITS = D / 8;             // 16-byte units of a row
constexpr int RUNS = SPAN / 16 / PARTS, NT = D / 8 / PARTS; // runs of 16 positions, tiles of 8 columns that a warp has
constexpr int MANY = NT < 4 ? NT : 4; // tiles of columns that a warp makes at a time
constexpr int MAX_CHUNKS = 32, GROUP = 4;
constexpr bool WHOLE = P % SPAN == 0; // a span lies in one page
constexpr int VALUES = HK * P * D;    // from a key to its value

struct Shared {
	uint4 q[ROWS][UNITS], places[PLACES][SPAN][UNITS];
	uint4 probs[PARTS > 1 ? ROWS : 1][SPAN / 8]; // and what else warps exchange that share rows
	float maxima[4][PARTS > 1 ? ROWS : 1], sums[4][PARTS > 1 ? ROWS : 1];
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

// State is the softmax of a thread's rows, 8 x + lane / 4 of its warp's, and its warp's columns.
struct State {
	float maxima[2], sums[2], out[NT][4];
};

// Total is a State that is touched once a chunk of several spans, or once a group: in local memory, to leave registers to others.
struct Total {
	volatile float maxima[2], sums[2], out[NT][4];
};

// Longer is a State for the length of an item: the narrow variant has registers for two.
#if ATTN_ROWS == 16
typedef State Longer;
#else
typedef Total Longer;
#endif

// Place is where a thread works: its lane as row g and column c of a product's tile, its warp's part and first row.
struct Place {
	int lane, g, c, part, row0;
};

__device__ __forceinline__ Place here() {
	const int me = thread(), lane = me % 32, warp = me / 32;
	return {lane, lane / 4, lane % 4, warp % PARTS, warp / PARTS * 16};
}

template <typename T>
__device__ __forceinline__ void clear(T &s) {
#pragma unroll
	for (int x = 0; x < 2; x++) s.maxima[x] = -INF, s.sums[x] = 0.0f;
#pragma unroll
	for (int i = 0; i < NT * 4; i++) s.out[i / 4][i % 4] = 0.0f;
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

// Scores are a warp's scores in a span, then its probabilities: of run r, position 8 t + 2 c + j % 2, row 8 (j / 2) + g. top has the
// maxima of the thread's rows.
struct Scores {
	float z[RUNS][2][4], top[2];
};

// score makes a warp's scores, -inf where masked, and shows their maxima to the warps that share its rows.
__device__ __forceinline__ void score(const Walk &w, Shared &s, const uint4 (*keys)[UNITS], int base, Scores &out) {
	const Place at = here();
#pragma unroll
	for (int i = 0; i < RUNS * 8; i++) out.z[i / 8][i / 4 % 2][i % 4] = 0.0f;
	const int krow = SPAN / PARTS * at.part + at.lane % 8 + at.lane / 16 * 8, qrow = at.row0 + at.lane % 16;
	const u32 kat = (krow * UNITS + (at.lane / 8 % 2 ^ krow % 8)) * 16, qat = (qrow * UNITS + (at.lane / 16 ^ qrow % 8)) * 16;
#pragma unroll
	for (int n = 0; n < D / 16; n++) {
		u32 k[4], q[4];
		load_matrices(q, s.q, qat ^ 32 * n); // unit 2 n further
#pragma unroll
		for (int r = 0; r < RUNS; r++) {
			load_matrices(k, keys[16 * r], kat ^ 32 * n);
			mma_bf16(out.z[r][0], q[0], q[1], q[2], q[3], k[0], k[1]);
			mma_bf16(out.z[r][1], q[0], q[1], q[2], q[3], k[2], k[3]);
		}
	}
	if (base + SPAN - 1 > w.pos) {
#pragma unroll
		for (int i = 0; i < RUNS * 8; i++) {
			const int r = i / 8, t = i / 4 % 2, j = i % 4, row = at.row0 + j / 2 * 8 + at.g;
			if (base + SPAN / PARTS * at.part + 16 * r + 8 * t + 2 * at.c + j % 2 > w.pos + row / G) out.z[r][t][j] = -INF;
		}
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float top = -INF;
#pragma unroll
		for (int r = 0; r < RUNS; r++)
			top = fmaxf(top, fmaxf(fmaxf(out.z[r][0][2 * x], out.z[r][0][2 * x + 1]), fmaxf(out.z[r][1][2 * x], out.z[r][1][2 * x + 1])));
		top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
		out.top[x] = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
		if (PARTS > 1 && at.c == 0) s.maxima[at.part][at.row0 + 8 * x + at.g] = out.top[x];
	}
}

// Weights are a span's probabilities as left operands of products, relative to the maxima of the thread's rows, and their sums.
// Warps that share rows have the operands and the sums in shared memory instead.
struct Weights {
	u32 a[PARTS > 1 ? 1 : RUNS][4];
	float maxima[2], sums[2];
};

__device__ __forceinline__ void exponentiate(const AttnParams &p, Shared &s, const Scores &in, Weights &out) {
	const Place at = here();
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const int row = at.row0 + 8 * x + at.g;
		float top = in.top[x];
		if constexpr (PARTS > 1) top = fmaxf(fmaxf(s.maxima[0][row], s.maxima[1][row]), fmaxf(s.maxima[2][row], s.maxima[3][row]));
		out.maxima[x] = __fmul_rn(top, p.scale);
		out.sums[x] = 0.0f;
		const float from = out.maxima[x] == -INF ? 0.0f : out.maxima[x];
#pragma unroll
		for (int r = 0; r < RUNS; r++) {
			float sum = 0.0f;
#pragma unroll
			for (int t = 0; t < 2; t++) {
				const float a = exp2_fast(fmaf(in.z[r][t][2 * x], p.scale, -from)), b = exp2_fast(fmaf(in.z[r][t][2 * x + 1], p.scale, -from));
				sum += a, sum += b;
				if constexpr (PARTS > 1) ((u32 *)&s.probs[row][(2 * at.part + t) ^ row % 8])[at.c] = pack_bf16(a, b);
				else out.a[r][2 * t + x] = pack_bf16(a, b);
			}
			sum += __shfl_xor_sync(FULL_WARP, sum, 1);
			sum += __shfl_xor_sync(FULL_WARP, sum, 2);
			if (PARTS == 1) out.sums[x] += sum;
			else if (at.c == 0) s.sums[at.part][row] = sum;
		}
	}
}

// weigh joins the products of a span's probabilities and values into the state.
__device__ __forceinline__ void weigh(Shared &s, const uint4 (*values)[UNITS], Weights &weights, State &state) {
	const Place at = here();
	float2 f[2];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		if constexpr (PARTS > 1) {
#pragma unroll
			for (int i = 0; i < 4; i++) weights.sums[x] += s.sums[i][at.row0 + 8 * x + at.g];
		}
		SoftmaxState joined = {state.maxima[x], state.sums[x]};
		f[x] = join_factors(joined, weights.maxima[x], weights.sums[x]);
		state.maxima[x] = joined.maximum, state.sums[x] = joined.sum;
	}
	const int row16 = at.lane % 16;
	const u32 vat = (row16 * UNITS + ((at.part * NT + at.lane / 16) ^ row16 % 8)) * 16, pat = (row16 * 8 + (at.lane / 16 ^ row16 % 8)) * 16;
#pragma unroll
	for (int t = 0; t < NT; t += MANY) { // some columns at a time, for the registers' sake
		float o[MANY][4];
#pragma unroll
		for (int i = 0; i < MANY * 4; i++) o[i / 4][i % 4] = 0.0f;
#pragma unroll
		for (int n = 0; n < SPAN / 16; n++) {
			if constexpr (PARTS > 1) load_matrices(weights.a[0], s.probs, pat ^ 32 * n);
			const u32(&a)[4] = weights.a[PARTS > 1 ? 0 : n];
#pragma unroll
			for (int u = 0; u < MANY; u += 2) {
				u32 v[4];
				load_matrices_transposed(v, values[16 * n], vat ^ 16 * (t + u));
				mma_bf16(o[u], a[0], a[1], a[2], a[3], v[0], v[1]);
				mma_bf16(o[u + 1], a[0], a[1], a[2], a[3], v[2], v[3]);
			}
		}
#pragma unroll
		for (int i = 0; i < MANY * 4; i++) state.out[t + i / 4][i % 4] = join(state.out[t + i / 4][i % 4], o[i / 4][i % 4], f[i % 4 / 2]);
	}
}

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

// Joining is shared memory while partials are joined, in the place of queries, keys and values.
struct Joining {
	static constexpr int ROOM = (sizeof(Shared::q) + sizeof(Shared::places) - 4 * ROWS - MAX_CHUNKS) / 16;
	static constexpr int MOST = PARTS > 1 ? MAX_CHUNKS : MAX_CHUNKS / GROUP; // partials: a wide tile's are groups (AttnPlan)
	float inverse[ROWS];
	unsigned char chunks[MAX_CHUNKS]; // of the partials in their order
	float4 at[ROOM];                  // factors of each row and partial, then the partials of some rows
};
static_assert(sizeof(Joining) <= sizeof(Shared::q) + sizeof(Shared::places), "it takes their place");
static_assert(Joining::ROOM >= Joining::MOST * (ROWS + D / 4), "there is room for a row at a time");

// partials_of has a bit for each chunk of a tile with a partial: all chunks, but of a whole group the first one alone.
__device__ __forceinline__ u32 partials_of(u32 groups, int chunks) {
	u32 of = 0;
	for (int g = 0; g * GROUP < chunks; g++) of |= (groups >> g & 1 ? 1u : (1u << GROUP) - 1) << g * GROUP;
	return chunks == 32 ? of : of & ((1u << chunks) - 1);
}

// join_rows makes of a row's maxima and sums the factors of its partials: x and y join one into its group, and where that ends there,
// z and w the group into those before.
__device__ __forceinline__ float join_rows(float4 *row, const unsigned char *chunks, int partials) {
	SoftmaxState group = {-INF, 0.0f}, all = {-INF, 0.0f};
#pragma unroll 1
	for (int i = 0; i < partials; i++) {
		const float2 f = join_factors(group, row[i].x, row[i].y);
		float2 last = make_float2(0, 0);
		if (i + 1 == partials || chunks[i + 1] / GROUP != chunks[i] / GROUP) {
			last = join_factors(all, group.maximum, group.sum);
			group = {-INF, 0.0f};
		}
		row[i] = make_float4(f.x, f.y, last.x, last.y);
	}
	return reciprocal(all.sum);
}

__device__ __forceinline__ float4 join(float4 a, float4 b, float x, float y) {
	const float2 f = make_float2(x, y);
	return make_float4(join(a.x, b.x, f), join(a.y, b.y, f), join(a.z, b.z, f), join(a.w, b.w, f));
}

// join_partials joins the partials of a tile in order and writes the output, for as many rows at a time as fit shared memory. Time
// here is the number of waits for memory, and code: a step's weights drive it out of the caches, so loops are not unrolled.
__device__ __forceinline__ void join_partials(const AttnParams &p, int h, Shared &s) {
	constexpr int QUADS = D / 4, SLOTS = THREADS / QUADS; // a thread has four columns of every SLOTS-th row
	Joining &j = *(Joining *)&s;
	const int rows = s.item.ntok * G, length = s.item.spans * SPAN, partial = s.item.partial, token = s.item.token;
	const int chunks = (s.item.pos + s.item.ntok + length - 1) / length;
	const u32 of = partials_of(s.item.whole, chunks);
	const int n = __popc(of), quad = threadIdx.x % QUADS, slot = threadIdx.x / QUADS;
	float4 *x = j.at + rows * n;
	const int batch = min(rows, (Joining::ROOM - rows * n) / (n * QUADS));
	if (threadIdx.x < MAX_CHUNKS && of >> threadIdx.x & 1) j.chunks[__popc(of & ((1u << threadIdx.x) - 1))] = threadIdx.x;
	__syncthreads();
	const auto fetch_rows = [&](int first) {
#pragma unroll 1
		for (int i = 0; i < n; i++) {
			const float4 *from = (const float4 *)p.part_o + ((size_t)(partial + j.chunks[i] * rows + first) * HK + h) * QUADS + quad;
#pragma unroll 1
			for (int r = slot; r < min(batch, rows - first); r += SLOTS)
				copy_async(&x[(i * batch + r) * QUADS + quad], from + (size_t)r * HK * QUADS, true);
		}
		copy_commit();
	};
	fetch_rows(0);
#pragma unroll 4
	for (int i = threadIdx.x; i < rows * n; i += THREADS) {
		const int r = i / n, at = partial + j.chunks[i % n] * rows + r;
		const float2 m = __ldcg((const float2 *)p.part_ml + (size_t)at * HK + h);
		j.at[i].x = m.x, j.at[i].y = m.y;
	}
	__syncthreads();
	if (threadIdx.x < rows) j.inverse[threadIdx.x] = join_rows(j.at + threadIdx.x * n, j.chunks, n);
#pragma unroll 1
	for (int first = 0; first < rows; first += batch) {
		copy_wait<0>();
		__syncthreads();
#pragma unroll 1
		for (int r = slot; r < min(batch, rows - first); r += SLOTS) {
			const float4 *factors = j.at + (first + r) * n;
			float4 group = make_float4(0, 0, 0, 0), all = group;
#pragma unroll 1
			for (int i = 0; i < n; i++) {
				const float4 f = factors[i];
				group = join(group, x[(i * batch + r) * QUADS + quad], f.x, f.y);
				if (i + 1 < n && j.chunks[i + 1] / GROUP == j.chunks[i] / GROUP) continue;
				all = join(all, group, f.z, f.w);
				group = make_float4(0, 0, 0, 0);
			}
			const float inverse = j.inverse[first + r];
			const int at = first + r;
			*(uint2 *)(p.out + ((size_t)(token + at / G) * HQ + h * G + at % G) * D + 4 * quad) =
			    make_uint2(pack_bf16(all.x * inverse, all.y * inverse), pack_bf16(all.z * inverse, all.w * inverse));
		}
		__syncthreads();
		if (first + batch < rows) fetch_rows(first + batch);
	}
}

// attend walks an item's spans; begin has been called, and returned page. It writes partials, or all joined.
__device__ __forceinline__ void attend(const AttnParams &p, const Walk &w, int h, const bf16 *keys, int page, Shared &s) {
	State now; // the chunk at hand, or all of the group at hand where chunks are spans
	Total group;
	Longer all;
	clear(now);
	if (w.length > SPAN) clear(group);
	const bool partials = w.partial >= 0;
	if (!partials) clear(all);
	const bool idle = here().row0 >= w.ntok * G; // a warp without rows
	int place = 0; // of the span's keys; its values are in the next one; of three places the last has the next span's keys
#pragma unroll 1
	for (int base = w.start; base < w.end; base += SPAN) {
		const int next = base + SPAN, later_page = page_of(w, next + (PLACES - 2) * SPAN);
		const int second = PLACES == 2 ? 1 : place == 2 ? 0 : place + 1, third = PLACES == 2 ? 0 : 3 - place - second;
#if ATTN_FRESH
		if (base > w.start) {
			__syncthreads(); // the values before have been used
			fetch(w, s.places[second], keys + VALUES, base, page);
			page = later_page;
		}
		if (next > w.fresh) make_span(p, w, h, base, s.places[place], s.places[second]);
		copy_wait<1>();
		__syncthreads(); // queries and keys are there
#else
		if (base == w.start) copy_wait<2>();
		else copy_wait<1>();
		__syncthreads(); // queries and keys are there, and the values before have been used
		if (base > w.start) fetch(w, s.places[third], keys, next, page);
#endif
		Scores scores;
		Weights weights;
		if (!idle) score(w, s, s.places[place], base, scores);
		__syncthreads(); // maxima are there, and the keys have been used
		fetch(w, s.places[place], PLACES == 2 ? keys : keys + VALUES, next, page);
		if (!idle) exponentiate(p, s, scores, weights);
		copy_wait<PLACES - 1>();
		__syncthreads(); // probabilities and values are there
		if (!idle) weigh(s, s.places[second], weights, now);
		if (PLACES == 3) page = later_page;
		place = third;
		if ((next & (w.length - 1)) != 0 && next < w.end) continue;
		const int c = base / w.length;
		if (partials && !whole(s.item.whole, c)) {
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
			if (partials) store_partial(p, s.item, c & -GROUP, now);
			else join_state(all, now);
			clear(now);
		}
	}
	if (!partials) store(p, s.item, all);
}

// begin starts the copies of an item's first span, and of the second's keys if there is a place; it returns the second's page.
__device__ __forceinline__ int begin(const Walk &w, const bf16 *keys, Shared &s) {
	const int page = page_of(w, w.start), next = page_of(w, w.start + SPAN);
	fetch(w, s.places[0], keys, w.start, page);
	fetch(w, s.places[1], keys + VALUES, w.start, page);
	if constexpr (PLACES == 3) fetch(w, s.places[2], keys, w.start + SPAN, next);
	return next;
}

extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 16 ? 4 : 2) attn(const __grid_constant__ AttnParams p) {
	TIMELINE_BLOCK;
	SHARED_STRUCT(Shared, s);
	const int h = blockIdx.y;
	const bf16 *keys = p.cache + (size_t)h * P * D; // of page 0
	const int items = __ldcg(&p.head->items);
	Walk w = read_item(p, blockIdx.x, s); // there is room for as many items as blocks
	int page = 0;
	// The narrow variant makes what is new itself, and skips it here; for the wide one qkvpost is yet to append it.
	const bool some = blockIdx.x < items, early = ATTN_FRESH || min(w.start + (PLACES - 1) * SPAN, w.end) <= w.fresh;
	if (some && early) page = begin(w, keys, s);
	await_previous();
	if (!p.last) start_next();
	if (some && !early) page = begin(w, keys, s);
	for (int i = blockIdx.x; i < items;) {
		const bool final = i + gridDim.x >= items;
		load_queries(p, w, h, s);
		attend(p, w, h, keys, page, s);
		if (w.partial >= 0) {
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
