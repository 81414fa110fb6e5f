// The CUDA language for one block at a time, as C++. Included before a kernel's source; see the package comment.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/mman.h>

#define __global__
#define __device__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

namespace simt {

struct Dim {
	unsigned x, y, z;
};

struct Warp {
	unsigned char slot[2][32][32]; // what each lane brought to an even and an odd meeting
	bool present[32];
};

struct Fiber {
	void *sp;
	Dim tid;
	unsigned lane;
	Warp *warp;
	Fiber *mates; // lane 0 of the warp
	uint64_t meetings;
	bool done;
};

static Fiber *now;
static void *scheduler_sp;
static bool progress;
static unsigned alive, waiting, barrier;
static int vote[2];
static void (*body)(const void *);
static const void *arguments;

extern "C" void simt_switch(void **save, void *load);
asm(R"(
.text
.type simt_switch,@function
simt_switch:
	pushq %rbp
	pushq %rbx
	pushq %r12
	pushq %r13
	pushq %r14
	pushq %r15
	movq %rsp, (%rdi)
	movq %rsi, %rsp
	popq %r15
	popq %r14
	popq %r13
	popq %r12
	popq %rbx
	popq %rbp
	ret
)");

static inline void yield() {
	Fiber *self = now;
	simt_switch(&self->sp, scheduler_sp);
}

static inline void leave_barrier() {
	if (alive > 0 && waiting == alive) waiting = 0, barrier++, vote[barrier & 1] = 0;
}

static void entry() {
	body(arguments);
	now->done = progress = true;
	alive--;
	leave_barrier();
	yield();
	abort();
}

// join_block waits for all threads of the block that have not returned, and ors their flags.
static inline int join_block(int flag) {
	const unsigned mine = barrier;
	vote[mine & 1] |= flag;
	waiting++;
	progress = true;
	leave_barrier();
	while (barrier == mine) yield();
	return vote[mine & 1];
}

// meet waits for all lanes of the warp that have not returned; afterwards others() is what they brought.
template <class T>
static inline const unsigned char (*meet(const T &mine))[32] {
	static_assert(sizeof(T) <= 32, "slot");
	Fiber *self = now;
	const uint64_t g = self->meetings++;
	memcpy(self->warp->slot[g & 1][self->lane], &mine, sizeof(T));
	progress = true;
	for (unsigned l = 0; l < 32; l++) {
		if (!self->warp->present[l]) continue;
		while (!self->mates[l].done && self->mates[l].meetings <= g) yield();
	}
	return self->warp->slot[g & 1];
}

template <class T>
static inline T take(const unsigned char (*slots)[32], unsigned lane) {
	T v;
	memcpy(&v, slots[lane & 31], sizeof(T));
	return v;
}

} // namespace simt

#define threadIdx (simt::now->tid)
static simt::Dim blockIdx, gridDim, blockDim;

struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t)a * b >> 32; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }
static inline int __ffs(unsigned v) { return __builtin_ffs((int)v); }
static inline int min(int a, int b) { return a < b ? a : b; }
static inline int max(int a, int b) { return a > b ? a : b; }
static inline void __threadfence_system() {}
static inline void __threadfence() {}
template <class T> static inline T __ldcg(const T *p) { return *p; }
static inline void __syncthreads() { simt::join_block(0); }
static inline int __syncthreads_or(int v) { return simt::join_block(v != 0); }
static inline void __syncwarp() { simt::meet(0); }
template <class T> static inline T atomicAdd(T *p, T v) { T old = *p; *p = old + v; return old; }

template <class T> static inline T __shfl_xor_sync(unsigned, T v, int d) {
	return simt::take<T>(simt::meet(v), simt::now->lane ^ d);
}
template <class T> static inline T __shfl_sync(unsigned, T v, int lane) { return simt::take<T>(simt::meet(v), lane); }
template <class T> static inline T __shfl_up_sync(unsigned, T v, int d) {
	const unsigned char (*slots)[32] = simt::meet(v);
	return (int)simt::now->lane < d ? v : simt::take<T>(slots, simt::now->lane - d);
}
static inline unsigned __ballot_sync(unsigned, bool v) {
	const unsigned char (*slots)[32] = simt::meet(v);
	unsigned r = 0;
	for (unsigned l = 0; l < 32; l++)
		if (simt::now->warp->present[l] && simt::take<bool>(slots, l)) r |= 1u << l;
	return r;
}

namespace simt {

// run plays a grid. It returns 0, or 1 when some threads wait for others that never come.
static int run(void (*kernel)(const void *), const void *params, Dim grid, Dim block, bool backwards) {
	constexpr size_t stack = 64 << 10;
	const unsigned n = block.x * block.y * block.z, warps = (n + 31) / 32;
	char *stacks = (char *)mmap(nullptr, n * stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (stacks == (char *)MAP_FAILED) return 1;
	Fiber *fibers = (Fiber *)calloc(warps * 32, sizeof(Fiber));
	Warp *all = (Warp *)calloc(warps, sizeof(Warp));
	gridDim = grid, blockDim = block, body = kernel, arguments = params;
	int rc = 0;
	const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
	for (uint64_t b = 0; b < blocks && rc == 0; b++) {
		const uint64_t at = backwards ? blocks - 1 - b : b;
		blockIdx = {(unsigned)(at % grid.x), (unsigned)(at / grid.x % grid.y), (unsigned)(at / grid.x / grid.y)};
		alive = n, waiting = 0, barrier = 0, vote[0] = vote[1] = 0;
		for (unsigned i = 0; i < n; i++) {
			Fiber &f = fibers[i];
			f.tid = {i % block.x, i / block.x % block.y, i / block.x / block.y};
			f.lane = i % 32, f.warp = &all[i / 32], f.mates = &fibers[i / 32 * 32], f.meetings = 0, f.done = false;
			f.warp->present[f.lane] = true;
			void **sp = (void **)(stacks + (i + 1) * stack - 64);
			*--sp = nullptr; // keeps the stack aligned as after a call
			*--sp = (void *)entry;
			for (int r = 0; r < 6; r++) *--sp = nullptr;
			f.sp = sp;
		}
		while (alive > 0) {
			progress = false;
			for (unsigned j = 0; j < n; j++) {
				now = &fibers[backwards ? n - 1 - j : j];
				if (!now->done) simt_switch(&scheduler_sp, now->sp);
			}
			if (!progress) {
				rc = 1;
				break;
			}
		}
	}
	free(fibers);
	free(all);
	munmap(stacks, n * stack);
	return rc;
}

template <class P> struct Call {
	static void (*kernel)(const P);
	static void call(const void *params) { kernel(*(const P *)params); }
};
template <class P> void (*Call<P>::kernel)(const P);

template <class P>
static int launch(void (*kernel)(const P), const void *params, const unsigned *grid, const unsigned *block, int backwards) {
	Call<P>::kernel = kernel;
	return run(Call<P>::call, params, {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}, backwards);
}
template <class P> static int param_bytes(void (*)(const P)) { return sizeof(P); }

} // namespace simt

// SIMT_EXPORT makes a kernel callable: its one parameter is a struct.
#define SIMT_EXPORT(name)                                                                                              \
	extern "C" int simt_run_##name(const void *p, const unsigned *grid, const unsigned *block, int backwards) {         \
		return simt::launch(name, p, grid, block, backwards);                                                           \
	}                                                                                                                  \
	extern "C" int simt_bytes_##name(void) { return simt::param_bytes(name); }
