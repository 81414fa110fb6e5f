// attn: out[t,h] = softmax(scale * q[t,h] . K[0..pos[t]]) V[0..pos[t]] over the pages of t's sequence.
//
// q, out [T, HQ, D] bf16; cache [N, 2, HK, P, D] bf16; causal by absolute position; scores and sums in f32.
//
// A work item is a tile of 16 packed rows: row r is token r / G and query head h * G + r % G, so one tile serves
// 16 / G tokens and the group shares each key read. Keys are walked in chunks of 256 positions from 0. Of a chunk, each
// of the 4 warps takes 64 positions with m16n8k16 products; the block then joins the four in warp order and the chunks
// in chunk order. An item covers either all chunks of its tile (and writes out) or exactly one (and writes a partial; the
// block that finds all partials of a tile there joins them, in the same order). So a token's bits depend on its own
// sequence alone: not on the other rows, on how many tokens it came with, or on how the work was spread.
//
// Fragments are 16 bytes a lane, by permuting inner indices on both operands alike:
//   scores: the inner index of step s of block b is element 32 b + 8 (lane % 4) + 4 s + {0..3} of the head; the two steps
//   have a sum each, which are added at the end, so that fewer products wait for each other;
//   values: column n of tile j of block b is element 64 b + 8 n + j of the head.
// A lane copies what it will use itself, into a ring of STAGES stages of 16 positions in its warp's part of shared memory:
// the ring serves as registers that loads fill without waiting, and needs no barrier. Keys come first, then values, so
// values are on their way while scores are computed. Positions after the tile's last are not read at all (their pages may
// hold anything).
//
// Blocks (items, HK) of 128 threads. Bytes: 4 D a key position, tile and key head; 48 KiB of them in flight for a block of
// D 128. Flops: 64 D the same.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "softmax.cuh"

// A block of D 128 has 48 KiB in flight, enough for one SM's share of the bandwidth, and two of them fit the registers.
#define ATTN_BOUNDS __launch_bounds__(128, DIM_D == 64 ? 3 : 2)

constexpr int CHUNK = 256, WARPS = 4, SPAN = CHUNK / WARPS, TILES = SPAN / 8, ROWS = 16;
constexpr int KB = D / 32, VB = D / 64, STRIDE = D + 4;
constexpr int STAGES = 3, WORDS = D / 16, STEPS = SPAN / 16; // a span is STEPS stages of keys and as many of values
constexpr int QUADS = D / 32;                                // runs of 4 elements of one row that a thread joins
constexpr bool WHOLE = P % SPAN == 0;                        // a warp's span lies in one page

// Area is one warp's shared memory: the ring, and after its last use the warp's output.
union Area {
	uint4 ring[STAGES][WORDS][32];
	struct {
		float rows[ROWS][STRIDE], maxima[ROWS], sums[ROWS];
	} out;
};

// Span is the part of a chunk that a warp takes, given the page of each run of 8 positions.
struct Span {
	const bf16 *keys, *values; // of the head, in page 0
	int base, last;            // the first position, and the last one of the tile
	int pages[TILES];
};

// place returns where position base + off of a head's tile lies.
__device__ __forceinline__ const bf16 *place(const Span &a, const bf16 *tile, int off) {
	const int page = WHOLE ? a.pages[0] : a.pages[off / 8], in = WHOLE ? a.base % P + off : (a.base + off) % P;
	return tile + ((size_t)page * 2 * HK * P + in) * D;
}

// copy_stage starts a stage's copies: the keys, then the values of 16 positions each. Past the end there is nothing to copy.
__device__ __forceinline__ void copy_stage(const Span &a, Area &area, int n) {
	const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
	uint4(*to)[32] = area.ring[n % STAGES];
	if (n < STEPS) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int off = 16 * n + 8 * i;
			const bf16 *row = place(a, a.keys, off) + g * D + 8 * c;
#pragma unroll
			for (int b = 0; b < KB; b++) copy_async(&to[i * KB + b][lane], row + 32 * b, a.base + off + g <= a.last);
		}
	} else if (n < 2 * STEPS) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int off = 16 * (n - STEPS) + 8 * i, at = a.base + off + 2 * c;
			const bf16 *row = place(a, a.values, off) + 2 * c * D + 8 * g;
#pragma unroll
			for (int b = 0; b < VB; b++) {
				copy_async(&to[4 * b + 2 * i][lane], row + 64 * b, at <= a.last);
				copy_async(&to[4 * b + 2 * i + 1][lane], row + D + 64 * b, at + 1 <= a.last);
			}
		}
	}
	copy_commit();
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
__device__ __forceinline__ void scores(const AttnParams &p, const Span &a, Area &area, const u32 (&q)[KB][8], int lim0,
                                       int lim1, float (&s)[TILES][4]) {
	const int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll
	for (int n = 0; n < STEPS; n++) {
		float even[2][4], odd[2][4];
#pragma unroll
		for (int i = 0; i < 8; i++) even[i / 4][i % 4] = odd[i / 4][i % 4] = 0.0f;
		copy_wait<STAGES - 1>();
#pragma unroll
		for (int b = 0; b < KB; b++)
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const uint4 k = area.ring[n % STAGES][i * KB + b][lane];
				mma_bf16(even[i], q[b][0], q[b][1], q[b][2], q[b][3], k.x, k.y);
				mma_bf16(odd[i], q[b][4], q[b][5], q[b][6], q[b][7], k.z, k.w);
			}
		copy_stage(a, area, n + STAGES);
#pragma unroll
		for (int i = 0; i < 2; i++)
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const int col = a.base + 16 * n + 8 * i + 2 * c + j % 2;
				s[2 * n + i][j] = col <= (j < 2 ? lim0 : lim1) ? __fmul_rn(even[i][j] + odd[i][j], p.scale) : -INF;
			}
	}
}

