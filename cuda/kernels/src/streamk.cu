// streamk: y[t,n] = sum_k w[n,k] x[t,k] for 9 to 64 tokens in large matrices, on tensor cores.   w [N, K] bf16, x [T, K] bf16,
// y [T, ldy] f32
//
// With STREAMK_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// A "stream-K" product: the tiles of ROWS rows of w, each of ceil(K / STEP) steps, stand in one line, which is cut evenly over
// the blocks, one an SM. So weights flow without a pause, whatever N is. Where a tile is cut, its blocks leave their sums in
// parts, and of each warp's rows the block that arrives last adds them in the order of K: nobody waits for anybody. The cut
// depends on N, K and the number of blocks alone, and a token's column on nothing but the cut, so that bits depend neither on T
// nor on the order of arrival.
//
// The WARPS warps have 16 M rows each. Steps pass through a ring of STAGES in shared memory, with one barrier each: the weights
// of each warp, and the tokens' part, which all warps read. A row of a run of 32 elements is 4 words, in places where both
// the copies and ldmatrix are free of bank conflicts. Weights do not depend on earlier kernels, so the ring fills before the
// wait. Half of an SM's shared memory and registers: the next kernel's ring fills while this one ends.
//
// Counts for 64 elements of a tile's rows, at 4.3 TB/s (17.4 bytes a clock and SM), M = 2:
//
//   ROWS, tokens                 128, 40 of 48        128, 64            256, 40 of 48        256, 64
//   from memory, KiB             16                   16                 32                   32
//   from the L2 besides          31 %                 50 %               16 %                 25 %
//   clocks of memory             940                  940                1880                 1880
//   shared memory, KiB           16 + 5 + 16 + 24     16 + 8 + 16 + 32   32 + 5 + 32 + 48     32 + 8 + 32 + 64
//   its clocks, 128 bytes each   490                  580                940                  1090
//   clocks of mma, 6.4 each      310                  410                610                  820
//   weights on their way, KiB    64                   48                 64                   64
//
// and for a cut tile of m blocks m T ROWS 4 bytes once to the L2 and once back.
//
// Blocks (an SM's number at most) of 32 WARPS threads. Preconditions: K % 8 == 0, rows 16-byte aligned, as many blocks as
// steps at most, arrived 0. Bytes: 2 N K, and 2 T K for each tile from the L2.
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

constexpr int M = STREAMK_M, NT = STREAMK_N, WARPS = STREAMK_W, RUNS = STREAMK_R, STAGES = STREAMK_S;
constexpr int THREADS = 32 * WARPS, ROWS = 16 * M * WARPS, TOKENS = 8 * NT, STEP = 32 * RUNS;
static_assert(NT % 2 == 0, "tokens are read in pairs of 8");
constexpr int PART = M * NT * THREADS; // a tile's sums in 16-byte words

// Stage is a step: of each run the weights' rows g, g + 8, ... of lane 4 g of each warp, and the tokens.
struct Stage {
	uint4 w[RUNS][2 * M][THREADS];
	uint4 x[RUNS][4 * TOKENS];
};

struct Shared {
	Stage ring[STAGES];
};

// Line is the work: tiles of so many steps each, all one after the other.
struct Line {
	int steps, all;
};

__device__ __forceinline__ Line line_of(const MatmulParams &p) {
	constexpr int OUT = STREAMK_ACT ? ROWS / 2 : ROWS;
	Line l;
	l.steps = (p.k + STEP - 1) / STEP;
	l.all = l.steps * (((STREAMK_ACT ? p.n / 2 : p.n) + OUT - 1) / OUT);
	return l;
}

// start returns where a block's part of the line begins, owner the block whose part has a step.
__device__ __forceinline__ int start(const Line &l, unsigned block) { return (unsigned)l.all * block / gridDim.x; }
__device__ __forceinline__ int owner(const Line &l, int step) { return ((step + 1u) * gridDim.x - 1) / (unsigned)l.all; }

// thread is the thread's number, for code that the compiler is not to prepare ahead of the steps: there all registers are in use.
__device__ __forceinline__ unsigned thread() {
	unsigned t = threadIdx.x;
	forget(t);
	return t;
}

// place returns where a thread puts its word: word c of row g is at 4 g + (c ^ g / 2 % 4), of 8 rows each.
__device__ __forceinline__ int place(int thread) { return thread ^ thread / 8 % 4; }

// inner returns the first element of a thread's words of a step.
__device__ __forceinline__ int inner(int thread, int step) { return step * STEP + thread % 4 * 8; }

