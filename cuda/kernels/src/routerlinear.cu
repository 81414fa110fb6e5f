// routerlinear: the linear layers of router nets, y[s,n] = f(sum_k w[n,k] in(s)[k] + bias[n]), f32 sums.
//
//   ROUTER_FORM 0, front: in = [hidden; embed of the sampled token; largest raw logits], or hidden; w f32; f = id or relu
//   ROUTER_FORM 1, up:    in = layer norm of x [S, K];  w bf16; f = gelu (by the error function)
//   ROUTER_FORM 2, down:  in = x [S, K];                w bf16; y += instead of y =
//
// A block has ROUTER_OUTS outputs for up to ROUTER_T samples, so weights are read once for them. WK of its 8 warps share
// the sum over K: chunk c of 32 lanes goes to warp c % WK of them; partial sums are added in order of the warps. The order
// of every sum depends on K alone, so a sample's bits do not depend on the samples beside it. Inputs of front and up lie in
// shared memory, for up with the halves of eight apart, so that lanes read neighbouring words.
// Blocks (ceil(N / OUTS), ceil(samples / group)) of 256 threads. Blocks whose samples do not want the net do nothing.
// Bytes: 2 N K (front: 4 N K) for each group.
#include "bf16.cuh"
#include "params.cuh"
#include "reduce.cuh"
#include "router.cuh"

constexpr int T = ROUTER_T, FORM = ROUTER_FORM;
constexpr int WK = FORM == 1 ? 1 : 8;            // warps that share a sum
constexpr int R = FORM == 1 ? 4 : 8;             // outputs of a warp
constexpr int OUTS = R * (ROUTER_WARPS / WK);    // of a block
constexpr int WIDE = FORM == 0 ? 4 : 8;          // elements of 16 bytes of weights
constexpr int STRIDE = 32 * WIDE * WK;           // from a warp's chunk to its next
constexpr int AHEAD = T > 1 ? 1 : FORM == 1 ? 4 : 2; // chunks fetched early

// place is where element k of a row lies in shared memory.
__device__ __forceinline__ int place(int k) {
	return FORM == 1 ? (k & ~255) | (k >> 2 & 1) << 7 | (k >> 3 & 31) << 2 | (k & 3) : k;
}

// row_length is the room of a row in shared memory.
__device__ __forceinline__ int row_length(int k) { return FORM == 1 ? (k + 255) / 256 * 256 : k; }

// row_sum gives the sum of f(i) for i in [0, n), n a multiple of 8, in eight parts that are added in order. With T > 1 each
// warp sums a row of its own; else all warps sum the one row, a part each, and all threads call it.
template <class F> __device__ __forceinline__ float row_sum(int n, float *scratch, F f) {
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, part = n / 8;
	float total = 0;
	if (T == 1) {
		float sum = 0;
		for (int i = lane; i < part; i += 32) sum += f(warp * part + i);
		sum = warp_sum(sum);
		if (lane == 0) scratch[warp] = sum;
		__syncthreads();
		for (int c = 0; c < 8; c++) total += scratch[c];
		__syncthreads();
	} else {
		for (int c = 0; c < 8; c++) {
			float sum = 0;
			for (int i = lane; i < part; i += 32) sum += f(c * part + i);
			total += warp_sum(sum);
		}
	}
	return total;
}

// standard brings row[from .. from+n) to mean 0 and variance 1. Called like row_sum.
__device__ __forceinline__ void standard(float *row, int from, int n, const float *gain, const float *shift, float *scratch) {
	const int lane = T == 1 ? threadIdx.x : threadIdx.x % 32, step = T == 1 ? ROUTER_THREADS : 32;
	const float mean = row_sum(n, scratch, [&](int i) { return row[place(from + i)]; }) / n;
	const float variance = row_sum(n, scratch, [&](int i) {
		const float d = row[place(from + i)] - mean;
		return d * d;
	}) / n;
	const float scale = 1.0f / sqrtf(variance + ROUTER_EPS);
	for (int i = lane; i < n; i += step) {
		const float v = (row[place(from + i)] - mean) * scale;
		row[place(from + i)] = gain ? fmaf(v, gain[i], shift[i]) : v;
	}
}