// exponentiate makes fragments of probabilities, relative to the row's maximum, and returns maximum and sum of both rows.
__device__ __forceinline__ void exponentiate(float (&s)[TILES][4], u32 (&probs)[STEPS][4], float (&m)[2], float (&l)[2]) {
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
	for (int i = 0; i < TILES; i++)
		probs[i / 2][i % 2 * 2] = pack_bf16(s[i][0], s[i][1]), probs[i / 2][i % 2 * 2 + 1] = pack_bf16(s[i][2], s[i][3]);
#pragma unroll
	for (int r = 0; r < 2; r++) {
		l[r] += __shfl_xor_sync(FULL_WARP, l[r], 1);
		l[r] += __shfl_xor_sync(FULL_WARP, l[r], 2);
	}
}

// weigh adds the products of probabilities and values to o.
__device__ __forceinline__ void weigh(const Span &a, Area &area, const u32 (&probs)[STEPS][4], float (&o)[VB][8][4]) {
	const int lane = threadIdx.x % 32;
#pragma unroll
	for (int k = 0; k < STEPS; k++) {
		copy_wait<STAGES - 1>();
#pragma unroll
		for (int b = 0; b < VB; b++) {
			uint4 v[4];
#pragma unroll
			for (int i = 0; i < 4; i++) v[i] = area.ring[(STEPS + k) % STAGES][4 * b + i][lane];
#pragma unroll
			for (int j = 0; j < 4; j++) {
				const u32 w0 = word(v[0], j), w1 = word(v[1], j), w2 = word(v[2], j), w3 = word(v[3], j);
				mma_bf16(o[b][2 * j], probs[k][0], probs[k][1], probs[k][2], probs[k][3], low_halves(w0, w1), low_halves(w2, w3));
				mma_bf16(o[b][2 * j + 1], probs[k][0], probs[k][1], probs[k][2], probs[k][3], high_halves(w0, w1), high_halves(w2, w3));
			}
		}
		copy_stage(a, area, STEPS + k + STAGES);
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

// join_quad joins four elements.
__device__ __forceinline__ void join_quad(float4 &a, float4 b, float2 f) {
	a.x = join(a.x, b.x, f), a.y = join(a.y, b.y, f), a.z = join(a.z, b.z, f), a.w = join(a.w, b.w, f);
}

// write_row divides one thread's part of a packed row by its sum and writes it.
__device__ __forceinline__ void write_row(const AttnParams &p, int token, int h, int row, const float4 (&acc)[QUADS], float sum) {
	bf16 *out = p.out + ((size_t)(token + row / G) * HQ + h * G + row % G) * D + threadIdx.x % 8 * 4;
#pragma unroll
	for (int i = 0; i < QUADS; i++)
		*(uint2 *)(out + 32 * i) = make_uint2(pack_bf16(acc[i].x / sum, acc[i].y / sum), pack_bf16(acc[i].z / sum, acc[i].w / sum));
}

// join_warps joins the four spans of a chunk in warp order, and the chunk into the state and acc of a row.
__device__ __forceinline__ void join_warps(const Area *areas, int row, SoftmaxState &state, float4 (&acc)[QUADS]) {
	SoftmaxState part = {-INF, 0.0f};
	float4 sum[QUADS];
#pragma unroll
	for (int i = 0; i < QUADS; i++) sum[i] = make_float4(0, 0, 0, 0);
#pragma unroll
	for (int v = 0; v < WARPS; v++) {
		const float m = areas[v].out.maxima[row];
		if (m == -INF) continue; // the warp may have left its rows unwritten
		const float2 f = join_factors(part, m, areas[v].out.sums[row]);
#pragma unroll
		for (int i = 0; i < QUADS; i++) join_quad(sum[i], *(const float4 *)&areas[v].out.rows[row][32 * i + threadIdx.x % 8 * 4], f);
	}
	const float2 f = join_factors(state, part.maximum, part.sum);
#pragma unroll
	for (int i = 0; i < QUADS; i++) join_quad(acc[i], sum[i], f);
}

// join_partials joins the partials of one tile in chunk order and writes the output. It reads AHEAD of them at a time.
__device__ __forceinline__ void join_partials(const AttnParams &p, const AttnCombine &t, int h, int row) {
	constexpr int AHEAD = 4;
	SoftmaxState state = {-INF, 0.0f};
	float4 acc[QUADS];
#pragma unroll
	for (int i = 0; i < QUADS; i++) acc[i] = make_float4(0, 0, 0, 0);
	for (int first = 0; first < t.nchunks; first += AHEAD) {
		float2 ml[AHEAD];
		float4 o[AHEAD][QUADS];
#pragma unroll
		for (int n = 0; n < AHEAD; n++) {
			const size_t at = ((size_t)(t.partial + min(first + n, t.nchunks - 1)) * HK + h) * ROWS + row;
			ml[n] = __ldcg((const float2 *)(p.part_ml + at * 2));
#pragma unroll
			for (int i = 0; i < QUADS; i++) o[n][i] = __ldcg((const float4 *)(p.part_o + at * D + 32 * i + threadIdx.x % 8 * 4));
		}
#pragma unroll
		for (int n = 0; n < AHEAD; n++) {
			if (first + n >= t.nchunks) break;
			const float2 f = join_factors(state, ml[n].x, ml[n].y);
#pragma unroll
			for (int i = 0; i < QUADS; i++) join_quad(acc[i], o[n][i], f);
		}
	}
	write_row(p, t.token, h, row, acc, state.sum);
}

// attend leaves the output of a warp's span in its area.
__device__ __forceinline__ void attend(const AttnParams &p, const AttnItem &it, int h, int base, Area &area) {
	const int g = threadIdx.x % 32 / 4, rows = it.ntok * G;
	float m[2] = {-INF, -INF}, l[2] = {0.0f, 0.0f};
	Span a;
	a.keys = p.cache + (size_t)h * P * D, a.values = a.keys + (size_t)HK * P * D;
	a.base = base, a.last = it.pos + it.ntok - 1;
	if (base <= a.last) {
		const int *table = p.table + (size_t)it.slot * p.max_pages;
#pragma unroll
		for (int i = 0; i < (WHOLE ? 1 : TILES); i++) a.pages[i] = base + 8 * i <= a.last ? table[(base + 8 * i) / P] : 0;
#pragma unroll
		for (int n = 0; n < STAGES; n++) copy_stage(a, area, n);
		float s[TILES][4], o[VB][8][4];
		u32 q[KB][8];
		load_queries(p, it, h, q); // again for each chunk: cheaper than holding them in registers
		scores(p, a, area, q, g < rows ? it.pos + g / G : -1, g + 8 < rows ? it.pos + (g + 8) / G : -1, s);
		u32 probs[STEPS][4];
		exponentiate(s, probs, m, l);
#pragma unroll
		for (int i = 0; i < VB * 32; i++) o[i / 32][i / 4 % 8][i % 4] = 0.0f;
		weigh(a, area, probs, o);
		copy_wait<0>();
		__syncwarp(); // the ring becomes the output
		spill_tile(o, area.out.rows);
	}
	if (threadIdx.x % 4 == 0) {
		area.out.maxima[g] = m[0], area.out.maxima[g + 8] = m[1];
		area.out.sums[g] = l[0], area.out.sums[g + 8] = l[1];
	}
}

extern "C" __global__ void ATTN_BOUNDS attn(const __grid_constant__ AttnParams p) {
	start_next();
	await_previous();
	__shared__ __align__(16) Area areas[WARPS];
	const int warp = threadIdx.x / 32, row = threadIdx.x / 8, h = blockIdx.y;

	AttnItem it = p.items[blockIdx.x]; // there is room for as many items as blocks: read along with their number
	const int items = p.head->items;
	for (int w = blockIdx.x; w < items; w += gridDim.x, it = p.items[min(w, items - 1)]) {
		const AttnCombine t = it.partial < 0 ? AttnCombine{} : p.combines[it.combine];
		const bool mine = row < it.ntok * G;
		SoftmaxState state = {-INF, 0.0f};
		float4 acc[QUADS];
#pragma unroll
		for (int i = 0; i < QUADS; i++) acc[i] = make_float4(0, 0, 0, 0);
		for (int chunk = it.chunk; chunk < it.chunk_end; chunk++) {
			attend(p, it, h, chunk * CHUNK + warp * SPAN, areas[warp]);
			__syncthreads();
			if (mine) join_warps(areas, row, state, acc);
			__syncthreads(); // the areas become rings again
		}
		if (it.partial < 0) {
			if (mine) write_row(p, it.token, h, row, acc, state.sum);
			continue;
		}
		if (mine) {
			const size_t at = ((size_t)it.partial * HK + h) * ROWS + row;
#pragma unroll
			for (int i = 0; i < QUADS; i++) *(float4 *)(p.part_o + at * D + 32 * i + threadIdx.x % 8 * 4) = acc[i];
			if (threadIdx.x % 8 == 0) *(float2 *)(p.part_ml + at * 2) = make_float2(state.maximum, state.sum);
			__threadfence();
		}
		__syncthreads();
		bool last = false;
		if (threadIdx.x == 0) {
			u32 *arrived = p.arrived + (size_t)it.combine * HK + h;
			last = atomicAdd(arrived, 1u) == (u32)t.nchunks - 1;
			if (last) *arrived = 0;
			__threadfence();
		}
		if (__syncthreads_or(last) && mine) join_partials(p, t, h, row);
	}
}
