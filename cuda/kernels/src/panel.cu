// panel: y[t,n] = sum_k w[n,k] x[t,k] for more than a few tokens, on Hopper's tensor cores.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// With PANEL_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// The sums are those of slim with as many warps as there are passes, bit for bit: K is walked in passes of every passes-th run of
// 64, and the passes' sums are added in order. Within a run the tensor cores of Hopper add 16 products at once, whatever their order
// and whichever instruction asks for it, so that only which 16 matters: elements 8 i + 4 s + {0..3}, i from 0 to 3, of 32 make
// step s, as in slim. They are copied 8 bytes at a time so that the 16 of a step lie together, or picked from shared memory.
//
// A block computes 128 rows of w for PANEL_T tokens; two warpgroups have 64 rows each. Runs of 64 elements pass through STAGES stages of
// shared memory. With PANEL_PARTS a block has one pass: its sums go to memory, and the block of a tile that comes last adds them.
// Else a block has all passes, one after another.
//
// Blocks of 256 threads, one for each part of a tile, parts first; tiles go in groups of GROUP along the tokens, so that blocks that
// run together share rows and tokens in the L2. Precondition: K % 8 == 0, rows 16-byte aligned. Bytes: 2 N K
// for every GROUP * PANEL_T tokens.
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

constexpr int TOKENS = PANEL_T, NT = TOKENS / 8, ROWS = 128, STAGES = PANEL_S, THREADS = 256, GROUP = 8, MOST = 8;
constexpr int RUN = 64, BYTES = 2 * RUN, LINES = THREADS / 16; // LINES tokens are copied at a time: 16 threads a token

// LAG runs are multiplied while the next one is awaited, where the tensor cores are the bottleneck. AHEAD are being copied.
constexpr int LAG = !PANEL_DIRECT, AHEAD = STAGES - 1 - LAG;

// With PANEL_DIRECT rows of w come 16 bytes at a time, past the first cache, and go to the tensor cores by registers: copies of 8 bytes
// need room in that cache, which bounds what an SM can read. FROM rows are copied at a time, by OF threads each.
constexpr int OF = PANEL_DIRECT ? 8 : 16, FROM = THREADS / OF;

struct Stage {
	unsigned char w[ROWS][BYTES], x[TOKENS][BYTES]; // as matrix_ref has it; w in its own order with PANEL_DIRECT
};

struct Shared {
	Stage stages[STAGES];
	bool last;
};

// Cursor is a run of a pass.
struct Cursor {
	int pass, run;
};

// Unit is what a block computes: passes [first, end) of a tile.
struct Unit {
	int place, parts, tile, t0, first, end, runs, passes; // place numbers tiles of so many parts, t0 is the tile's first token
};

__device__ __forceinline__ void advance(Cursor &c, const Unit &u) {
	c.run += u.passes;
	if (c.run >= u.runs) c.run = ++c.pass;
}

__device__ __forceinline__ Unit unit_of(const MatmulParams &p) {
	Unit u;
	u.runs = (p.k + RUN - 1) / RUN, u.passes = p.passes;
	u.parts = min(u.passes, u.runs), u.first = 0, u.end = u.parts;
#if PANEL_PARTS
	u.first = blockIdx.x % u.parts, u.end = u.first + 1;
#else
	u.parts = 1;
#endif
	const int rows = (p.n + ROWS - 1) / ROWS;
	u.place = blockIdx.x / u.parts;
	const int all = gridDim.x / u.parts / rows, group = u.place / (GROUP * rows), size = min(GROUP, all - GROUP * group);
	const int inside = u.place - group * GROUP * rows;
	u.tile = inside / size, u.t0 = (GROUP * group + inside % size) * TOKENS;
	return u;
}

// Source is what a thread copies of each run: a piece of every FROM-th row of the tile, and of every LINES-th token.
struct Source {
	const bf16 *w, *x;    // its first
	size_t step;          // elements from a row to the next
	int rows, tokens;     // that there are
	int k_of_w, k_of_x;   // the first element in a run
	u32 to_of_w, to_of_x; // the first place in a stage
};

__device__ __forceinline__ int lines(int have, int first, int step) { return have > first ? (have - first + step - 1) / step : 0; }

// place is where 8 bytes of a line go, the piece-th of a run, so that the 16 elements of a step lie together.
__device__ __forceinline__ u32 place(int line, int piece) {
	const int i = piece / 2 % 4, step = piece / 8 * 2 + piece % 2;
	return line * BYTES + ((2 * step + i / 2) ^ line % 8) * 16 + i % 2 * 8;
}

