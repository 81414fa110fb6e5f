// slim: y[t,n] = sum_k w[n,k] x[t,k] for few tokens, on tensor cores.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// With SLIM_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// A block computes 16 SLIM_M rows of w for 8 SLIM_N tokens; its SLIM_W warps split K: warp w takes the runs of 64 inner
// elements w, w + SLIM_W, ... in order, and the warps' sums are added in warp order. So the bits depend on K and SLIM_W
// alone, not on T, SLIM_M, SLIM_N or SLIM_S.
//
// Every lane copies what it will use itself, 16 bytes at a time, into a ring of SLIM_S stages in shared memory: the ring
// serves as registers that loads fill without waiting, and needs no barrier. The inner index of step s of a run of 32 is
// 8 (lane % 4) + 4 s + {0..3} on both operands. Weights do not depend on earlier kernels, so their first copies start
// before the wait. Blocks (row tiles, token tiles) of 32 SLIM_W threads. Precondition: K % 8 == 0, rows 16-byte aligned.
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

constexpr int M = SLIM_M, NT = SLIM_N, WARPS = SLIM_W, STAGES = SLIM_S, THREADS = 32 * WARPS;
constexpr int LOADS = 2 * M + NT, ROWS = 16 * M, COLS = 8 * NT;
constexpr int RING = STAGES * LOADS * THREADS * 16, SUMS = WARPS * ROWS * COLS * 4;

// run returns the first inner element of a warp's i-th run of 32; two neighbouring runs make 128 bytes of a row.
__device__ __forceinline__ int run(int i) { return (i / 2 * 2 * WARPS + 2 * (threadIdx.x / 32) + i % 2) * 32; }

struct Tile {
	const bf16 *w[2 * M];
	bool row[2 * M];
};

// rows finds the lane's rows of w; past the end it is some row that is not read.
__device__ __forceinline__ Tile rows(const MatmulParams &p) {
	const int g = threadIdx.x % 32 / 4;
	Tile t;
#pragma unroll
	for (int j = 0; j < 2 * M; j++) {
#if SLIM_ACT
		const int n = blockIdx.x * 8 * M + j / 2 * 8 + g, half = p.n / 2; // the first of a pair is the gate, the second up
		t.row[j] = n < half;
		t.w[j] = p.w + (size_t)(t.row[j] ? n + j % 2 * half : 0) * p.k;
#else
		const int n = blockIdx.x * ROWS + j * 8 + g;
		t.row[j] = n < p.n;
		t.w[j] = p.w + (size_t)(t.row[j] ? n : 0) * p.k;
#endif
	}
	return t;
}

__device__ __forceinline__ void multiply(float (&acc)[M][NT][4], const uint4 (*stage)[THREADS]) {
	uint4 w[2 * M], x[NT];
#pragma unroll
	for (int j = 0; j < 2 * M; j++) w[j] = stage[j][threadIdx.x];
#pragma unroll
	for (int j = 0; j < NT; j++) x[j] = stage[2 * M + j][threadIdx.x];
#pragma unroll
	for (int s = 0; s < 2; s++)
#pragma unroll
		for (int i = 0; i < M; i++)
#pragma unroll
			for (int j = 0; j < NT; j++)
				mma_bf16(acc[i][j], word(w[2 * i], 2 * s), word(w[2 * i + 1], 2 * s), word(w[2 * i], 2 * s + 1),
				         word(w[2 * i + 1], 2 * s + 1), word(x[j], 2 * s), word(x[j], 2 * s + 1));
}

