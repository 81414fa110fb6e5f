// attn: out[t,h] = softmax(scale * q[t,h] . K[0..pos[t]]) V[0..pos[t]] over the pages of t's sequence.
//
// q, out [T, HQ, D] bf16; cache [N, 2, HK, P, D] bf16; causal by absolute position; scores and sums in f32.
//
// A work item is a tile of 16 packed rows: row r is token r / G and query head h * G + r % G, so one tile serves
// 16 / G tokens and the group shares each key read. Keys are walked in chunks of 256 positions from 0. Of a chunk, each
// of the 4 warps takes 64 positions with m16n8k16 products; the block then joins the four in warp order and the chunks
// in chunk order. An item covers either all chunks of its tile (and writes out) or exactly one (and writes a partial; the
// block that finds all partials of a tile there joins them, in the same order). So a token's bits depend on its own sequence alone: not on the
// other rows, on how many tokens it came with, or on how the work was spread.
//
// Fragments come straight from memory, 16 bytes a lane, by permuting inner indices on both operands alike:
//   scores: the inner index of step s of block b is element 32 b + 8 (lane % 4) + 4 s + {0..3} of the head;
//   values: column n of tile j of block b is element 64 b + 8 n + j of the head.
// Positions after the tile's last are not read at all (their pages may hold anything).
//
// Blocks (items, HK) of 128 threads. Bytes: 4 D a key position, tile and key head. Flops: 64 D the same.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "softmax.cuh"

#if DIM_D == 64
#define ATTN_BOUNDS __launch_bounds__(128, 2) // left to itself the compiler aims at more blocks and spills
#else
#define ATTN_BOUNDS __launch_bounds__(128)
#endif

constexpr int CHUNK = 256, WARPS = 4, SPAN = CHUNK / WARPS, TILES = SPAN / 8, ROWS = 16;
constexpr int KB = D / 32, VB = D / 64, STRIDE = D + 4;
constexpr bool WHOLE = P % SPAN == 0; // a warp's span lies in one page

// place returns where position base + off of a head's tile lies, given the page of each run of 8 positions.
__device__ __forceinline__ const bf16 *place(const bf16 *tile, const int *pages, int base, int off) {
	const int page = WHOLE ? pages[0] : pages[off / 8], in = WHOLE ? base % P + off : (base + off) % P;
	return tile + ((size_t)page * 2 * HK * P + in) * D;
}

// load_queries reads a tile's fragments, two steps of a0..a3 for each block of 32 elements; missing rows are zero.
__device__ __forceinline__ void load_queries(const AttnParams &p, const AttnItem &it, int h, u32 (&q)[KB][8]) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, rows = it.ntok * G;
	const bf16 *lo = p.q + ((size_t)(it.token + g / G) * HQ + h * G + g % G) * D + 8 * c;
	const bf16 *hi = p.q + ((size_t)(it.token + (g + 8) / G) * HQ + h * G + (g + 8) % G) * D + 8 * c;
#pragma unroll
	for (int b = 0; b < KB; b++) {
		uint4 x = make_uint4(0, 0, 0, 0), y = x;
		if (g < rows) x = *(const uint4 *)(lo + 32 * b);
		if (g + 8 < rows) y = *(const uint4 *)(hi + 32 * b);
		q[b][0] = x.x, q[b][1] = y.x, q[b][2] = x.y, q[b][3] = y.y;
		q[b][4] = x.z, q[b][5] = y.z, q[b][6] = x.w, q[b][7] = y.w;
	}
}

// scores fills s with the base-2 exponents of one warp's span, -inf where masked.
__device__ __forceinline__ void scores(const AttnParams &p, const bf16 *keys, const u32 (&q)[KB][8], const int *pages,
                                       int base, int last, int lim0, int lim1, float (&s)[TILES][4]) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < TILES; i++) {
		s[i][0] = s[i][1] = s[i][2] = s[i][3] = 0.0f;
		const int at = base + 8 * i + g;
		const bf16 *row = place(keys, pages, base, 8 * i) + g * D + 8 * c;
#pragma unroll
		for (int b = 0; b < KB; b++) {
			uint4 k = make_uint4(0, 0, 0, 0);
			if (at <= last) k = *(const uint4 *)(row + 32 * b);
			mma_bf16(s[i], q[b][0], q[b][1], q[b][2], q[b][3], k.x, k.y);
			mma_bf16(s[i], q[b][4], q[b][5], q[b][6], q[b][7], k.z, k.w);
		}
		const int col = base + 8 * i + 2 * c;
		s[i][0] = col <= lim0 ? s[i][0] * p.scale : -INF;
		s[i][1] = col + 1 <= lim0 ? s[i][1] * p.scale : -INF;
		s[i][2] = col <= lim1 ? s[i][2] * p.scale : -INF;
		s[i][3] = col + 1 <= lim1 ? s[i][3] * p.scale : -INF;
	}
}