// Source is what a thread copies next: a step of a tile.
struct Source {
	const bf16 *row[2 * M];
	int step;
};

// aim finds the thread's rows for a step of the line. Past the end of w it is row 0, for sums that nobody wants.
__device__ __forceinline__ void aim(const MatmulParams &p, Source &w, int at) {
	const int me = thread(), g = me % 32 / 4, warp = me / 32, steps = line_of(p).steps, tile = at / steps;
	w.step = at % steps;
#pragma unroll
	for (int j = 0; j < 2 * M; j++) {
#if STREAMK_ACT
		const int n = tile * (ROWS / 2) + warp * 8 * M + j / 2 * 8 + g, half = p.n / 2; // the first of a pair is the gate
		const bf16 *row = p.w + (size_t)(n < half ? n + j % 2 * half : 0) * p.k;
#else
		const int n = tile * ROWS + warp * 16 * M + 8 * j + g;
		const bf16 *row = p.w + (size_t)(n < p.n ? n : 0) * p.k;
#endif
		w.row[j] = row + inner(me, w.step);
	}
}

// fetch_weights starts the copy of the weights of a step of the line, and aims at the next.
__device__ __forceinline__ void fetch_weights(const MatmulParams &p, Source &w, int at, Stage &to) {
	const int me = thread(), left = p.k - inner(me, w.step);
#pragma unroll
	for (int j = 0; j < 2 * M; j++) {
#pragma unroll
		for (int i = 0; i < RUNS; i++) copy_async_far(&to.w[i][j][place(me)], w.row[j] + 32 * i, left > 32 * i);
		w.row[j] += STEP;
	}
	if (++w.step * STEP >= p.k) aim(p, w, at + 1);
}

// fetch_tokens starts the copy of the tokens' part of a step. Rows past the count are left as they are, for sums that nobody
// wants.
__device__ __forceinline__ void fetch_tokens(const MatmulParams &p, int step, int tokens, Stage &to) {
	const int me = thread(), k = inner(me, step), left = p.k - k;
#pragma unroll
	for (int at = 0; at < 4 * TOKENS; at += THREADS) {
		const int t = (at + me) / 4;
		if (t >= tokens) continue;
#pragma unroll
		for (int i = 0; i < RUNS; i++) copy_async(&to.x[i][at + place(me)], p.x + t * p.k + k + 32 * i, left > 32 * i);
	}
}

__device__ __forceinline__ void multiply(float (&acc)[M][NT][4], const Stage &s) {
	const int me = thread(), row = me % 8, matrix = me % 32 / 8; // whose address a lane gives
	const unsigned w_at = matrix % 2 * (16 * THREADS) + me / 32 * 512 + row * 64 + (matrix / 2 ^ row / 2) * 16;
	const unsigned x_at = matrix / 2 * 512 + row * 64 + (matrix % 2 ^ row / 2) * 16;
#pragma unroll
	for (int i = 0; i < RUNS; i++)
#pragma unroll
		for (int e = 0; e < 2; e++) { // words 2e and 2e + 1
			unsigned w[M][4];
#pragma unroll
			for (int r = 0; r < M; r++) load_matrices(w[r], s.w[i][2 * r], w_at ^ 32 * e);
#pragma unroll
			for (int j = 0; j < NT; j += 2) {
				unsigned x[4];
				load_matrices(x, &s.x[i][32 * j], x_at ^ 32 * e);
#pragma unroll
				for (int r = 0; r < 2 * M; r++)
					mma_bf16(acc[r / 2][j + r % 2], w[r / 2][0], w[r / 2][1], w[r / 2][2], w[r / 2][3], x[r % 2 * 2], x[r % 2 * 2 + 1]);
			}
		}
}

