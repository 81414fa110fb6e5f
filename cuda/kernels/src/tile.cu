// tile: y[t,n] = sum_k w[n,k] x[t,k] for many tokens, on tensor cores.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// With TILE_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// The sums are those of slim with TILE_W warps, bit for bit: K is walked in TILE_W passes of every TILE_W-th run of 64, in
// the order of the inner elements that slim has, and the passes' sums are added in order. So a token's bits do not
// depend on how many tokens a step has, whichever of the two kernels computes it.
//
// A block computes 128 rows of w for 128 tokens; its 8 warps are 4 along rows by 2 along tokens, 32 by 64 each. Runs of 32
// inner elements pass through three stages of shared memory, 64 bytes a row, in which 16-byte reads of a fragment are
// free of bank conflicts. Blocks (row tiles, token tiles) of 256 threads. Precondition: K % 8 == 0, rows 16-byte aligned.
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

constexpr int PASSES = TILE_W, STAGES = 3, ROWS = 128, COLS = 128, M = 2, NT = 8;

// Place is a run of 32: the i-th of a pass.
struct Place {
	int pass, i;
};

__device__ __forceinline__ int element(const Place &p) { return (p.i / 2 * 2 * PASSES + 2 * p.pass + p.i % 2) * 32; }

// advance goes to the next run; pass PASSES is the end.
__device__ __forceinline__ void advance(Place &p, int k) {
	p.i++;
	while (p.pass < PASSES && element(p) >= k) p.pass++, p.i = 0;
}

// weight_row returns the row of w that row r of the block's tile is, or -1.
__device__ __forceinline__ int weight_row(const MatmulParams &p, int r) {
#if TILE_ACT
	const int half = p.n / 2, n = blockIdx.x * ROWS / 2 + r / 16 * 8 + r % 8; // of 16 rows, 8 gates and their ups
	return n < half ? n + r / 8 % 2 * half : -1;
#else
	const int n = blockIdx.x * ROWS + r;
	return n < p.n ? n : -1;
#endif
}

struct Stage {
	uint4 w[ROWS][4], x[COLS][4];
};

// Source is what a thread copies of each run: two pieces of w and two of x.
struct Source {
	const bf16 *w[2], *x[2];
	bool row[2], token[2];
};

__device__ __forceinline__ void fill(Stage &s, const Source &from, const MatmulParams &p, int k0) {
	const int c = threadIdx.x % 4, k = k0 + 8 * c;
	const bool in = k < p.k;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		copy_async(&s.w[threadIdx.x / 4 + 64 * j][c], from.w[j] + (in ? k : 0), from.row[j] && in);
		copy_async(&s.x[threadIdx.x / 4 + 64 * j][c], from.x[j] + (in ? k : 0), from.token[j] && in);
	}
}

__device__ __forceinline__ void multiply(float (&acc)[M][NT][4], const Stage &s, int row0, int col0) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
	uint4 w[2 * M];
#pragma unroll
	for (int j = 0; j < 2 * M; j++) w[j] = s.w[row0 + 8 * j + g][c];
#pragma unroll
	for (int j = 0; j < NT; j++) {
		const uint4 x = s.x[col0 + 8 * j + g][c];
#pragma unroll
		for (int h = 0; h < 2; h++)
#pragma unroll
			for (int i = 0; i < M; i++)
				mma_bf16(acc[i][j], word(w[2 * i], 2 * h), word(w[2 * i + 1], 2 * h), word(w[2 * i], 2 * h + 1),
				         word(w[2 * i + 1], 2 * h + 1), word(x, 2 * h), word(x, 2 * h + 1));
	}
}

// finish writes one warp's part.
__device__ __forceinline__ void finish(const MatmulParams &p, const float (&sum)[M][NT][4], int row0, int t0, int tokens) {
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
	for (int i = 0; i < M; i++)
#pragma unroll
		for (int j = 0; j < NT; j++)
#pragma unroll
			for (int e = 0; e < 2; e++) { // token 2c + e; rows g and g + 8
				const int t = t0 + 8 * j + 2 * c + e;
				if (t >= tokens) continue;
#if TILE_ACT
				const int n = blockIdx.x * ROWS / 2 + (row0 + 16 * i) / 2 + g;
				if (n < p.n / 2) ((bf16 *)p.y)[(size_t)t * p.ldy + n] = float_to_bf16(silu(sum[i][j][e]) * sum[i][j][e + 2]);
#else
				const int n = blockIdx.x * ROWS + row0 + 16 * i + g;
				float *y = (float *)p.y + (size_t)t * p.ldy + n;
				if (n < p.n) y[0] = sum[i][j][e];
				if (n + 8 < p.n) y[8] = sum[i][j][e + 2];
#endif
			}
}

extern "C" __global__ void __launch_bounds__(256, 1) tile(const __grid_constant__ MatmulParams p) {
	TIMELINE_BLOCK;
	__shared__ Stage stages[STAGES];
	await_previous();
	start_next();
	const int tokens = *p.count, t0 = blockIdx.y * COLS, warp = threadIdx.x / 32;
	if (t0 >= tokens) return;
	const int row0 = warp % 4 * 32, col0 = warp / 4 * 64;
	Source from;
#pragma unroll
	for (int j = 0; j < 2; j++) {
		const int r = weight_row(p, threadIdx.x / 4 + 64 * j), t = t0 + threadIdx.x / 4 + 64 * j;
		from.row[j] = r >= 0, from.token[j] = t < tokens;
		from.w[j] = p.w + (size_t)(r >= 0 ? r : 0) * p.k;
		from.x[j] = p.x + (size_t)(t < tokens ? t : 0) * p.k;
	}
	float sum[M][NT][4], acc[M][NT][4];
#pragma unroll
	for (int i = 0; i < M * NT * 4; i++) sum[i / 4 / NT][i / 4 % NT][i % 4] = acc[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
	Place now = {0, 0}, next = {0, 0};
#pragma unroll
	for (int s = 0; s < STAGES - 1; s++) {
		if (next.pass < PASSES) fill(stages[s], from, p, element(next)), advance(next, p.k);
		copy_commit();
	}
	for (int s = 0; now.pass < PASSES; s = s + 1 == STAGES ? 0 : s + 1) {
		copy_wait<STAGES - 2>();
		__syncthreads(); // the stage is filled, and the one before it has been read
		if (next.pass < PASSES) fill(stages[s == 0 ? STAGES - 1 : s - 1], from, p, element(next)), advance(next, p.k);
		copy_commit();
		multiply(acc, stages[s], row0, col0);
		const int pass = now.pass;
		advance(now, p.k);
		if (now.pass == pass) continue;
#pragma unroll
		for (int i = 0; i < M * NT * 4; i++) {
			sum[i / 4 / NT][i / 4 % NT][i % 4] += acc[i / 4 / NT][i / 4 % NT][i % 4];
			acc[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
		}
	}
	finish(p, sum, row0, t0 + col0, tokens);
}
