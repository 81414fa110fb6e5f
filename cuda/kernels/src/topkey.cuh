// Exact selection among (value, id) pairs: 64-bit keys that order by value, lower id first on ties, so that all differ.
#pragma once

// ordered maps floats to integers of the same order; -0 counts as +0. NaN is not allowed.
__device__ __forceinline__ u32 ordered(float v) {
	const u32 u = __float_as_uint(v + 0.0f);
	return u & 0x80000000u ? ~u : u | 0x80000000u;
}

__device__ __forceinline__ float unordered(u32 u) {
	return __uint_as_float(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

__device__ __forceinline__ u64 top_key(float v, int id) { return (u64)ordered(v) << 32 | (0xffffffffu - (u32)id); }
__device__ __forceinline__ int key_id(u64 key) { return (int)(0xffffffffu - (u32)key); }
__device__ __forceinline__ float key_value(u64 key) { return unordered((u32)(key >> 32)); }

// matches reports whether key agrees with prefix in all digits above digit.
__device__ __forceinline__ bool matches(u64 key, u64 prefix, int digit) {
	return digit == 7 || key >> (8 * digit + 8) == prefix >> (8 * digit + 8);
}

// pick_digit finds, from bin 255 down, the first bin at which the running total of amount reaches need (or the lowest bin
// that has any, when the total is too small), for one warp. It returns the bin and the total before it.
template <class T>
__device__ __forceinline__ int pick_digit(const T *amount, T need, T &before) {
	const int lane = threadIdx.x % 32, top = 255 - 8 * lane;
	T own = 0;
	for (int i = 0; i < 8; i++) own += amount[top - i];
	T upto = own;
	for (int d = 1; d < 32; d <<= 1) {
		const T o = __shfl_up_sync(FULL_WARP, upto, d);
		if (lane >= d) upto += o;
	}
	const T total = __shfl_sync(FULL_WARP, upto, 31);
	if (total < need) need = total;
	int bin = -1;
	T sum = upto - own;
	if (sum < need && upto >= need) {
		bin = top;
		while (sum + amount[bin] < need) sum += amount[bin--];
	}
	const u32 owners = __ballot_sync(FULL_WARP, bin >= 0);
	const int owner = owners ? __ffs(owners) - 1 : 0;
	before = __shfl_sync(FULL_WARP, sum, owner);
	return __shfl_sync(FULL_WARP, bin, owner);
}
