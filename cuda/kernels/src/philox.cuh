// Philox4x32-10, keyed as Go's package internal/philox does it.
#pragma once

struct PhiloxBlock {
	u32 w[4];
};

// philox_block returns words [4 n, 4 n + 4) of the stream (seed, position, model, purpose).
__device__ __forceinline__ PhiloxBlock philox_block(u32 n, u32 position, u32 model_purpose, u32 seed_lo, u32 seed_hi) {
	u32 c0 = n, c1 = position, c2 = model_purpose, c3 = 0, k0 = seed_lo, k1 = seed_hi;
#pragma unroll
	for (int i = 0; i < 10; i++) {
		const u32 h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
		const u32 h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
		c0 = h1 ^ c1 ^ k0, c1 = l1, c2 = h0 ^ c3 ^ k1, c3 = l0;
		k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
	}
	return {{c0, c1, c2, c3}};
}

// pick returns word i without putting the block into memory.
__device__ __forceinline__ u32 pick(const PhiloxBlock &b, int i) {
	return i == 0 ? b.w[0] : i == 1 ? b.w[1] : i == 2 ? b.w[2] : b.w[3];
}