__device__ __forceinline__ Source source_of(const MatmulParams &p, const Unit &u) {
	const int line = threadIdx.x / OF, piece = threadIdx.x % OF;
	Source s;
	s.k_of_w = RUN / OF * piece, s.k_of_x = 4 * (threadIdx.x % 16);
	s.to_of_w = PANEL_DIRECT ? line * BYTES + (piece ^ line % 8) * 16 : place(line, piece);
	s.to_of_x = place(threadIdx.x / 16, threadIdx.x % 16);
#if PANEL_ACT
	const int half = p.n / 2, n = u.tile * ROWS / 2 + line / 16 * 8 + line % 8; // of 16 rows, 8 gates and their ups
	s.rows = lines(half, n, FROM / 2), s.step = FROM / 2 * (size_t)p.k;
	s.w = p.w + (size_t)(s.rows > 0 ? n + line / 8 % 2 * half : 0) * p.k + s.k_of_w;
#else
	const int n = u.tile * ROWS + line;
	s.rows = lines(p.n, n, FROM), s.step = FROM * (size_t)p.k;
	s.w = p.w + (size_t)(s.rows > 0 ? n : 0) * p.k + s.k_of_w;
#endif
	return s;
}

// fill_w and fill_x copy a run. What is past the end is zero.
__device__ __forceinline__ void fill_w(Stage &stage, const Source &s, int run, int k) {
	const bool in = run * RUN + s.k_of_w < k;
	const bf16 *from = s.w + run * RUN;
#pragma unroll
	for (int j = 0; j < ROWS / FROM; j++) {
		void *to = &stage.w[0][0] + s.to_of_w + j * FROM * BYTES;
		if (PANEL_DIRECT) copy_async(to, from + j * s.step, in && j < s.rows);
		else copy_async_half(to, from + j * s.step, in && j < s.rows);
	}
}

__device__ __forceinline__ void fill_x(Stage &stage, const Source &s, int run, int k) {
	const bool in = run * RUN + s.k_of_x < k;
	const bf16 *from = s.x + run * RUN;
#pragma unroll
	for (int j = 0; j < TOKENS / LINES; j++)
		copy_async_half(&stage.x[0][0] + s.to_of_x + j * LINES * BYTES, from + j * LINES * (size_t)k, in && j < s.tokens);
}

#if PANEL_DIRECT
// row_word is the word-th 4 bytes of a piece of a row.
__device__ __forceinline__ u32 row_word(const Stage &s, int row, int piece, int word) { return *(const u32 *)&s.w[row][(piece ^ row % 8) * 16 + 4 * word]; }

// multiply adds a stage's products to acc, or sets it to them.
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const Stage &s, bool add) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row = threadIdx.x / 32 * 16 + g;
	const MatrixRef x = matrix_ref(s.x[0]);
	u32 w[RUN / 16][4];
#pragma unroll
	for (int step = 0; step < RUN / 16; step++)
#pragma unroll
		for (int i = 0; i < 4; i++) // rows g and g + 8, of both the first 8 and the last 8 of 16 elements
			w[step][i] = row_word(s, row + i % 2 * 8, step / 2 * 4 + i / 2 * 2 + c / 2, step % 2 * 2 + c % 2);
	group_begin();
#pragma unroll
	for (int step = 0; step < RUN / 16; step++) group_mma(acc, w[step], x, step, add || step > 0);
	group_commit();
}
#else
__device__ __forceinline__ void multiply(float (&acc)[NT][4], const Stage &s, bool add) {
	const MatrixRef w = matrix_ref(s.w[threadIdx.x / 128 * 64]), x = matrix_ref(s.x[0]);
	group_begin();
#pragma unroll
	for (int step = 0; step < RUN / 16; step++) group_mma(acc, w, x, step, add || step > 0);
	group_commit();
}
#endif

// finish writes a thread's part of the tile: rows g and g + 8 of its warp's 16.
__device__ __forceinline__ void finish(const MatmulParams &p, const Unit &u, const float (&sum)[NT][4], int tokens) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, row0 = threadIdx.x / 32 * 16;
#pragma unroll
	for (int j = 0; j < NT; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) {
			const int t = u.t0 + 8 * j + 2 * c + e;
			if (t >= tokens) continue;
#if PANEL_ACT
			const int n = u.tile * ROWS / 2 + row0 / 2 + g;
			if (n < p.n / 2) ((bf16 *)p.y)[(size_t)t * p.ldy + n] = float_to_bf16(silu(sum[j][e]) * sum[j][e + 2]);
#else
			const int n = u.tile * ROWS + row0 + g;
			float *y = (float *)p.y + (size_t)t * p.ldy + n;
			if (n < p.n) y[0] = sum[j][e];
			if (n + 8 < p.n) y[8] = sum[j][e + 2];
#endif
		}
}

