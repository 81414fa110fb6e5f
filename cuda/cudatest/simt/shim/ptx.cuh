// The kernels' ptx.cuh, in C++.
#pragma once

static inline unsigned round_bf16(float f) {
	const unsigned u = __float_as_uint(f);
	if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
	return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

static inline unsigned pack_bf16(float lo, float hi) { return round_bf16(lo) | round_bf16(hi) << 16; }

struct MmaOperands {
	unsigned a[4], b[2];
};

static inline float half_of(unsigned w, int i) { return __uint_as_float(i ? w & 0xffff0000u : w << 16); }

// The 16 products are added exactly, then to d, and rounded once: what the hardware does since Hopper but for bits that it drops.
static inline void mma_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
	const unsigned char (*all)[32] = simt::meet(MmaOperands{{a0, a1, a2, a3}, {b0, b1}});
	const int g = simt::now->lane / 4, c = simt::now->lane % 4;
	for (int x = 0; x < 4; x++) {
		const int half = x / 2, col = 2 * c + x % 2;
		double sum = 0;
		for (int pair = 0; pair < 8; pair++) {
			const unsigned a = ((const MmaOperands *)all[g * 4 + pair % 4])->a[half + pair / 4 * 2];
			const unsigned b = ((const MmaOperands *)all[col * 4 + pair % 4])->b[pair / 4];
			sum += (double)half_of(a, 0) * half_of(b, 0);
			sum += (double)half_of(a, 1) * half_of(b, 1);
		}
		d[x] = d[x] + sum;
	}
}

static inline void load_matrices(unsigned (&r)[4], const void *base, unsigned offset) {
	const unsigned char (*all)[32] = simt::meet((const void *)((const char *)base + offset));
	const int lane = simt::now->lane;
	for (int i = 0; i < 4; i++) {
		const char *from = (const char *)simt::take<const void *>(all, 8 * i + lane / 4);
		memcpy(&r[i], from + 4 * (lane % 4), 4);
	}
	simt::meet(0); // nobody overwrites a row before all have read
}
static inline void load_matrices_transposed(unsigned (&r)[4], const void *base, unsigned offset) {
	const unsigned char (*all)[32] = simt::meet((const void *)((const char *)base + offset));
	const int lane = simt::now->lane;
	for (int i = 0; i < 4; i++) {
		unsigned short e[2];
		for (int j = 0; j < 2; j++) memcpy(&e[j], (const char *)simt::take<const void *>(all, 8 * i + 2 * (lane % 4) + j) + 2 * (lane / 4), 2);
		r[i] = e[0] | (unsigned)e[1] << 16;
	}
	simt::meet(0);
}
static inline float exp2_fast(float x) {
	const float y = exp2f(x);
	return y < 1.17549435e-38f ? 0.0f : y;
}
static inline float reciprocal(float x) { return 1.0f / x; }
static inline void forget(unsigned &) {}
#define SHARED_STRUCT(type, name) static __align__(1024) type name

static inline unsigned low_halves(unsigned a, unsigned b) { return (a & 0xffff) | b << 16; }
static inline unsigned high_halves(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }
static inline uint4 load_stream(const void *p) { return *(const uint4 *)p; }
static inline uint4 load_host(const void *p) { return *(const uint4 *)p; }
static inline void store_release_system(unsigned long long *p, unsigned long long v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

// Copies are made as late as copy_wait allows, and their places hold NaN until then, so that a wait that is missing or too short shows.
static inline void copy_later(void *to, const void *from, bool valid, unsigned bytes) {
	simt::Copies &c = simt::now->copies;
	if (c.asked - c.made == simt::Copies::most) abort();
	c.list[c.asked++ % simt::Copies::most] = {to, valid ? from : nullptr, bytes, c.groups};
	memset(to, 0xff, bytes);
}
static inline void copy_async(void *to, const void *from, bool valid) { copy_later(to, from, valid, 16); }
static inline void copy_async_half(void *to, const void *from, bool valid) { copy_later(to, from, valid, 8); }
static inline void copy_commit() { simt::now->copies.groups++; }
template <int N> static inline void copy_wait() {
	simt::Copies &c = simt::now->copies;
	for (; c.made != c.asked; c.made++) {
		const simt::Copy &next = c.list[c.made % simt::Copies::most];
		if (next.group + N >= c.groups) break;
		if (next.from) memcpy(next.to, next.from, next.bytes);
		else memset(next.to, 0, next.bytes);
	}
}

// Products of a warpgroup are made as late as group_wait allows as well, so that who overwrites an operand too early spoils them.
typedef const unsigned char *MatrixRef;
static inline MatrixRef matrix_ref(const void *rows) {
	if ((uintptr_t)rows % 1024) abort();
	return (MatrixRef)rows;
}
static inline void copies_for_group() {}
static inline void group_begin() {}
template <int NT> static inline void group_mma(float (&d)[NT][4], MatrixRef a, MatrixRef b, int step, bool add) {
	simt::Products &p = simt::now->products;
	if (p.asked - p.made == simt::Products::most) abort();
	p.list[p.asked++ % simt::Products::most] = {d, a, b, NT, step, add, p.groups};
}
template <int NT> static inline void group_mma(float (&d)[NT][4], const unsigned (&a)[4], MatrixRef b, int step, bool add) {
	const unsigned char (*all)[32] = simt::meet(MmaOperands{{a[0], a[1], a[2], a[3]}, {0, 0}});
	group_mma(d, (MatrixRef)nullptr, b, step, add);
	simt::Products &p = simt::now->products;
	simt::Product &mine = p.list[(p.asked - 1) % simt::Products::most];
	for (int c = 0; c < 4; c++) memcpy(&mine.own[4 * c], ((const MmaOperands *)all[simt::now->lane / 4 * 4 + c])->a, 16);
}
static inline void group_commit() { simt::now->products.groups++; }
static inline float element(MatrixRef m, int row, int k) {
	unsigned short e;
	memcpy(&e, m + 128 * row + (k / 8 ^ row % 8) * 16 + k % 8 * 2, 2);
	return __uint_as_float((unsigned)e << 16);
}
static inline void multiply(const simt::Product &p) {
	const int warp = threadIdx.x / 32 % 4, g = simt::now->lane / 4, c = simt::now->lane % 4;
	for (int j = 0; j < p.tiles; j++)
		for (int x = 0; x < 4; x++) {
			double sum = 0;
			for (int i = 0; i < 16; i++) {
				const int k = 16 * p.step + i;
				const float a = p.a ? element(p.a, 16 * warp + g + x / 2 * 8, k) : half_of(p.own[i % 8 / 2 * 4 + i / 8 * 2 + x / 2], i % 2);
				sum += (double)a * element(p.b, 8 * j + 2 * c + x % 2, k);
			}
			p.d[j][x] = (p.add ? p.d[j][x] : 0.0f) + sum;
		}
}
template <int N> static inline void group_wait() {
	simt::Products &p = simt::now->products;
	for (; p.made != p.asked; p.made++) {
		const simt::Product &next = p.list[p.made % simt::Products::most];
		if (next.group + N >= p.groups) break;
		multiply(next);
	}
}
template <int NT> static inline void group_end(float (&)[NT][4]) { group_wait<0>(); }
static inline void prefetch_keep(const void *p) { *(volatile const char *)p; } // an address past the end of memory shows
static inline void start_next() {}
static inline void await_previous() {}

static inline unsigned long long device_clock() {
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static inline unsigned device_clock_low() { return (unsigned)device_clock(); }
static inline unsigned multiprocessor() { return blockIdx.x % 4; }
