// The instructions that have no C++ spelling. This is the only header with inline assembly, so that the emulator of
// package simt can put its own version in its place. Everything here exists from sm_80 on.
#pragma once

// pack_bf16 rounds two floats to nearest even; lo lands in the low half.
__device__ __forceinline__ unsigned pack_bf16(float lo, float hi) {
	unsigned r;
	asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
	return r;
}

// mma_bf16 adds A * B to d: A is 16x16 row major, B is 16x8 column major, d is 16x8, as m16n8k16 lays them out:
// with g = lane / 4 and c = lane % 4, a0 = A[g][2c..], a1 = A[g+8][2c..], a2 = A[g][2c+8..], a3 = A[g+8][2c+8..],
// b0 = B[2c..][g], b1 = B[2c+8..][g], d0,d1 = D[g][2c..], d2,d3 = D[g+8][2c..].
__device__ __forceinline__ void mma_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3,
                                         unsigned b0, unsigned b1) {
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
	             "{%0,%1,%2,%3};"
	             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
	             : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// load_matrices reads four 8x8 matrices of shared memory: lane i names row i % 8 of matrix i / 8, 16 bytes at a distance from
// base, and gets elements [lane / 4][2 (lane % 4)..] of each; transposed, elements [2 (lane % 4)..][lane / 4].
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], const void *base, unsigned offset) {
	const unsigned at = (unsigned)__cvta_generic_to_shared(base) + offset;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(at)
	             : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(unsigned (&r)[4], const void *base, unsigned offset) {
	const unsigned at = (unsigned)__cvta_generic_to_shared(base) + offset;
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
	             : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
	             : "r"(at)
	             : "memory");
}

// exp2_fast is 2^x by the special function unit: results below the smallest normal number are 0.
__device__ __forceinline__ float exp2_fast(float x) {
	float y;
	asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// reciprocal is 1 / x of a normal number, within one unit in the last place.
__device__ __forceinline__ float reciprocal(float x) {
	float y;
	asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
	return y;
}

// forget keeps the compiler from knowing what v is, so that it computes what depends on it again and again.
__device__ __forceinline__ void forget(unsigned &v) { asm volatile("" : "+r"(v)); }

// SHARED_STRUCT names a struct in dynamic shared memory, which may exceed 48 KiB; the launch says how much.
#define SHARED_STRUCT(type, name)                                \
	extern __shared__ __align__(1024) unsigned char shared_bytes[]; \
	type &name = *(type *)shared_bytes

// low_halves packs the low 16 bits of a and b (a low), high_halves the high 16 bits.
__device__ __forceinline__ unsigned low_halves(unsigned a, unsigned b) {
	unsigned r;
	asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}
__device__ __forceinline__ unsigned high_halves(unsigned a, unsigned b) {
	unsigned r;
	asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(r) : "r"(a), "r"(b));
	return r;
}

// load_stream reads 16 bytes that this kernel reads once and nobody writes: past the first-level cache.
__device__ __forceinline__ uint4 load_stream(const void *p) {
	uint4 v;
	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
	             : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
	             : "l"(p));
	return v;
}

// load_host reads 16 bytes of mapped host memory, never from a cache.
__device__ __forceinline__ uint4 load_host(const void *p) {
	uint4 v;
	asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
	return v;
}