// finish adds the warps' sums and writes the tile.
__device__ __forceinline__ void finish(const MatmulParams &p, const float (*sums)[COLS][ROWS], int t0, int tokens) {
	constexpr int OUT = SLIM_ACT ? ROWS / 2 : ROWS;
	for (int i = threadIdx.x; i < OUT * COLS; i += THREADS) {
		const int r = i % OUT, t = i / OUT;
		if (t0 + t >= tokens) continue;
#if SLIM_ACT
		const int gate_row = r / 8 * 16 + r % 8, n = blockIdx.x * OUT + r;
		float gate = 0, up = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++) gate += sums[w][t][gate_row], up += sums[w][t][gate_row + 8];
		if (n < p.n / 2) ((bf16 *)p.y)[(size_t)(t0 + t) * p.ldy + n] = float_to_bf16(silu(gate) * up);
#else
		const int n = blockIdx.x * OUT + r;
		float sum = 0;
#pragma unroll
		for (int w = 0; w < WARPS; w++) sum += sums[w][t][r];
		if (n < p.n) ((float *)p.y)[(size_t)(t0 + t) * p.ldy + n] = sum;
#endif
	}
}

extern "C" __global__ void __launch_bounds__(THREADS) slim(const __grid_constant__ MatmulParams p) {
	TIMELINE_BLOCK;
	__shared__ __align__(16) unsigned char shared[RING > SUMS ? RING : SUMS];
	uint4(*ring)[LOADS][THREADS] = (uint4(*)[LOADS][THREADS])shared;
	float(*sums)[COLS][ROWS] = (float(*)[COLS][ROWS])shared;
	const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, t0 = blockIdx.y * COLS;
	const Tile tile = rows(p);
	if (!p.late) start_next();
#pragma unroll
	for (int s = 0; s < STAGES; s++) {
		const int k = run(s) + 8 * c;
#pragma unroll
		for (int j = 0; j < 2 * M; j++) copy_async(&ring[s][j][threadIdx.x], tile.w[j] + (k < p.k ? k : 0), tile.row[j] && k < p.k);
	}
	await_previous();
	if (p.late) start_next();
	const int tokens = *p.count;
	if (t0 >= tokens) {
		copy_wait<0>();
		return;
	}
	const bf16 *x[NT];
	bool token[NT];
#pragma unroll
	for (int j = 0; j < NT; j++) {
		token[j] = t0 + 8 * j + g < tokens;
		x[j] = p.x + (size_t)(token[j] ? t0 + 8 * j + g : 0) * p.k;
	}
#pragma unroll
	for (int s = 0; s < STAGES; s++) {
		const int k = run(s) + 8 * c;
#pragma unroll
		for (int j = 0; j < NT; j++) copy_async(&ring[s][2 * M + j][threadIdx.x], x[j] + (k < p.k ? k : 0), token[j] && k < p.k);
		copy_commit();
	}
	float acc[M][NT][4];
#pragma unroll
	for (int i = 0; i < M * NT * 4; i++) acc[i / 4 / NT][i / 4 % NT][i % 4] = 0.0f;
	for (int i = 0, s = 0; run(i) < p.k; i++, s = s + 1 == STAGES ? 0 : s + 1) {
		copy_wait<STAGES - 1>();
		multiply(acc, ring[s]);
		const int k = run(i + STAGES) + 8 * c;
		if (run(i + STAGES) < p.k) {
#pragma unroll
			for (int j = 0; j < 2 * M; j++) copy_async(&ring[s][j][threadIdx.x], tile.w[j] + (k < p.k ? k : 0), tile.row[j] && k < p.k);
#pragma unroll
			for (int j = 0; j < NT; j++) copy_async(&ring[s][2 * M + j][threadIdx.x], x[j] + (k < p.k ? k : 0), token[j] && k < p.k);
		}
		copy_commit();
	}
	copy_wait<0>();
	__syncthreads(); // the ring becomes the table of sums
#pragma unroll
	for (int i = 0; i < M; i++)
#pragma unroll
		for (int j = 0; j < NT; j++)
#pragma unroll
			for (int e = 0; e < 4; e++) // e / 2: row g or g + 8; e % 2: token 2c or 2c + 1
				sums[threadIdx.x / 32][8 * j + 2 * c + e % 2][16 * i + e / 2 * 8 + g] = acc[i][j][e];
	__syncthreads();
	finish(p, sums, t0, tokens);
}
