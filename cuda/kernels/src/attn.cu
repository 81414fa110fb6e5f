// attn: out[t,h] = softmax(scale * q[t,h] . K[0..pos[t]]) V[0..pos[t]] over the pages of t's sequence.
//
// q, out [T, HQ, D] bf16; cache [N, 2, HK, P, D] bf16; causal by absolute position; scores and sums in f32.
//
// A work item is a tile of ROWS packed rows: row r is token r / G and query head h * G + r % G, so one tile serves
// ROWS / G tokens, and all of them share each read of a key. Keys are walked in spans of 64 positions from 0, and a number of
// spans that depends on the token's position alone (AttnPlan) makes a chunk, whose softmax is online; chunks are joined in
// order. An item covers either all chunks of its tile (and writes out) or some (and writes a partial for each; the block that
// finds all partials of a tile there joins them, in the same order). So a token's bits depend on its own sequence alone: not
// on the other rows, on how many tokens it came with, on how the work was spread, or on the variant.
//
// Variants. ATTN_ROWS 16 with ATTN_FRESH is for rows of few tokens: it makes queries, keys and values of the step's tokens
// itself, as qkvpost does, and appends to the cache. Keys and values of earlier steps do not depend on the kernels before,
// so their first span is on its way before the wait. ATTN_ROWS 64 is for rows of many: qkvpost has come before.
//
// Four warps make the scores of 16 rows (ATTN_ROWS 16) or 32 (64, with two such groups of warps) by 16 positions each,
// m16n8k16 products over D in order. They exchange maxima, write probabilities to shared memory and then make D / 4
// columns each of the output, over the span's positions in order; sums are added in the order of warps. A span's keys are
// replaced by those of the next as soon as its scores are there, its values when it is done. Rows of shared memory are
// 16-byte units, unit u of row r at u ^ r % 8, free of bank conflicts. Positions after the tile's last are not read
// at all (their pages may hold anything).
//
// Blocks (items, HK) of 128 or 256 threads. Bytes: 4 D a key position, tile and key head. Flops: 4 ROWS D the same.
#include "bf16.cuh"
#include "heads.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "softmax.cuh"

constexpr int SPAN = 64, ROWS = ATTN_ROWS, M = ROWS == 16 ? 1 : 2, GROUPS = ROWS / 16 / M, WARPS = 4 * GROUPS, THREADS = 32 * WARPS;
constexpr int UNITS = D / 8, NT = D / 32; // 16-byte units of a row; tiles of 8 columns that a warp has of the output
constexpr int MAX_CHUNKS = 32;
constexpr bool WHOLE = P % SPAN == 0; // a span lies in one page

struct Shared {
	uint4 q[ROWS][UNITS], k[SPAN][UNITS], v[SPAN][UNITS], probs[ROWS][SPAN / 8];
	float maxima[4][ROWS], sums[4][ROWS];
	AttnItem item; // what a thread does not keep in registers of the item at hand
};
static_assert(ROWS * MAX_CHUNKS * sizeof(float2) <= 2 * sizeof(Shared::k), "maxima and sums of partials take the place of keys and values");

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

