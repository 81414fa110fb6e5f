// Parameter structs of the router nets' kernels, shared with Go (router.go), and what they have in common.
#pragma once
#include "params.cuh"
#include "reduce.cuh"

struct RouterLinearParams {
	const StepHead *head;
	const Sample *samples;
	const Stat *stats;
	const TopEntry *top;  // [S][MAX_TOP], for the front
	const float *x;       // front: hidden [rows][hidden], up: v [rows][K], down: inner [rows][K]
	const bf16 *embed;    // [V][hidden], for the front; null: the front has the hidden vector alone
	const void *w;        // [N][K], f32 in the front and else bf16
	const float *bias;    // [N]
	const float *gain;    // [K], up: of the norm
	const float *shift;   // [K], up: of the norm
	float *y;             // [rows][N]; down adds to it
	int n, k;             // k is padded with zeros to a multiple of 4 (front) or 8
	int hidden, logits;   // of the front: k >= 2 hidden + logits, or hidden
	int group;            // rows of a block, 1 to ROUTER_T; group * k of the front and up fit ROUTER_SHARED
	int net;              // number that samples ask for
	int first;            // row 0 of x and y is sample first
	u32 flags;            // ROUTER_*
};
static_assert(sizeof(RouterLinearParams) == 120, "RouterLinearParams");

constexpr int WANT_NET = 8; // the byte of Sample.want that has the number of the net

constexpr u32 ROUTER_RELU = 1;      // front: y = max(0, y)
constexpr u32 ROUTER_NORMALIZE = 2; // front: vectors to mean 0 and variance 1, logits to their softmax
constexpr u32 ROUTER_AHEAD = 4;     // fetch weights before it is known whether a sample wants the net

struct RouterEndParams {
	const StepHead *head;
	const Sample *samples;
	Stat *stats;
	const float *x;     // [rows][K]
	const float *gain;  // [K], null for no norm
	const float *shift; // [K]
	const float *w;     // [K]
	float bias;
	int k;
	int net, first;     // row 0 of x is sample first
};
static_assert(sizeof(RouterEndParams) == 72, "RouterEndParams");

constexpr int ROUTER_SHARED = 11264; // floats of a block's rows in shared memory
constexpr int ROUTER_THREADS = 256, ROUTER_WARPS = 8;
constexpr float ROUTER_EPS = 1e-5f;

// router_wants says that sample s is there, asks for the net, and has usable logits.
__device__ __forceinline__ bool router_wants(const StepHead *head, const Sample *samples, const Stat *stats, int s, int net) {
	if (s >= head->samples) return false;
	const u32 want = samples[s].want;
	return (want & WANT_SCORE) && (int)(want >> WANT_NET & 255) == net && stats[s].flags == 0;
}
