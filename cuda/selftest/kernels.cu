// Kernels of the self-test. Each takes one parameter struct whose layout Go repeats.

typedef unsigned long long u64;

struct AddParams { const float *a, *b; float *out; int n, pad; };
static_assert(sizeof(AddParams) == 32, "AddParams");

struct ReduceParams { const float *in; float *out; int n, pad; };
static_assert(sizeof(ReduceParams) == 24, "ReduceParams");

struct FlagParams { u64 *flag; u64 *counter; };
static_assert(sizeof(FlagParams) == 16, "FlagParams");

struct PingParams { const u64 *request; u64 *answer; u64 rounds, limit_ns; };
static_assert(sizeof(PingParams) == 32, "PingParams");

struct ReadParams { const uint4 *in; unsigned *out; u64 n; };
static_assert(sizeof(ReadParams) == 24, "ReadParams");

// out[i] = a[i] + b[i].
extern "C" __global__ void add(const __grid_constant__ AddParams p) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < p.n) p.out[i] = p.a[i] + p.b[i];
}

// out[block] = sum of the block's strided share of in. blockDim is a multiple of 32.
extern "C" __global__ void reduce(const __grid_constant__ ReduceParams p) {
	__shared__ float partial[32];
	float sum = 0;
	for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) sum += p.in[i];
	for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(~0u, sum, step);
	if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
	__syncthreads();
	if (threadIdx.x >= 32) return;
	sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
	for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(~0u, sum, step);
	if (threadIdx.x == 0) p.out[blockIdx.x] = sum;
}

// Does nothing: what remains is the cost of a launch.
extern "C" __global__ void empty() {}

// Counts in device memory and publishes the count in host memory.
extern "C" __global__ void flag(const __grid_constant__ FlagParams p) {
	u64 next = *p.counter + 1;
	*p.counter = next;
	__threadfence_system();
	*(volatile u64 *)p.flag = next;
}

__device__ u64 now_ns() {
	u64 t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

// Answers the host's numbers 1..rounds, and gives up after limit_ns without one, answering all ones.
extern "C" __global__ void ping(const __grid_constant__ PingParams p) {
	u64 start = now_ns();
	for (u64 round = 1; round <= p.rounds; round++) {
		while (*(const volatile u64 *)p.request < round) {
			if (now_ns() - start > p.limit_ns) {
				*(volatile u64 *)p.answer = ~0ull;
				return;
			}
		}
		*(volatile u64 *)p.answer = round;
		start = now_ns();
	}
}

// Reads n 16-byte words; writes only if their xor has an unlikely value, so that the loads stay.
extern "C" __global__ void read(const __grid_constant__ ReadParams p) {
	uint4 x = {0, 0, 0, 0};
	u64 stride = (u64)gridDim.x * blockDim.x;
	u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
	for (; i + 3 * stride < p.n; i += 4 * stride) {
		uint4 a = p.in[i], b = p.in[i + stride], c = p.in[i + 2 * stride], d = p.in[i + 3 * stride];
		x.x ^= a.x ^ b.x ^ c.x ^ d.x;
		x.y ^= a.y ^ b.y ^ c.y ^ d.y;
		x.z ^= a.z ^ b.z ^ c.z ^ d.z;
		x.w ^= a.w ^ b.w ^ c.w ^ d.w;
	}
	for (; i < p.n; i += stride) {
		uint4 a = p.in[i];
		x.x ^= a.x, x.y ^= a.y, x.z ^= a.z, x.w ^= a.w;
	}
	if ((x.x ^ x.y ^ x.z ^ x.w) == 0x5eed1234u) *p.out = x.x;
}
