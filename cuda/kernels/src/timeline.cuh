// When blocks ran, for a timeline of a step. Programs that are compiled without TIMELINE are the same as without this file.
//
// TIMELINE is the number of blocks that there is room for; those beyond are counted. A block takes its place as it begins, so
// that the answer of the counter is there long before it is used, and writes at its end. Thread 0 speaks for the block: the
// others end at about the same time, behind the same barriers. It keeps three registers for it.
#pragma once
#include "ptx.cuh"

#ifdef TIMELINE

// BlockStamp is one block. Go has the same struct.
struct BlockStamp {
	unsigned long long began, ended; // nanoseconds of the device's clock
	unsigned waited;                 // nanoseconds after began, when await_previous returned; 0 without it
	unsigned block, blocks;          // its number in the grid, x first, and the grid's size
	unsigned sm;
};
static_assert(sizeof(BlockStamp) == 32, "two 16-byte words");

extern "C" {
__device__ BlockStamp timeline_blocks[TIMELINE];
__device__ unsigned timeline_count; // of blocks that have begun, since the host set it to 0
}

// BlockTimer lives as long as the block. Low words of the clock are enough for 4 seconds.
struct BlockTimer {
	unsigned place, began, waited;

	__device__ __forceinline__ BlockTimer() {
		if (threadIdx.x != 0) return;
		began = waited = device_clock_low();
		place = atomicAdd(&timeline_count, 1u);
	}

	__device__ __forceinline__ void wait_is_over() {
		if (threadIdx.x == 0) waited = device_clock_low();
	}

	__device__ __forceinline__ ~BlockTimer() {
		if (threadIdx.x != 0 || place >= TIMELINE) return;
		BlockStamp s;
		s.ended = device_clock();
		s.began = s.ended - ((unsigned)s.ended - began);
		s.waited = waited - began;
		s.block = blockIdx.y * gridDim.x + blockIdx.x, s.blocks = gridDim.x * gridDim.y;
		s.sm = multiprocessor();
		timeline_blocks[place] = s;
	}
};

// TIMELINE_BLOCK is the first line of every kernel. await_previous is called in kernels themselves, so it finds the timer.
#define TIMELINE_BLOCK BlockTimer block_timer
#define await_previous() (await_previous(), block_timer.wait_is_over())

#else
#define TIMELINE_BLOCK
#endif