// exponentiate turns s into probabilities relative to the row's maximum, and returns maximum and sum of both rows.
__device__ __forceinline__ void exponentiate(float (&s)[TILES][4], float (&m)[2], float (&l)[2]) {
	m[0] = m[1] = -INF;
#pragma unroll
	for (int i = 0; i < TILES; i++) {
		m[0] = fmaxf(m[0], fmaxf(s[i][0], s[i][1]));
		m[1] = fmaxf(m[1], fmaxf(s[i][2], s[i][3]));
	}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		m[r] = fmaxf(m[r], __shfl_xor_sync(FULL_WARP, m[r], 1));
		m[r] = fmaxf(m[r], __shfl_xor_sync(FULL_WARP, m[r], 2));
		l[r] = 0.0f;
	}
#pragma unroll
	for (int i = 0; i < TILES; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const float e = m[j / 2] == -INF ? 0.0f : exp2f(s[i][j] - m[j / 2]);
			s[i][j] = e;
			l[j / 2] += e;
		}
#pragma unroll
	for (int r = 0; r < 2; r++) {
		l[r] += __shfl_xor_sync(FULL_WARP, l[r], 1);
		l[r] += __shfl_xor_sync(FULL_WARP, l[r], 2);
	}
}

// load_values reads 8 elements of one position, or zeros after the last position.
__device__ __forceinline__ uint4 load_values(const bf16 *from, bool in) {
	return in ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
}

// weigh adds the products of probabilities and values to o.
__device__ __forceinline__ void weigh(const bf16 *values, const float (&s)[TILES][4], const int *pages, int base,
                                      int last, float (&o)[VB][8][4]) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
	for (int k = 0; k < TILES / 2; k++) {
		const u32 a0 = pack_bf16(s[2 * k][0], s[2 * k][1]), a1 = pack_bf16(s[2 * k][2], s[2 * k][3]);
		const u32 a2 = pack_bf16(s[2 * k + 1][0], s[2 * k + 1][1]), a3 = pack_bf16(s[2 * k + 1][2], s[2 * k + 1][3]);
		const int at = base + 16 * k + 2 * c;
#pragma unroll
		for (int b = 0; b < VB; b++) {
			const bf16 *lo = place(values, pages, base, 16 * k) + 2 * c * D + 64 * b + 8 * g;
			const bf16 *hi = place(values, pages, base, 16 * k + 8) + 2 * c * D + 64 * b + 8 * g;
			const uint4 v0 = load_values(lo, at <= last), v1 = load_values(lo + D, at + 1 <= last);
			const uint4 v2 = load_values(hi, at + 8 <= last), v3 = load_values(hi + D, at + 9 <= last);
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const u32 w0 = word(v0, j), w1 = word(v1, j), w2 = word(v2, j), w3 = word(v3, j);
				mma_bf16(o[b][2 * j], a0, a1, a2, a3, low_halves(w0, w1), low_halves(w2, w3));
				mma_bf16(o[b][2 * j + 1], a0, a1, a2, a3, high_halves(w0, w1), high_halves(w2, w3));
			}
		}
	}
}

// spill_tile puts a warp's output where the whole block can read it.
__device__ __forceinline__ void spill_tile(const float (&o)[VB][8][4], float (*rows)[STRIDE]) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
	for (int b = 0; b < VB; b++)
#pragma unroll
		for (int x = 0; x < 4; x++) { // x / 2: row g or g + 8; x % 2: column 2c or 2c + 1
			float *to = &rows[g + x / 2 * 8][64 * b + 8 * (2 * c + x % 2)];
			*(float4 *)to = make_float4(o[b][0][x], o[b][1][x], o[b][2][x], o[b][3][x]);
			*(float4 *)(to + 4) = make_float4(o[b][4][x], o[b][5][x], o[b][6][x], o[b][7][x]);
		}
}

// write_row divides one thread's part of a packed row by its sum and writes it.
__device__ __forceinline__ void write_row(const AttnParams &p, int token, int h, int row, int from, const float (&acc)[D / 8], float sum) {
	bf16 *out = p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + from;
#pragma unroll
	for (int i = 0; i < D / 8; i += 2) *(u32 *)(out + i) = pack_bf16(acc[i] / sum, acc[i + 1] / sum);
}