// softmax replaces the logits at row, the largest first, by their probabilities, on one warp.
__device__ __forceinline__ void softmax(float *row, int n) {
	const int lane = threadIdx.x % 32;
	const float largest = row[0];
	float sum = 0;
	for (int i = lane; i < n; i += 32) sum += expf(row[i] - largest);
	sum = warp_sum(sum);
	__syncwarp();
	for (int i = lane; i < n; i += 32) row[i] = expf(row[i] - largest) / sum;
}

// fill brings the inputs of the block's samples into shared memory.
__device__ __forceinline__ void fill(const RouterLinearParams &p, float *xs, int r0, u32 active, float *scratch) {
	const int length = row_length(p.k), warp = threadIdx.x / 32;
	for (int t = 0; t < T; t++) {
		if (!(active >> t & 1)) continue;
		const int r = r0 + t, s = r + p.first;
		float *row = xs + t * length;
		if (FORM == 1) {
			for (int k = threadIdx.x; k < p.k; k += ROUTER_THREADS) row[place(k)] = p.x[(size_t)r * p.k + k];
			continue;
		}
		const int h = p.hidden;
		for (int k = threadIdx.x; k < h; k += ROUTER_THREADS) row[k] = p.x[(size_t)r * h + k];
		if (!p.embed) {
			for (int k = h + threadIdx.x; k < p.k; k += ROUTER_THREADS) row[k] = 0;
			continue;
		}
		const bf16 *token = p.embed + (size_t)p.stats[s].token * h;
		for (int k = threadIdx.x; k < h; k += ROUTER_THREADS) row[h + k] = bf16_to_float(token[k]);
		const TopEntry *top = p.top + (size_t)s * MAX_TOP;
		for (int k = threadIdx.x; k < p.k - 2 * h; k += ROUTER_THREADS) row[2 * h + k] = k < p.logits ? top[k].logit : 0.0f;
	}
	__syncthreads();
	if (FORM == 1 || (p.flags & ROUTER_NORMALIZE)) {
		const int t = T == 1 ? 0 : warp;
		float *row = xs + t * length;
		const bool mine = T == 1 || (t < T && (active >> t & 1)); // with one row all warps are at it
		if (mine && FORM == 1) standard(row, 0, p.k, p.gain, p.shift, scratch);
		if (mine && FORM == 0) {
			standard(row, 0, p.hidden, nullptr, nullptr, scratch);
			standard(row, p.hidden, p.hidden, nullptr, nullptr, scratch);
			if (T > 1 || warp == 0) softmax(row + 2 * p.hidden, p.logits);
		}
		__syncthreads();
	}
}

// add adds the products of 16 bytes of weights of each output with the inputs at k.
__device__ __forceinline__ void add(float (&acc)[R][T], const uint4 (&w)[R], const float *x, size_t length, int k, u32 active) {
#pragma unroll
	for (int t = 0; t < T; t++) {
		if (T > 1 && !(active >> t & 1)) continue; // the same for all threads
		float v[WIDE];
		const float *row = x + t * length;
		const float4 low = *(const float4 *)(row + (FORM == 1 ? place(k) : k));
		v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
		if (WIDE == 8) {
			const float4 high = *(const float4 *)(row + (FORM == 1 ? place(k + 4) : k + 4));
			v[WIDE - 4] = high.x, v[WIDE - 3] = high.y, v[WIDE - 2] = high.z, v[WIDE - 1] = high.w;
		}
#pragma unroll
		for (int r = 0; r < R; r++) {
			if (FORM == 0) {
				acc[r][t] = fmaf(__uint_as_float(w[r].x), v[0], acc[r][t]);
				acc[r][t] = fmaf(__uint_as_float(w[r].y), v[1], acc[r][t]);
				acc[r][t] = fmaf(__uint_as_float(w[r].z), v[2], acc[r][t]);
				acc[r][t] = fmaf(__uint_as_float(w[r].w), v[3], acc[r][t]);
			} else {
#pragma unroll
				for (int i = 0; i < WIDE / 2; i++) {
					acc[r][t] = fmaf(bf16_lo(word(w[r], i)), v[2 * i], acc[r][t]);
					acc[r][t] = fmaf(bf16_hi(word(w[r], i)), v[2 * i + 1], acc[r][t]);
				}
			}
		}
	}
}