// part is where a block leaves its sums of 8 tokens.
__device__ __forceinline__ float4 *part(const MatmulParams &p, const Unit &u, int pass, int j) {
	return (float4 *)p.partial + (((size_t)u.place * u.parts + pass) * NT + j) * THREADS + threadIdx.x;
}

// join leaves a block's sums and, in the block of a tile that comes last, adds those of all passes. It returns false in the others.
__device__ __forceinline__ bool join(const MatmulParams &p, const Unit &u, const float (&acc)[NT][4], float (&sum)[NT][4], int tokens, bool &last) {
#pragma unroll
	for (int j = 0; j < NT; j++)
		if (u.t0 + 8 * j < tokens) *part(p, u, u.first, j) = make_float4(acc[j][0], acc[j][1], acc[j][2], acc[j][3]);
	__threadfence();
	__syncthreads();
	if (threadIdx.x == 0) {
		last = atomicAdd(p.arrived + u.place, 1u) == (u32)u.parts - 1;
		if (last) p.arrived[u.place] = 0;
		__threadfence();
	}
	__syncthreads();
	if (!last) return false;
#pragma unroll
	for (int j = 0; j < NT; j++) {
		if (u.t0 + 8 * j >= tokens) break;
		float4 parted[MOST];
#pragma unroll
		for (int i = 0; i < MOST; i++)
			if (i < u.parts) parted[i] = __ldcg(part(p, u, i, j));
#pragma unroll
		for (int i = 0; i < MOST; i++)
			if (i < u.parts) sum[j][0] += parted[i].x, sum[j][1] += parted[i].y, sum[j][2] += parted[i].z, sum[j][3] += parted[i].w;
	}
	return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, PANEL_B) panel(const __grid_constant__ MatmulParams p) {
	TIMELINE_BLOCK;
	SHARED_STRUCT(Shared, shared);
	const Unit u = unit_of(p);
	Source from = source_of(p, u);
	if (!p.late) start_next();
	Cursor now = {u.first, u.first}, next = now;
#pragma unroll
	for (int s = 0; s < AHEAD; s++)
		if (next.pass < u.end) fill_w(shared.stages[s], from, next.run, p.k), advance(next, u);
	await_previous();
	if (p.late) start_next();
	const int tokens = *p.count;
	if (u.t0 >= tokens) {
		copy_commit();
		copy_wait<0>();
		return;
	}
	const int t = u.t0 + threadIdx.x / 16;
	from.tokens = lines(tokens, t, LINES);
	from.x = p.x + (size_t)(from.tokens > 0 ? t : 0) * p.k + from.k_of_x;
	next = now;
#pragma unroll
	for (int s = 0; s < AHEAD; s++) {
		if (next.pass < u.end) fill_x(shared.stages[s], from, next.run, p.k), advance(next, u);
		copy_commit();
	}
	float acc[NT][4], sum[NT][4];
#pragma unroll
	for (int i = 0; i < NT * 4; i++) acc[i / 4][i % 4] = sum[i / 4][i % 4] = 0.0f;
	for (int s = 0; now.pass < u.end;) {
		const int pass = now.pass;
		bool add = false;
		do {
			copy_wait<AHEAD - 1>();
			copies_for_group();
			__syncthreads(); // the stage is filled, and the one that is filled next has been read
			if (next.pass < u.end) {
				Stage &free = shared.stages[s + AHEAD < STAGES ? s + AHEAD : s + AHEAD - STAGES];
				fill_w(free, from, next.run, p.k), fill_x(free, from, next.run, p.k), advance(next, u);
			}
			copy_commit();
			multiply(acc, shared.stages[s], add);
			group_wait<LAG>();
			s = s + 1 == STAGES ? 0 : s + 1, add = true;
			advance(now, u);
		} while (now.pass == pass);
		group_end(acc);
#if !PANEL_PARTS
#pragma unroll
		for (int i = 0; i < NT * 4; i++) sum[i / 4][i % 4] += acc[i / 4][i % 4];
#endif
	}
#if PANEL_PARTS
	if (!join(p, u, acc, sum, tokens, shared.last)) return;
#endif
	finish(p, u, sum, tokens);
}
