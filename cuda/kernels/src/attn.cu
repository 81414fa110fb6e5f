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
// Wide: a ring of ATTN_RING spans; a span's copies begin as many but one spans before. Rows of shared memory are 16-byte units, unit u
// of row r at u ^ r % 8, free of bank conflicts. Positions after the tile's last are not read at all (their pages may hold
// anything).
//
// Blocks (items, HK) of 128 threads. Bytes: 4 D a key position, tile and key head. Flops: 4 ROWS D the same.
#include "attnjoin.cuh"
#include "attnspan.cuh"
#include "attnstate.cuh"
#include "heads.cuh"

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
}

#if !ATTN_FRESH
// fetch_both starts the copy of a span's keys and values into its place of the ring.
__device__ __forceinline__ void fetch_both(const Walk &w, Shared &s, int turn, const bf16 *keys, int base, int page) {
	fetch(w, s.places[2 * turn], keys, base, page);
	fetch(w, s.places[2 * turn + 1], keys + VALUES, base, page);
	copy_commit();
}
#endif

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

// close_span ends a span whose products are in the state: at the end of a chunk or of a group the state is written as a partial, or
// joined into those before, and begins anew.
__device__ __forceinline__ void close_span(const AttnParams &p, const Walk &w, const Shared &s, int base, State &now, Total &group, Longer &all) {
	const int next = base + SPAN;
	if ((next & (w.length - 1)) != 0 && next < w.end) return;
	const int c = base / w.length;
	const bool partials = w.partial >= 0;
	if (partials && !whole(s.item.whole, c)) {
		store_partial(p, s.item, c, now);
		clear(now);
		return;
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

// attend walks an item's spans; begin has been called, and returned page. It writes partials, or all joined.
__device__ __forceinline__ void attend(const AttnParams &p, const Walk &w, int h, const bf16 *keys, int page, Shared &s) {
	State now; // the chunk at hand, or all of the group at hand where chunks are spans
	Total group;
	Longer all;
	clear(now);
	if (w.length > SPAN) clear(group);
	if (w.partial < 0) clear(all);
	const bool idle = here().row0 >= w.ntok * G; // a warp without rows
	Scores scores;
	Weights weights;
#if ATTN_FRESH
#pragma unroll 1
	for (int base = w.start; base < w.end; base += SPAN) {
		const int next = base + SPAN, later_page = page_of(w, next);
		if (base > w.start) {
			__syncthreads(); // the values before have been used
			fetch(w, s.places[1], keys + VALUES, base, page);
			copy_commit();
			page = later_page;
		}
		if (next > w.fresh) make_span(p, w, h, base, s.places[0], s.places[1]);
		copy_wait<1>();
		__syncthreads(); // queries and keys are there
		if (!idle) score(w, s, s.places[0], base, scores);
		__syncthreads(); // maxima are there, and the keys have been used
		fetch(w, s.places[0], keys, next, page);
		copy_commit();
		if (!idle) exponentiate(p, s, scores, weights);
		copy_wait<1>();
		__syncthreads(); // probabilities and values are there
		if (!idle) weigh(s, s.places[1], weights, now);
		close_span(p, w, s, base, now, group, all);
	}
#else
	int turn = 0; // of the ring
#pragma unroll 1
	for (int base = w.start; base < w.end; base += SPAN) {
		const int later = base + (RING - 1) * SPAN, later_page = page_of(w, later + SPAN), last = turn == 0 ? RING - 1 : turn - 1;
		copy_wait<RING - 2>();
		__syncthreads(); // queries, keys and values are there, and those of the span before have been used
		fetch_both(w, s, last, keys, later, page);
		page = later_page;
		if (!idle) {
			score(w, s, s.places[2 * turn], base, scores);
			exponentiate(p, s, scores, weights);
			weigh(s, s.places[2 * turn + 1], weights, now);
		}
		turn = turn + 1 == RING ? 0 : turn + 1;
		close_span(p, w, s, base, now, group, all);
	}
#endif
	if (w.partial < 0) store(p, s.item, all);
}

// begin starts the copies of an item's first spans, as many as there are places for; it returns the page of the next one.
__device__ __forceinline__ int begin(const Walk &w, const bf16 *keys, Shared &s) {
	int page[AHEAD + 1];
#pragma unroll
	for (int i = 0; i <= AHEAD; i++) page[i] = page_of(w, w.start + i * SPAN);
#if ATTN_FRESH
	fetch(w, s.places[0], keys, w.start, page[0]);
	copy_commit();
	fetch(w, s.places[1], keys + VALUES, w.start, page[0]);
	copy_commit();
#else
#pragma unroll
	for (int i = 0; i < AHEAD; i++) fetch_both(w, s, i, keys, w.start + i * SPAN, page[i]);
#endif
	return page[AHEAD];
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
	const bool some = blockIdx.x < items, early = ATTN_FRESH || min(w.start + AHEAD * SPAN, w.end) <= w.fresh;
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