// join leaves the warp's sums of a tile that is cut, and reports whether all others have: then acc is the sum of all.
__device__ __forceinline__ bool join(const StreamkParams &p, float (&acc)[M][NT][4], int tile, bool head, int tokens) {
	const Line line = line_of(p.product);
	const int me = thread(), first = owner(line, tile * line.steps), others = owner(line, tile * line.steps + line.steps - 1) - first;
	float4 *parts = (float4 *)p.parts + me; // two of each block: where a tile ends and where one begins
	float4 *own = parts + (size_t)(2 * blockIdx.x + head) * PART;
#pragma unroll
	for (int i = 0; i < M * NT; i++)
		if (8 * (i % NT) < tokens) own[i * THREADS] = *(const float4 *)acc[i / NT][i % NT];
	__threadfence();
	__syncwarp();
	int arrived = 0;
	if (me % 32 == 0) {
		u32 *counter = p.arrived + first * WARPS + me / 32;
		arrived = (int)atomicAdd(counter, 1u);
		if (arrived == others) *counter = 0;
		__threadfence();
	}
	if (__shfl_sync(0xffffffffu, arrived, 0) != others) return false;
	const float4 *from = parts + (size_t)(2 * first + 1) * PART;
#pragma unroll
	for (int i = 0; i < M * NT; i++)
		if (8 * (i % NT) < tokens) *(float4 *)acc[i / NT][i % NT] = __ldcg(from + i * THREADS);
	from = parts + (size_t)(2 * first) * PART;
#pragma unroll 1
	for (int b = 0; b < others; b++) {
		from += 2 * PART;
#pragma unroll
		for (int i = 0; i < M * NT; i++) {
			if (8 * (i % NT) >= tokens) continue;
			const float4 part = __ldcg(from + i * THREADS);
			float(&sum)[4] = acc[i / NT][i % NT];
			sum[0] += part.x, sum[1] += part.y, sum[2] += part.z, sum[3] += part.w;
		}
	}
	return true;
}

// finish writes the warp's rows of a tile.
__device__ __forceinline__ void finish(const MatmulParams &p, const float (&acc)[M][NT][4], int tile, int tokens) {
	const int me = thread(), g = me % 32 / 4, c = me % 4, warp = me / 32;
#pragma unroll
	for (int j = 0; j < NT; j++)
#pragma unroll
		for (int e = 0; e < 2; e++) { // token 2c + e; rows g and g + 8
			const int t = 8 * j + 2 * c + e;
			if (t >= tokens) continue;
#pragma unroll
			for (int i = 0; i < M; i++) {
#if STREAMK_ACT
				const int n = tile * (ROWS / 2) + warp * 8 * M + 8 * i + g;
				if (n < p.n / 2) ((bf16 *)p.y)[(size_t)t * p.ldy + n] = float_to_bf16(silu(acc[i][j][e]) * acc[i][j][e + 2]);
#else
				const int n = tile * ROWS + warp * 16 * M + 16 * i + g;
				float *y = (float *)p.y + (size_t)t * p.ldy + n;
				if (n < p.n) y[0] = acc[i][j][e];
				if (n + 8 < p.n) y[8] = acc[i][j][e + 2];
#endif
			}
		}
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) streamk(const __grid_constant__ StreamkParams p) {
	TIMELINE_BLOCK;
	SHARED_STRUCT(Shared, s);
	const MatmulParams &m = p.product;
	const Line line = line_of(m);
	int at = start(line, blockIdx.x);
	const int end = start(line, blockIdx.x + 1);
	if (!m.late) start_next();
	Source next;
	aim(m, next, at);
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++)
		if (at + i < end) fetch_weights(m, next, at + i, s.ring[i]);
	await_previous();
	if (m.late) start_next();
	const int tokens = min(*m.count, TOKENS);
	if (tokens <= 0) {
		copy_wait<0>();
		return;
	}
#pragma unroll
	for (int i = 0; i < STAGES - 1; i++) {
		if (at + i < end) fetch_tokens(m, (at + i) % line.steps, tokens, s.ring[i]);
		copy_commit();
	}
	int stage = 0;
	while (at < end) {
		const int stop = min(at - at % line.steps + line.steps, end);
		float acc[M][NT][4];
#pragma unroll
		for (int i = 0; i < M * NT * 4; i++) acc[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
#pragma unroll 1
		for (; at < stop; at++) {
			copy_wait<STAGES - 2>();
			__syncthreads(); // the stage is filled, and the one before it has been read
			if (at + STAGES - 1 < end) {
				Stage &to = s.ring[stage == 0 ? STAGES - 1 : stage - 1];
				fetch_tokens(m, next.step, tokens, to);
				fetch_weights(m, next, at + STAGES - 1, to);
			}
			copy_commit();
			multiply(acc, s.ring[stage]);
			stage = stage + 1 == STAGES ? 0 : stage + 1;
		}
		const Line again = line_of(m);
		const int tile = (at - 1) / again.steps, first = tile * again.steps, from = max(first, start(again, blockIdx.x));
		if (at - from == again.steps || join(p, acc, tile, from == first, tokens)) finish(m, acc, tile, tokens);
	}
	copy_wait<0>();
}
