// The shapes of attn, and what its blocks and threads keep.
#pragma once
#include "bf16.cuh"
#include "params.cuh"
#include "ptx.cuh"
#include "softmax.cuh"

constexpr int SPAN = 64, ROWS = ATTN_ROWS, THREADS = 128, WARPS = 4;
constexpr int PARTS = WARPS * 16 / ROWS; // that warps make of a span's positions and of the output's columns
#if ATTN_FRESH
constexpr int PLACES = 2, AHEAD = 1; // AHEAD are the spans whose copies begin with the item
#else
constexpr int RING = ATTN_RING, PLACES = 2 * RING, AHEAD = RING - 1; // RING is the spans that keys and values are in shared memory of
#endif
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