// finish writes one output.
__device__ __forceinline__ void finish(const RouterLinearParams &p, float sum, int r, int n) {
	float *y = p.y + (size_t)r * p.n + n;
	float v = sum + p.bias[n];
	if (FORM == 0 && (p.flags & ROUTER_RELU)) v = fmaxf(v, 0.0f);
	if (FORM == 1) v = 0.5f * v * (1.0f + erff(v * 0.70710678118654752f));
	*y = FORM == 2 ? *y + v : v;
}

extern "C" __global__ void __launch_bounds__(ROUTER_THREADS, 1) routerlinear(const __grid_constant__ RouterLinearParams p) {
	TIMELINE_BLOCK;
	__shared__ __align__(16) float xs[FORM == 2 ? 4 : ROUTER_SHARED];
	__shared__ float partial[WK > 1 ? ROUTER_WARPS * R * T : 1], scratch[8];
	const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
	const int n0 = blockIdx.x * OUTS + warp / WK * R, k0 = (warp % WK * 32 + lane) * WIDE;
	const int r0 = blockIdx.y * p.group;
	const char *w[R]; // past the end, the last output is computed again and not stored
#pragma unroll
	for (int r = 0; r < R; r++) w[r] = (const char *)p.w + (size_t)min(n0 + r, p.n - 1) * p.k * (16 / WIDE);
	start_next();
	const bool early = p.flags & ROUTER_AHEAD;
	uint4 ahead[AHEAD][R];
#pragma unroll
	for (int u = 0; u < AHEAD; u++)
#pragma unroll
		for (int r = 0; r < R; r++) {
			const int k = k0 + u * STRIDE;
			ahead[u][r] = early && k < p.k ? load_stream(w[r] + k * (16 / WIDE)) : make_uint4(0, 0, 0, 0);
		}
	await_previous();
	u32 active = 0;
	for (int t = 0; t < T && t < p.group; t++)
		active |= (u32)router_wants(p.head, p.samples, p.stats, r0 + t + p.first, p.net) << t;
	if (active == 0) return;
	if (FORM != 2) fill(p, xs, r0, active, scratch);
	const float *x = FORM == 2 ? p.x + (size_t)r0 * p.k : xs;
	const size_t length = FORM == 2 ? (size_t)p.k : (size_t)row_length(p.k);
	float acc[R][T];
#pragma unroll
	for (int i = 0; i < R * T; i++) acc[i / T][i % T] = 0.0f;
	int k = k0;
	if (early) {
#pragma unroll
		for (int u = 0; u < AHEAD; u++)
			if (k0 + u * STRIDE < p.k) add(acc, ahead[u], x, length, k0 + u * STRIDE, active);
		k += AHEAD * STRIDE;
	}
	for (; k < p.k; k += STRIDE) {
		uint4 packed[R];
#pragma unroll
		for (int r = 0; r < R; r++) packed[r] = load_stream(w[r] + k * (16 / WIDE));
		add(acc, packed, x, length, k, active);
	}
#pragma unroll
	for (int i = 0; i < R * T; i++) {
		const float sum = warp_sum(acc[i / T][i % T]);
		if (lane != i % 32) continue;
		if (WK > 1) partial[warp * R * T + i] = sum;
		else if (n0 + i / T < p.n && (active >> (i % T) & 1)) finish(p, sum, r0 + i % T, n0 + i / T);
	}
	if (WK == 1) return;
	__syncthreads();
	for (int i = threadIdx.x; i < R * T; i += ROUTER_THREADS) {
		float sum = 0;
		for (int c = 0; c < ROUTER_WARPS; c++) sum += partial[c * R * T + i];
		if (n0 + i / T < p.n && (active >> (i % T) & 1)) finish(p, sum, r0 + i % T, n0 + i / T);
	}
}
