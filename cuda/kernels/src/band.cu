// band: y[t,n] = sum_k w[n,k] x[t,k] for up to 8 tokens, on tensor cores.   w [N, K] bf16, x [T, K] bf16, y [T, ldy] f32
//
// With BAND_ACT, w is gate [N/2, K] over up [N/2, K], and y[t,i] = silu(gate . x) * (up . x), bf16.
//
// One block an SM walks tiles of 16 rows of w, so that weights flow without a pause from the first tile to the last. The first is
// blockIdx.x, the others are claimed from a counter, three tiles ahead: some multiprocessors are slower, and at times two blocks share
// one. Without a counter, with several slices, or with runs so few that a ring holds all of a tile, they are every gridDim.x-th.
// Its 8 warps split K: warp w takes the runs of 64 inner elements w, w + 8, ... in
// order, and the warps' sums are added in warp order: the sums of slim with 8 warps, bit for bit, and independent of T and
// of the number of blocks. The tokens' part of a slice of at most 8 RUNS runs lies in registers as fragments, so that tokens
// are read once a block and not once a tile; a longer K has several slices, and what a warp has summed up of the block's
// tiles waits in shared memory between them.
//
// Every lane copies what it will use itself, 16 bytes at a time, into a ring of STAGES runs in shared memory: the ring serves
// as registers that loads fill without waiting, and needs no barrier. The inner index of step s of a run of 32 is
// 8 (lane % 4) + 4 s + {0..3} on both operands. Weights do not depend on earlier kernels, so the ring fills before the wait.
// Half of an SM's shared memory and registers: the next kernel's ring fills while this one ends.
//
// Blocks (SMs) of 256 threads. Preconditions: K % 8 == 0, rows 16-byte aligned; with several slices at most TILES tiles a
// block. Bytes: 2 N K, and 2 T K for each block.
#include "bf16.cuh"
#include "params.cuh"
#include "silu.cuh"

constexpr int RUNS = 10, STAGES = 5, WARPS = 8, THREADS = 32 * WARPS, TOKENS = 8, ROWS = 16, TILES = 4, STRIDE = ROWS + 4;

struct Shared {
	uint4 ring[STAGES][4][THREADS];   // a lane's pieces of a run: rows g and g + 8 of its first 32 elements, then of the others
	float sums[2][WARPS][TOKENS][STRIDE]; // of a tile, by turns
	float4 kept[TILES][THREADS];      // between slices
	int tiles[4];                     // of the block where they are claimed: the i-th in place i % 4
};

// Cursor is a warp's place: a run of a tile in a slice, the block's i-th.
struct Cursor {
	int slice, tile, run, i;
};

// Shape is how a block goes through the matrix.
struct Shape {
	int tiles, slices, runs; // runs of a warp in a slice
	bool claimed;
};

// following returns the tile after the i-th, which is given.
__device__ __forceinline__ int following(const Shape &s, const Shared &shared, int tile, int i) {
	return s.claimed ? shared.tiles[(i + 1) % 4] : tile + gridDim.x;
}

__device__ __forceinline__ void advance(Cursor &c, const Shape &s, const Shared &shared) {
	if (++c.run < s.runs) return;
	c.run = 0, c.tile = following(s, shared, c.tile, c.i++);
	if (c.tile < s.tiles) return;
	c.tile = blockIdx.x, c.i = 0, c.slice++;
}

// claim returns the next tile that no block has, or one past the end. Each block claims until then, so that there are as many claims as
// tiles; the last one makes the counter 0 again.
__device__ __forceinline__ int claim(const MatmulParams &p, const Shape &s) {
	const u32 turn = atomicAdd(p.claims, 1u);
	if (turn == (u32)s.tiles - 1) *p.claims = 0;
	return (int)(gridDim.x + turn);
}

// element returns the first inner element of a warp's run.
__device__ __forceinline__ int element(const Shape &s, int slice, int run) {
	return ((slice * s.runs + run) * WARPS + threadIdx.x / 32) * 64;
}

// fetch starts the copy of a run; past the end there is nothing to copy.
__device__ __forceinline__ void fetch(const MatmulParams &p, const Shape &s, const Shared &shared, Cursor &c, uint4 (*to)[THREADS]) {
	if (c.slice < s.slices) {
		const int g = threadIdx.x % 32 / 4, k = element(s, c.slice, c.run) + threadIdx.x % 4 * 8;
#pragma unroll
		for (int j = 0; j < 2; j++) {
#if BAND_ACT
			const int n = c.tile * 8 + g, half = p.n / 2; // the first of a pair is the gate, the second up
			const bool in = n < half;
			const bf16 *row = p.w + (size_t)(in ? n + j * half : 0) * p.k;
#else
			const int n = c.tile * ROWS + 8 * j + g;
			const bool in = n < p.n;
			const bf16 *row = p.w + (size_t)(in ? n : 0) * p.k;
#endif
#pragma unroll
			for (int i = 0; i < 2; i++) {
				const int at = k + 32 * i;
				copy_async(&to[2 * i + j][threadIdx.x], row + (at < p.k ? at : 0), in && at < p.k);
			}
		}
		advance(c, s, shared);
	}
	copy_commit();
}