// join_partials joins the partials of one tile in chunk order and writes the output.
__device__ __forceinline__ void join_partials(const AttnParams &p, const AttnCombine &t, int h, int row, int from) {
	constexpr int PER = D / 8;
	SoftmaxState state = {-INF, 0.0f};
	float acc[PER];
#pragma unroll
	for (int i = 0; i < PER; i++) acc[i] = 0.0f;
	for (int n = 0; n < t.nchunks; n++) {
		const size_t at = ((size_t)(t.partial + n) * HK + h) * ROWS + row;
		const float2 f = join_factors(state, __ldcg(p.part_ml + at * 2), __ldcg(p.part_ml + at * 2 + 1));
#pragma unroll
		for (int i = 0; i < PER; i++) acc[i] = join(acc[i], __ldcg(p.part_o + at * D + from + i), f);
	}
	write_row(p, t.token, h, row, from, acc, state.sum);
}

extern "C" __global__ void ATTN_BOUNDS attn(const __grid_constant__ AttnParams p) {
	start_next();
	await_previous();
	constexpr int PER = D / 8; // elements of one row that a thread joins
	__shared__ __align__(16) float tile[WARPS][ROWS][STRIDE];
	__shared__ float maxima[WARPS][ROWS], sums[WARPS][ROWS];
	__shared__ bool last_part;
	const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, h = blockIdx.y;
	const int row = threadIdx.x / 8, from = threadIdx.x % 8 * PER;
	const bf16 *keys = p.cache + (size_t)h * P * D, *values = keys + (size_t)HK * P * D;

	for (int w = blockIdx.x; w < p.head->items; w += gridDim.x) {
		const AttnItem it = p.items[w];
		const int *table = p.table + (size_t)it.slot * p.max_pages;
		const int rows = it.ntok * G, last = it.pos + it.ntok - 1;
		const int lim0 = g < rows ? it.pos + g / G : -1, lim1 = g + 8 < rows ? it.pos + (g + 8) / G : -1;
		SoftmaxState state = {-INF, 0.0f};
		float acc[PER];
#pragma unroll
		for (int i = 0; i < PER; i++) acc[i] = 0.0f;

		for (int chunk = it.chunk; chunk < it.chunk_end; chunk++) {
			const int base = chunk * CHUNK + warp * SPAN;
			float m[2] = {-INF, -INF}, l[2] = {0.0f, 0.0f};
			if (base <= last) {
				int pages[TILES];
#pragma unroll
				for (int i = 0; i < (WHOLE ? 1 : TILES); i++) pages[i] = base + 8 * i <= last ? table[(base + 8 * i) / P] : 0;
				float s[TILES][4], o[VB][8][4];
				u32 q[KB][8];
				load_queries(p, it, h, q); // again for each chunk: cheaper than holding them in registers
				scores(p, keys, q, pages, base, last, lim0, lim1, s);
				exponentiate(s, m, l);
#pragma unroll
				for (int i = 0; i < VB * 32; i++) o[i / 32][i / 4 % 8][i % 4] = 0.0f;
				weigh(values, s, pages, base, last, o);
				spill_tile(o, tile[warp]);
			}
			if (c == 0) {
				maxima[warp][g] = m[0], maxima[warp][g + 8] = m[1];
				sums[warp][g] = l[0], sums[warp][g + 8] = l[1];
			}
			__syncthreads();
			SoftmaxState part = {-INF, 0.0f};
			float sum[PER];
#pragma unroll
			for (int i = 0; i < PER; i++) sum[i] = 0.0f;
			for (int v = 0; v < WARPS; v++) {
				if (maxima[v][row] == -INF) continue; // the warp may have left its tile unwritten
				const float2 f = join_factors(part, maxima[v][row], sums[v][row]);
#pragma unroll
				for (int i = 0; i < PER; i++) sum[i] = join(sum[i], tile[v][row][from + i], f);
			}
			const float2 f = join_factors(state, part.maximum, part.sum);
#pragma unroll
			for (int i = 0; i < PER; i++) acc[i] = join(acc[i], sum[i], f);
			__syncthreads();
		}
		if (it.partial < 0) {
			if (row < rows) write_row(p, it.token, h, row, from, acc, state.sum);
			continue;
		}
		if (row < rows) {
			const size_t at = ((size_t)(it.partial) * HK + h) * ROWS + row;
#pragma unroll
			for (int i = 0; i < PER; i++) p.part_o[at * D + from + i] = acc[i];
			if (from == 0) p.part_ml[at * 2] = state.maximum, p.part_ml[at * 2 + 1] = state.sum;
		}
		const AttnCombine t = p.combines[it.combine];
		__threadfence();
		__syncthreads();
		if (threadIdx.x == 0) {
			u32 *arrived = p.arrived + (size_t)it.combine * HK + h;
			last_part = atomicAdd(arrived, 1u) == (u32)t.nchunks - 1;
			if (last_part) *arrived = 0;
			__threadfence();
		}
		__syncthreads();
		if (last_part && row < rows) join_partials(p, t, h, row, from);
	}
}