// store_release_system publishes everything this thread has written or seen to the host, then writes *p.
__device__ __forceinline__ void store_release_system(unsigned long long *p, unsigned long long v) {
	asm volatile("fence.acq_rel.sys; st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// copy_async starts copying 16 bytes from memory that others read too into shared memory; without valid it writes zeros
// and reads nothing. copy_commit closes a group of copies, copy_wait<N> waits until at most the N newest groups of this
// thread are open. A thread may read what it copied itself without a barrier.
__device__ __forceinline__ void copy_async(void *to, const void *from, bool valid) {
	const unsigned at = (unsigned)__cvta_generic_to_shared(to);
	asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
// copy_async_half copies 8 bytes.
__device__ __forceinline__ void copy_async_half(void *to, const void *from, bool valid) {
	const unsigned at = (unsigned)__cvta_generic_to_shared(to);
	asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(valid ? 8 : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// The tensor cores of a warpgroup, 128 threads, on sm_90a. Operands are in shared memory, as rows of 64 inner elements, or the first one
// in registers, where each warp has the 16 rows of its part of d as mma_bf16 lays them out; both stay as they are until the wait. A
// MatrixRef names rows whose first lies at a multiple of 1024 bytes. Piece i of a row, 16 bytes, is in the place i ^ row % 8.
//
// group_mma adds A * B^T to d, or sets d to that: A is 64 rows, B is 8 NT rows, of both the 16 elements of a step of four. Warp w of the
// group has rows 16 w to 16 w + 15 of d, laid out as mma_bf16 has them. Order: group_begin, products, then group_commit.
// group_wait<N> waits until at most the N newest groups are open; operands of the others may be overwritten then. group_end waits for
// all; d may be read afterwards.
// copies_for_group comes between a thread's copy_wait and the barrier after which products read its copies.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
typedef unsigned long long MatrixRef;

__device__ __forceinline__ MatrixRef matrix_ref(const void *rows) {
	const unsigned at = (unsigned)__cvta_generic_to_shared(rows);
	// The address; the distance of 8 rows, 1024 bytes; pieces permuted in lines of 128 bytes.
	return (MatrixRef)((at & 0x3ffff) >> 4) | (MatrixRef)1 << 16 | (MatrixRef)64 << 32 | (MatrixRef)1 << 62;
}

__device__ __forceinline__ void copies_for_group() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void group_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
template <int NT> __device__ __forceinline__ void group_end(float (&d)[NT][4]) {
	group_wait<0>();
#pragma unroll
	for (int i = 0; i < NT; i++) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}

#define D1(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define D8(i) D1(i), D1(i + 1), D1(i + 2), D1(i + 3), D1(i + 4), D1(i + 5), D1(i + 6), D1(i + 7)

__device__ __forceinline__ void group_mma(float (&d)[16][4], MatrixRef a, MatrixRef b, int step, bool add) {
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
	             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
	             "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
	             "%64, %65, p, 1, 1, 0, 0;\n}"
	             : D8(0), D8(8)
	             : "l"(a + 2 * step), "l"(b + 2 * step), "r"((int)add));
}

__device__ __forceinline__ void group_mma(float (&d)[16][4], const unsigned (&a)[4], MatrixRef b, int step, bool add) {
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
	             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
	             "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
	             "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
	             : D8(0), D8(8)
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b + 2 * step), "r"((int)add));
}

__device__ __forceinline__ void group_mma(float (&d)[24][4], MatrixRef a, MatrixRef b, int step, bool add) {
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %98, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 {"
	             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
	             "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
	             "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
	             "%96, %97, p, 1, 1, 0, 0;\n}"
	             : D8(0), D8(8), D8(16)
	             : "l"(a + 2 * step), "l"(b + 2 * step), "r"((int)add));
}

__device__ __forceinline__ void group_mma(float (&d)[8][4], const unsigned (&a)[4], MatrixRef b, int step, bool add) {
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
	             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
	             "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
	             : D8(0)
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b + 2 * step), "r"((int)add));
}

__device__ __forceinline__ void group_mma(float (&d)[4][4], const unsigned (&a)[4], MatrixRef b, int step, bool add) {
	asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
	             "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
	             "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
	             "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n}"
	             : D1(0), D1(1), D1(2), D1(3)
	             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b + 2 * step), "r"((int)add));
}
#undef D1
#undef D8
#endif

// prefetch_keep asks the L2 for the line of 128 bytes at p, and to keep it rather than what streams through. Nothing but time depends
// on it, so what others are yet to write may be asked for.
__device__ __forceinline__ void prefetch_keep(const void *p) { asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(p) : "memory"); }

// Programmatic dependent launch: start_next lets the next kernel of the stream begin, await_previous waits until all
// kernels before this one have ended and their writes are visible. Every kernel calls await_previous before it touches
// anything but weights, so that the ends of kernels are in order. A kernel that calls start_next after await_previous
// lets the next one use, before its own wait, what the kernels before this one wrote. Without the launch attribute both do
// nothing.
__device__ __forceinline__ void start_next() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ __forceinline__ void await_previous() {
#if __CUDA_ARCH__ >= 900
	asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// device_clock is the device's clock in nanoseconds, the same on all multiprocessors, and device_clock_low its low half. It advances
// by 32 ns to 1 us at a time. multiprocessor is the number of the one that runs the block.
__device__ __forceinline__ unsigned long long device_clock() {
	unsigned long long t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
	return t;
}
__device__ __forceinline__ unsigned device_clock_low() {
	unsigned t;
	asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(t)::"memory");
	return t;
}
__device__ __forceinline__ unsigned multiprocessor() {
	unsigned i;
	asm volatile("mov.u32 %0, %%smid;" : "=r"(i));
	return i;
}