// load_tokens reads a warp's part of a slice.
__device__ __forceinline__ void load_tokens(const MatmulParams &p, const Shape &s, int slice, int tokens, uint4 (&x)[RUNS][2]) {
	const int t = threadIdx.x % 32 / 4;
	const bf16 *row = p.x + (size_t)min(t, tokens - 1) * p.k;
#pragma unroll
	for (int r = 0; r < RUNS; r++)
#pragma unroll
		for (int i = 0; i < 2; i++) {
			const int k = element(s, slice, r) + 32 * i + threadIdx.x % 4 * 8;
			x[r][i] = make_uint4(0, 0, 0, 0);
			if (r < s.runs && t < tokens && k < p.k) x[r][i] = *(const uint4 *)(row + k);
		}
}

// finish adds the warps' sums of a tile and writes them.
__device__ __forceinline__ void finish(const MatmulParams &p, const float (*sums)[TOKENS][STRIDE], int tile, int tokens) {
	constexpr int OUT = BAND_ACT ? ROWS / 2 : ROWS;
	const int r = threadIdx.x % OUT, t = threadIdx.x / OUT, n = tile * OUT + r;
	if (t >= tokens) return;
#if BAND_ACT
	float gate = 0, up = 0;
#pragma unroll
	for (int w = 0; w < WARPS; w++) gate += sums[w][t][r], up += sums[w][t][r + 8];
	if (n < p.n / 2) ((bf16 *)p.y)[(size_t)t * p.ldy + n] = float_to_bf16(silu(gate) * up);
#else
	float sum = 0;
#pragma unroll
	for (int w = 0; w < WARPS; w++) sum += sums[w][t][r];
	if (n < p.n) ((float *)p.y)[(size_t)t * p.ldy + n] = sum;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) band(const __grid_constant__ MatmulParams p) {
	TIMELINE_BLOCK;
	SHARED_STRUCT(Shared, s);
	const int runs = (p.k + 64 * WARPS - 1) / (64 * WARPS);
	Shape shape;
	shape.tiles = BAND_ACT ? (p.n / 2 + 7) / 8 : (p.n + ROWS - 1) / ROWS;
	shape.slices = (runs + RUNS - 1) / RUNS, shape.runs = (runs + shape.slices - 1) / shape.slices;
	shape.claimed = p.claims && shape.slices == 1 && shape.runs > STAGES;
	if (!p.late) start_next();
	Cursor ahead = {blockIdx.x < shape.tiles ? 0 : shape.slices, (int)blockIdx.x, 0, 0};
#pragma unroll
	for (int i = 0; i < STAGES; i++) fetch(p, shape, s, ahead, s.ring[i]);
	const bool claims = shape.claimed && threadIdx.x == 0;
	int claimed = shape.tiles; // by this thread, not yet told to the others
	if (claims) { // whoever used the counter before has ended
		s.tiles[1] = claim(p, shape);
		if (s.tiles[1] < shape.tiles) claimed = claim(p, shape);
	}
	await_previous();
	if (p.late) start_next();
	const int tokens = min(*p.count, TOKENS), g = threadIdx.x % 32 / 4, c = threadIdx.x % 4, warp = threadIdx.x / 32;
	if (tokens <= 0) {
		while (claimed < shape.tiles) claimed = claim(p, shape);
		copy_wait<0>();
		return;
	}
	if (shape.claimed) __syncthreads();
	int stage = 0, turn = 0;
	for (int slice = 0; slice < shape.slices; slice++) {
		uint4 x[RUNS][2];
		load_tokens(p, shape, slice, tokens, x);
		for (int tile = blockIdx.x, i = 0; tile < shape.tiles; tile = following(shape, s, tile, i++)) {
			float acc[4] = {0, 0, 0, 0};
			if (slice > 0) {
				const float4 kept = s.kept[i][threadIdx.x];
				acc[0] = kept.x, acc[1] = kept.y, acc[2] = kept.z, acc[3] = kept.w;
			}
#pragma unroll
			for (int r = 0; r < RUNS; r++) {
				if (r >= shape.runs) break;
				copy_wait<STAGES - 1>();
#pragma unroll
				for (int half = 0; half < 2; half++) {
					const uint4 lo = s.ring[stage][2 * half][threadIdx.x], hi = s.ring[stage][2 * half + 1][threadIdx.x];
#pragma unroll
					for (int e = 0; e < 2; e++)
						mma_bf16(acc, word(lo, 2 * e), word(hi, 2 * e), word(lo, 2 * e + 1), word(hi, 2 * e + 1), word(x[r][half], 2 * e),
						         word(x[r][half], 2 * e + 1));
				}
				fetch(p, shape, s, ahead, s.ring[stage]);
				stage = stage + 1 == STAGES ? 0 : stage + 1;
			}
			if (slice + 1 < shape.slices) {
				s.kept[i][threadIdx.x] = make_float4(acc[0], acc[1], acc[2], acc[3]);
				continue;
			}
#pragma unroll
			for (int e = 0; e < 4; e++) s.sums[turn][warp][2 * c + e % 2][g + e / 2 * 8] = acc[e]; // e / 2: row g or g + 8
			if (claims) s.tiles[(i + 2) % 4] = claimed;
			__syncthreads();
			if (claims && claimed < shape.tiles) claimed = claim(p, shape);
			if (threadIdx.x < TOKENS * (BAND_ACT ? ROWS / 2 : ROWS)) finish(p, s.sums[turn], tile, tokens);
			turn ^= 1;
		}
	}
	copy_wait<0>();
}