__device__ __forceinline__ void clear(State &s) {
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
__device__ __forceinline__ void make_span(const AttnParams &p, const Walk &w, int h, int base, Shared &s) {
	const int from = max(w.fresh, base), n = min(w.end, base + SPAN) - from;
#pragma unroll 1
	for (int i = threadIdx.x / 32; i < 2 * n; i += WARPS) {
		const int at = from + i / 2, value = i % 2;
		float v[2 * HEAD_PER];
		finish_head(p.heads, w.token + at - w.pos, HQ + value * HK + h, at, v);
		bf16 *out = nullptr;
		if (at >= w.pos) out = p.cache + (((size_t)w.table[at / P] * 2 * HK + value * HK + h) * P + at % P) * D;
		put_head(value ? s.v : s.k, at - base, v, out);
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
__device__ __forceinline__ void scores(const Walk &w, Shared &s, int base, float (&z)[M][2][4]) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
#pragma unroll
	for (int i = 0; i < M * 8; i++) z[i / 8][i / 4 % 2][i % 4] = 0.0f;
	const int krow = 16 * part + lane % 8 + lane / 16 * 8, qrow = row0 + lane % 16;
	const u32 kat = (krow * UNITS + (lane / 8 % 2 ^ krow % 8)) * 16, qat = (qrow * UNITS + (lane / 16 ^ qrow % 8)) * 16;
#pragma unroll
	for (int n = 0; n < D / 16; n++) {
		u32 k[4], q[4];
		load_matrices(k, s.k, kat ^ 32 * n); // unit 2 n further
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

// exponentiate writes probabilities relative to the maximum so far and their sums, and rescales the state.
__device__ __forceinline__ void exponentiate(const AttnParams &p, Shared &s, float (&z)[M][2][4], State &state) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, c = lane % 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int m = x / 2, j = x % 2 * 2, row = row0 + 16 * m + x % 2 * 8 + g;
		const float top = fmaxf(fmaxf(s.maxima[0][row], s.maxima[1][row]), fmaxf(s.maxima[2][row], s.maxima[3][row]));
		const float most = fmaxf(state.maxima[x], __fmul_rn(top, p.scale)), from = most == -INF ? 0.0f : most;
		const float shrink = exp2_fast(state.maxima[x] - from);
		state.maxima[x] = most;
		state.sums[x] = __fmul_rn(state.sums[x], shrink);
#pragma unroll
		for (int t = 0; t < NT; t++) state.out[m][t][j] *= shrink, state.out[m][t][j + 1] *= shrink;
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

// weigh adds the products of probabilities and values to the state.
__device__ __forceinline__ void weigh(Shared &s, State &state) {
	const int me = thread();
	const int lane = me % 32, g = lane / 4, part = me / 32 % 4, row0 = me / 128 * 16 * M;
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		const int row = row0 + x / 2 * 16 + x % 2 * 8 + g;
#pragma unroll
		for (int i = 0; i < 4; i++) state.sums[x] += s.sums[i][row];
	}
	const int row16 = lane % 16;
	const u32 vat = (row16 * UNITS + ((part * NT + lane / 16) ^ row16 % 8)) * 16, pat = ((row0 + row16) * 8 + (lane / 16 ^ row16 % 8)) * 16;
#pragma unroll
	for (int n = 0; n < SPAN / 16; n++) {
		u32 a[M][4];
#pragma unroll
		for (int m = 0; m < M; m++) load_matrices(a[m], s.probs[16 * m], pat ^ 32 * n);
#pragma unroll
		for (int t = 0; t < NT; t += 2) {
			u32 v[4];
			load_matrices_transposed(v, s.v[16 * n], vat ^ 16 * t);
#pragma unroll
			for (int m = 0; m < M; m++) {
				mma_bf16(state.out[m][t], a[m][0], a[m][1], a[m][2], a[m][3], v[0], v[1]);
				mma_bf16(state.out[m][t + 1], a[m][0], a[m][1], a[m][2], a[m][3], v[2], v[3]);
			}
		}
	}
}

// join_chunk joins a chunk into the state of all chunks before it.
__device__ __forceinline__ void join_chunk(State &all, const State &chunk) {
#pragma unroll
	for (int x = 0; x < 2 * M; x++) {
		SoftmaxState s = {all.maxima[x], all.sums[x]};
		const float2 f = join_factors(s, chunk.maxima[x], chunk.sums[x]);
		all.maxima[x] = s.maximum, all.sums[x] = s.sum;
#pragma unroll
		for (int t = 0; t < NT; t++)
#pragma unroll
			for (int j = x % 2 * 2; j < x % 2 * 2 + 2; j++) all.out[x / 2][t][j] = join(all.out[x / 2][t][j], chunk.out[x / 2][t][j], f);
	}
}

// store writes a tile's output.
__device__ __forceinline__ void store(const AttnParams &p, const AttnItem &item, const State &state) {
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

// store_partial writes a tile's rows of one chunk.
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

// Pairs is two columns of a row in AHEAD partials, all on their way at once.
constexpr int AHEAD = ROWS == 16 ? 17 : 12;
struct Pairs {
	float2 o[AHEAD];
};

// join_partials joins the partials of a tile in chunk order and writes the output; a thread has two columns of a row at a
// time. It is no part of its caller, so that its registers are its own.
__device__ __noinline__ void join_partials(const float2 *part_o, const float2 *part_ml, bf16 *out, int h, Shared &s) {
	constexpr int PAIRS = D / 2;
	const int rows = s.item.ntok * G, n = s.item.chunks, partial = s.item.partial;
	float2(*ml)[MAX_CHUNKS] = (float2(*)[MAX_CHUNKS])s.k;
#pragma unroll 1
	for (int j = threadIdx.x; j < rows * n; j += THREADS) ml[j % rows][j / rows] = __ldcg(part_ml + (size_t)(partial + j) * HK + h);
	__syncthreads();
	const size_t step = (size_t)rows * HK * PAIRS;
#pragma unroll 1
	for (int i = threadIdx.x; i < rows * PAIRS; i += THREADS) {
		const int row = i / PAIRS, column = i % PAIRS;
		const float2 *from = part_o + ((size_t)(partial + row) * HK + h) * PAIRS + column;
		SoftmaxState state = {-INF, 0.0f};
		float2 sum = make_float2(0, 0);
#pragma unroll 1
		for (int first = 0; first < n; first += AHEAD) {
			Pairs x;
#pragma unroll
			for (int c = 0; c < AHEAD; c++) {
				if (first + c < n) x.o[c] = __ldcg(from);
				from += step;
			}
#pragma unroll
			for (int c = 0; c < AHEAD; c++) {
				if (first + c < n) {
					const float2 f = join_factors(state, ml[row][first + c].x, ml[row][first + c].y);
					sum.x = join(sum.x, x.o[c].x, f), sum.y = join(sum.y, x.o[c].y, f);
				}
			}
		}
		const float inverse = reciprocal(state.sum);
		*(u32 *)(out + ((size_t)(s.item.token + row / G) * HQ + h * G + row % G) * D + 2 * column) =
		    pack_bf16(sum.x * inverse, sum.y * inverse);
	}
}

// attend walks an item's spans; the first one's copies have begun. It writes a partial for each chunk, or all joined.
template <bool PARTIALS>
__device__ __forceinline__ void attend(const AttnParams &p, const Walk &w, int h, const bf16 *keys, const bf16 *values, int page, Shared &s) {
	State chunk, all;
	clear(all), clear(chunk);
#pragma unroll 1
	for (int base = w.start; base < w.end; base += SPAN) {
		const int next = base + SPAN, next_page = page_of(w, next);
#if ATTN_FRESH
		if (base > w.start) {
			__syncthreads(); // the values before have been used
			fetch(w, s.v, values, base, page);
		}
		if (next > w.fresh) make_span(p, w, h, base, s);
		copy_wait<1>();
		__syncthreads(); // queries and keys are there
#else // more to compute while values come, so one barrier less
		if (base == w.start) copy_wait<1>();
		else copy_wait<0>();
		__syncthreads(); // queries and keys are there, and the values before have been used
		if (base > w.start) fetch(w, s.v, values, base, page);
#endif
		float z[M][2][4];
		scores(w, s, base, z);
		__syncthreads(); // maxima are there, and the keys have been used
		fetch(w, s.k, keys, next, next_page);
		exponentiate(p, s, z, chunk);
		copy_wait<1>();
		__syncthreads(); // probabilities and values are there
		weigh(s, chunk);
		if ((next & (w.length - 1)) == 0 || next >= w.end) {
			if constexpr (PARTIALS) store_partial(p, s.item, base / w.length, chunk);
			else join_chunk(all, chunk);
			clear(chunk);
		}
		page = next_page;
	}
	if constexpr (!PARTIALS) store(p, s.item, all);
}

// begin starts the copies of an item's first span and returns its page.
__device__ __forceinline__ int begin(const Walk &w, const bf16 *keys, const bf16 *values, Shared &s) {
	const int page = page_of(w, w.start);
	fetch(w, s.k, keys, w.start, page);
	fetch(w, s.v, values, w.start, page);
	return page;
}

extern "C" __global__ void __launch_bounds__(THREADS, ROWS == 16 ? 4 : 2) attn(const __grid_constant__ AttnParams p) {
	SHARED_STRUCT(Shared, s);
	const int h = blockIdx.y;
	const bf16 *keys = p.cache + (size_t)h * P * D, *values = keys + (size_t)HK * P * D;
#if !ATTN_FRESH
	await_previous();
	if (!p.last) start_next();
#endif
	const int items = __ldcg(&p.head->items);
	Walk w = read_item(p, blockIdx.x, s); // there is room for as many items as blocks
	int page = 0;
	if (blockIdx.x < items) page = begin(w, keys, values, s);
#if ATTN_FRESH
	await_previous();
	if (!p.last) start_next();
#endif
	for (int i = blockIdx.x; i < items;) {
		load_queries(p, w, h, s);
		if (w.partial < 0) {
			attend<false>(p, w, h, keys, values, page, s);
		} else {
			attend<true>(p, w, h, keys, values, page, s);
			__threadfence();
			__syncthreads();
			bool last = false;
			if (threadIdx.x == 0) {
				u32 *arrived = p.arrived + (size_t)s.item.combine * HK + h;
				last = atomicAdd(arrived, 1u) == (u32)s.item.parts - 1;
				if (last) *arrived = 0;
				__threadfence();
			}
			if (__syncthreads_or(last)) join_partials((const float2 *)p.part_o, (const float2 *)p.part_ml, p.out, h, s);
		}
		i += gridDim.x;
		if (i >= items) break;
		__syncthreads(); // shared memory is free again
		w = read_item(p, i, s);
		page = begin(w, keys, values, s);
	}
	if (p.last) start_next();
}
