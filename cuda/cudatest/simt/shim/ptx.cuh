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

static inline void mma_bf16(float (&d)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, unsigned b1) {
	const unsigned char (*all)[32] = simt::meet(MmaOperands{{a0, a1, a2, a3}, {b0, b1}});
	const int g = simt::now->lane / 4, c = simt::now->lane % 4;
	for (int x = 0; x < 4; x++) {
		const int half = x / 2, col = 2 * c + x % 2;
		float sum = d[x];
		for (int pair = 0; pair < 8; pair++) {
			const unsigned a = ((const MmaOperands *)all[g * 4 + pair % 4])->a[half + pair / 4 * 2];
			const unsigned b = ((const MmaOperands *)all[col * 4 + pair % 4])->b[pair / 4];
			sum += half_of(a, 0) * half_of(b, 0);
			sum += half_of(a, 1) * half_of(b, 1);
		}
		d[x] = sum;
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
#define SHARED_STRUCT(type, name) static __align__(128) type name

static inline unsigned low_halves(unsigned a, unsigned b) { return (a & 0xffff) | b << 16; }
static inline unsigned high_halves(unsigned a, unsigned b) { return a >> 16 | (b & 0xffff0000u); }
static inline uint4 load_stream(const void *p) { return *(const uint4 *)p; }
static inline uint4 load_host(const void *p) { return *(const uint4 *)p; }
static inline void store_release_system(unsigned long long *p, unsigned long long v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

// Copies are made as late as copy_wait allows, and their places hold NaN until then, so that a wait that is missing or too short shows.
static inline void copy_async(void *to, const void *from, bool valid) {
	simt::Copies &c = simt::now->copies;
	if (c.asked - c.made == simt::Copies::most) abort();
	c.list[c.asked++ % simt::Copies::most] = {to, valid ? from : nullptr, c.groups};
	memset(to, 0xff, 16);
}
static inline void copy_commit() { simt::now->copies.groups++; }
template <int N> static inline void copy_wait() {
	simt::Copies &c = simt::now->copies;
	for (; c.made != c.asked; c.made++) {
		const simt::Copy &next = c.list[c.made % simt::Copies::most];
		if (next.group + N >= c.groups) break;
		if (next.from) memcpy(next.to, next.from, 16);
		else memset(next.to, 0, 16);
	}
}
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
