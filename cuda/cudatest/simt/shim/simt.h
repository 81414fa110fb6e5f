// The CUDA language for one block at a time, as C++. Included before a kernel's source; see the package comment.
#pragma once
// The C headers alone: those of C++ take a quarter of the time that a kernel takes to compile.
#define _GLIBCXX_INCLUDE_NEXT_C_HEADERS
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
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
	__align__(16) unsigned char slot[2][32][32]; // what each lane brought to an even and an odd meeting
	bool present[32];
	unsigned live, missing; // lanes that have not returned, and those of them that the next meeting waits for
	unsigned meetings;      // that have been
};

// A Copy is of some bytes, from null for zeros.
struct Copy {
	void *to;
	const void *from;
	unsigned bytes, group;
};

// Copies are a thread's asynchronous ones: those from made to asked are yet to be made. groups is how many groups of them are closed.
struct Copies {
	static const unsigned most = 128; // that may be open
	unsigned asked, made, groups;
	Copy list[most];
};

// A Product is one of a warpgroup, as far as it is a thread's.
struct Product {
	float (*d)[4];
	const unsigned char *a, *b;
	int tiles, step;
	bool add;
	unsigned group;
	unsigned own[16]; // where a is null: the words of rows g and g + 8 by lane, four each
};

// Products are a thread's, as Copies are.
struct Products {
	static const unsigned most = 32;
	unsigned asked, made, groups;
	Product list[most];
};

// A fiber can go on when *event is no longer what it saw there.
struct Fiber {
	void *sp;
	const unsigned *event;
	unsigned seen;
	unsigned lane;
	Warp *warp;
	Dim tid;
	Copies copies;
	Products products;
};

static const unsigned never = 0, always = 1; // events for seen = 0
static Fiber *now, *fibers;
static void *scheduler_sp;
static bool backwards, progress, again; // whether any had a turn in this round, and in this pass over the group
static unsigned count, at, from, to;    // fibers; the next in the order of turns, of the group [from, to)
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

// group is how many fibers take turns until none of them can go on, before others do: a warp, whose stacks fit the
// first cache.
constexpr unsigned group = 32;

static void take_turns(unsigned first) { at = from = first, to = first + group < count ? first + group : count, again = false; }

// next is the fiber whose turn it is: the next that can go on, in the order of the threads; null when there is none.
static Fiber *next() {
	for (;;) {
		while (at < to) {
			Fiber *f = &fibers[backwards ? count - 1 - at : at];
			at++;
			if (*f->event != f->seen) return progress = again = true, f;
		}
		if (again) {
			take_turns(from);
		} else if (to < count) {
			take_turns(to);
		} else {
			if (!progress) return nullptr;
			progress = false;
			take_turns(0);
		}
	}
}

// wait lets the others go on until *event is no longer seen.
static __attribute__((noinline)) void wait(const unsigned *event, unsigned seen) {
	Fiber *self = now;
	self->event = event, self->seen = seen;
	Fiber *f = now = next();
	if (f != self) simt_switch(&self->sp, f ? f->sp : scheduler_sp);
}

static inline void leave_barrier() {
	if (alive > 0 && waiting == alive) waiting = 0, barrier++, vote[barrier & 1] = 0;
}

static inline void leave_meeting(Warp *w) {
	if (--w->missing == 0) w->missing = w->live, w->meetings++;
}

static void entry() {
	body(arguments);
	alive--;
	leave_barrier();
	now->warp->live--;
	leave_meeting(now->warp);
	wait(&never, 0);
	abort();
}

// join_block waits for all threads of the block that have not returned, and ors their flags.
static inline int join_block(int flag) {
	const unsigned mine = barrier;
	vote[mine & 1] |= flag;
	waiting++;
	leave_barrier();
	if (barrier == mine) wait(&barrier, mine);
	return vote[mine & 1];
}

// meet waits for all lanes of the warp that have not returned; afterwards others() is what they brought.
template <class T>
static inline const unsigned char (*meet(const T &mine))[32] {
	static_assert(sizeof(T) <= 32, "slot");
	Warp *w = now->warp;
	const unsigned g = w->meetings;
	memcpy(w->slot[g & 1][now->lane], &mine, sizeof(T));
	leave_meeting(w);
	if (w->meetings == g) wait(&w->meetings, g);
	return w->slot[g & 1];
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

// Stacks are kept from launch to launch: new pages would cost more than a small kernel.
// A stack is no power of two, so that all of them are not in the same few lines of the caches.
constexpr size_t stack = (64 << 10) + 21 * 64;
static char *kept;
static unsigned kept_for;

__attribute__((destructor)) static void drop_stacks() {
	if (kept) munmap(kept, kept_for * stack);
	kept = nullptr, kept_for = 0;
}

// stacks_for is memory for the stacks of n threads, or null.
static char *stacks_for(unsigned n) {
	if (n > kept_for) {
		drop_stacks();
		void *p = mmap(nullptr, n * stack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (p == MAP_FAILED) return nullptr;
		kept = (char *)p, kept_for = n;
	}
	return kept;
}

// run plays a grid. It returns 0, or 1 when some threads wait for others that never come.
static int run(void (*kernel)(const void *), const void *params, Dim grid, Dim block, bool last_first) {
	const unsigned n = block.x * block.y * block.z, warps = (n + 31) / 32;
	char *stacks = stacks_for(n);
	if (!stacks) return 1;
	fibers = (Fiber *)calloc(n, sizeof(Fiber));
	Warp *all = (Warp *)calloc(warps, sizeof(Warp));
	gridDim = grid, blockDim = block, body = kernel, arguments = params, count = n, backwards = last_first;
	int rc = 0;
	const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
	for (uint64_t b = 0; b < blocks && rc == 0; b++) {
		const uint64_t place = backwards ? blocks - 1 - b : b;
		blockIdx = {(unsigned)(place % grid.x), (unsigned)(place / grid.x % grid.y), (unsigned)(place / grid.x / grid.y)};
		alive = n, waiting = 0, barrier = 0, vote[0] = vote[1] = 0;
		for (unsigned i = 0; i < n; i++) {
			Fiber &f = fibers[i];
			Warp &w = all[i / 32];
			f.tid = {i % block.x, i / block.x % block.y, i / block.x / block.y};
			f.lane = i % 32, f.warp = &w, f.event = &always, f.seen = 0;
			f.copies.asked = f.copies.made = f.copies.groups = 0;
			f.products.asked = f.products.made = f.products.groups = 0;
			if (f.lane == 0) w.live = w.missing = n - i < 32 ? n - i : 32, w.meetings = 0;
			w.present[f.lane] = true;
			void **sp = (void **)(stacks + (i + 1) * stack - 64);
			*--sp = nullptr; // keeps the stack aligned as after a call
			*--sp = (void *)entry;
			for (int r = 0; r < 6; r++) *--sp = nullptr;
			f.sp = sp;
		}
		progress = false;
		take_turns(0);
		now = next();
		if (now) simt_switch(&scheduler_sp, now->sp);
		if (alive > 0) rc = 1;
	}
	free(fibers);
	free(all);
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
