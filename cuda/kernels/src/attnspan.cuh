// The products of attn: the scores of a span of keys, their probabilities, and what these make of its values.
#pragma once
#include "attnstate.cuh"
#include "reduce.cuh"

// Scores are a warp's scores in a span, then its probabilities: of run r, position 8 t + 2 c + j % 2, row 8 (j / 2) + g. top has the
// maxima of the thread's rows.
struct Scores {
	float z[RUNS][2][4], top[2];
};

// score makes a warp's scores, -inf where masked, and shows their maxima to the warps that share its rows.
__device__ __forceinline__ void score(const Walk &w, Shared &s, const uint4 (*keys)[UNITS], int base, Scores &out) {
	const Place at = here();
#pragma unroll
	for (int i = 0; i < RUNS * 8; i++) out.z[i / 8][i / 4 % 2][i % 4] = 0.0f;
	const int krow = SPAN / PARTS * at.part + at.lane % 8 + at.lane / 16 * 8, qrow = at.row0 + at.lane % 16;
	const u32 kat = (krow * UNITS + (at.lane / 8 % 2 ^ krow % 8)) * 16, qat = (qrow * UNITS + (at.lane / 16 ^ qrow % 8)) * 16;
#pragma unroll
	for (int n = 0; n < D / 16; n++) {
		u32 k[4], q[4];
		load_matrices(q, s.q, qat ^ 32 * n); // unit 2 n further
#pragma unroll
		for (int r = 0; r < RUNS; r++) {
			load_matrices(k, keys[16 * r], kat ^ 32 * n);
			mma_bf16(out.z[r][0], q[0], q[1], q[2], q[3], k[0], k[1]);
			mma_bf16(out.z[r][1], q[0], q[1], q[2], q[3], k[2], k[3]);
		}
	}
	if (base + SPAN - 1 > w.pos) {
#pragma unroll
		for (int i = 0; i < RUNS * 8; i++) {
			const int r = i / 8, t = i / 4 % 2, j = i % 4, row = at.row0 + j / 2 * 8 + at.g;
			if (base + SPAN / PARTS * at.part + 16 * r + 8 * t + 2 * at.c + j % 2 > w.pos + row / G) out.z[r][t][j] = -INF;
		}
	}
#pragma unroll
	for (int x = 0; x < 2; x++) {
		float top = -INF;
#pragma unroll
		for (int r = 0; r < RUNS; r++)
			top = fmaxf(top, fmaxf(fmaxf(out.z[r][0][2 * x], out.z[r][0][2 * x + 1]), fmaxf(out.z[r][1][2 * x], out.z[r][1][2 * x + 1])));
		top = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 1));
		out.top[x] = fmaxf(top, __shfl_xor_sync(FULL_WARP, top, 2));
		if (PARTS > 1 && at.c == 0) s.maxima[at.part][at.row0 + 8 * x + at.g] = out.top[x];
	}
}

// Weights are a span's probabilities as left operands of products, relative to the maxima of the thread's rows, and their sums.
// Warps that share rows have the operands and the sums in shared memory instead.
struct Weights {
	u32 a[PARTS > 1 ? 1 : RUNS][4];
	float maxima[2], sums[2];
};

__device__ __forceinline__ void exponentiate(const AttnParams &p, Shared &s, const Scores &in, Weights &out) {
	const Place at = here();
#pragma unroll
	for (int x = 0; x < 2; x++) {
		const int row = at.row0 + 8 * x + at.g;
		float top = in.top[x];
		if constexpr (PARTS > 1) top = fmaxf(fmaxf(s.maxima[0][row], s.maxima[1][row]), fmaxf(s.maxima[2][row], s.maxima[3][row]));
		out.maxima[x] = __fmul_rn(top, p.scale);
		out.sums[x] = 0.0f;
		const float from = out.maxima[x] == -INF ? 0.0f : out.maxima[x];
#pragma unroll
		for (int r = 0; r < RUNS; r++) {
			float sum = 0.0f;
#pragma unroll
			for (int t = 0; t < 2; t++) {
				const float a = exp2_fast(fmaf(in.z[r][t][2 * x], p.scale, -from)), b = exp2_fast(fmaf(in.z[r][t][2 * x + 1], p.scale, -from));
				sum += a, sum += b;
				if constexpr (PARTS > 1) ((u32 *)&s.probs[row][(2 * at.part + t) ^ row % 8])[at.c] = pack_bf16(a, b);
				else out.a[r][2 * t + x] = pack_bf16(a, b);
			}
			sum += __shfl_xor_sync(FULL_WARP, sum, 1);
			sum += __shfl_xor_sync(FULL_WARP, sum, 2);
			if (PARTS == 1) out.sums[x] += sum;
			else if (at.c == 0) s.sums[at.part][row] = sum;
		}
	}
}

// weigh joins the products of a span's probabilities and values into the state.
__device__ __forceinline__ void weigh(Shared &s, const uint4 (*values)[UNITS], Weights &weights, State &state) {
	const Place at = here();
	float2 f[2];
#pragma unroll
	for (int x = 0; x < 2; x++) {
		if constexpr (PARTS > 1) {
#pragma unroll
			for (int i = 0; i < 4; i++) weights.sums[x] += s.sums[i][at.row0 + 8 * x + at.g];
		}
		SoftmaxState joined = {state.maxima[x], state.sums[x]};
		f[x] = join_factors(joined, weights.maxima[x], weights.sums[x]);
		state.maxima[x] = joined.maximum, state.sums[x] = joined.sum;
	}
	const int row16 = at.lane % 16;
	const u32 vat = (row16 * UNITS + ((at.part * NT + at.lane / 16) ^ row16 % 8)) * 16, pat = (row16 * 8 + (at.lane / 16 ^ row16 % 8)) * 16;
#pragma unroll
	for (int t = 0; t < NT; t += MANY) { // some columns at a time, for the registers' sake
		float o[MANY][4];
#pragma unroll
		for (int i = 0; i < MANY * 4; i++) o[i / 4][i % 4] = 0.0f;
#pragma unroll
		for (int n = 0; n < SPAN / 16; n++) {
			if constexpr (PARTS > 1) load_matrices(weights.a[0], s.probs, pat ^ 32 * n);
			const u32(&a)[4] = weights.a[PARTS > 1 ? 0 : n];
#pragma unroll
			for (int u = 0; u < MANY; u += 2) {
				u32 v[4];
				load_matrices_transposed(v, values[16 * n], vat ^ 16 * (t + u));
				mma_bf16(o[u], a[0], a[1], a[2], a[3], v[0], v[1]);
				mma_bf16(o[u + 1], a[0], a[1], a[2], a[3], v[2], v[3]);
			}
		}
#pragma unroll
		for (int i = 0; i < MANY * 4; i++) state.out[t + i / 4][i % 4] = join(state.out[t + i / 4][i % 4], o[i / 4][i % 4], f[i % 4 / 2]);
	}
}
