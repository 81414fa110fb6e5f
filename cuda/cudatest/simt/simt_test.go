package simt_test

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest/simt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// threads is the size of a block: a warp and a part of one.
const threads = 43

// params is the kernels' parameter.
type params struct{ Out driver.Ptr }

// head begins every kernel of these tests. Two warps take part, the second with fewer lanes.
const head = `#include "ptx.cuh"
struct Params { int *out; };
extern "C" __global__ void probe(const __grid_constant__ Params p) {
	__shared__ int seen[64];
	const int i = threadIdx.x;
`

// play runs the body of a kernel in a grid of two blocks and gives what each thread wrote to out[i]. It runs it twice, as
// stacks and counters of a launch are left to the next.
func play(t *testing.T, body string, backwards bool) ([]int32, error) {
	t.Helper()
	compiler, err := simt.NewCompiler(filepath.Join(os.TempDir(), "trctl-simt"))
	if errors.Is(err, simt.ErrUnavailable) {
		t.Skipf("skip: %v", err)
	}
	must(t, err)
	drv, err := simt.Open()
	if errors.Is(err, simt.ErrUnavailable) {
		t.Skipf("skip: %v", err)
	}
	must(t, err)
	gpu, err := drv.Device(0)
	must(t, err)
	ctx, err := gpu.Retain()
	must(t, err)
	defer func() { must(t, ctx.Close()) }()
	built, _, err := compiler.Build(context.Background(), []nvrtc.Program{{Name: "probe.cu", Source: head + body + "\n}\n"}})
	must(t, err)
	module, err := ctx.LoadModule(built[0].Cubin)
	must(t, err)
	defer func() { must(t, module.Close()) }()
	probe, err := module.Function("probe")
	must(t, err)
	stream, err := ctx.NewStream(0)
	must(t, err)
	defer func() { must(t, stream.Close()) }()
	out, err := ctx.Alloc(4 * 2 * threads)
	must(t, err)
	defer func() { must(t, ctx.Free(out)) }()
	simt.Backwards(backwards)
	defer simt.Backwards(false)
	for range 2 {
		err = errors.Join(err, driver.LaunchWith(stream, probe, &driver.Launch{Grid: driver.X(2), Block: driver.X(threads)}, &params{Out: out}))
	}
	if err != nil {
		return nil, err
	}
	raw := make([]byte, 4*2*threads)
	must(t, ctx.Read(raw, out))
	var all []int32
	for ; len(raw) > 0; raw = raw[4:] {
		all = append(all, int32(binary.LittleEndian.Uint32(raw)))
	}
	return all, nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Threads meet in their warp and in their block, also beside threads that have returned.
func TestThreadsMeet(t *testing.T) {
	const all = threads * (threads - 1) / 2
	for _, tc := range []struct {
		name, body string
		want       func(block, i int) int32
	}{
		{"warp and block", `
	int sum = i;
	for (int d = 16; d > 0; d >>= 1) {
		const int other = __shfl_xor_sync(0xffffffffu, sum, d);
		if (i < 32) sum += other;
	}
	if (i == 0 || i >= 32) seen[i] = sum;
	__syncthreads();
	int total = seen[0];
	for (int k = 32; k < 43; k++) total += seen[k];
	__syncthreads();
	p.out[43 * blockIdx.x + i] = total + 1000 * (int)blockIdx.x;`, func(block, _ int) int32 { return all + 1000*int32(block) }},
		{"others have returned", `
	p.out[43 * blockIdx.x + i] = -1;
	if (i % 3 == 0) return;
	seen[i] = 2 * i;
	__syncthreads();
	const int next = __shfl_sync(0xffffffffu, seen[i], 2);
	p.out[43 * blockIdx.x + i] = __syncthreads_or(i == 1) + next;`, func(_, i int) int32 {
			if i%3 == 0 {
				return -1
			}
			return int32(1 + 4 + i/32*64)
		}},
		{"many meetings of one warp while the other waits", `
	int turns = 0;
	if (i < 32) for (int k = 0; k < 1001; k++) turns += __shfl_sync(0xffffffffu, k & 1, k);
	seen[i] = turns;
	__syncthreads();
	p.out[43 * blockIdx.x + i] = seen[0];`, func(int, int) int32 { return 500 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, backwards := range []bool{false, true} {
				got, err := play(t, tc.body, backwards)
				must(t, err)
				for j, v := range got {
					if want := tc.want(j/threads, j%threads); v != want {
						t.Fatalf("backwards %v: block %d, thread %d wrote %d, want %d", backwards, j/threads, j%threads, v, want)
					}
				}
			}
		})
	}
}

// Without a barrier the two orders give different results, which is how tests find that it is missing.
func TestMissingBarrierShows(t *testing.T) {
	for _, barrier := range []string{"", "__syncthreads();"} {
		body := "seen[i] = -i;\n__syncthreads();\nseen[i] = i;\n" + barrier + "\np.out[43 * blockIdx.x + i] = seen[42 - i];"
		forwards, err := play(t, body, false)
		must(t, err)
		backwards, err := play(t, body, true)
		must(t, err)
		if same := slices.Equal(forwards, backwards); same != (barrier != "") {
			t.Errorf("with barrier %q: the same in both orders: %v", barrier, same)
		}
	}
}

// Copies are there after the wait for their group and not before, and those of the block before are forgotten.
func TestCopiesAreWaitedFor(t *testing.T) {
	for name, tc := range map[string]struct {
		wait string
		want int32 // copies that are there
	}{
		"both groups":       {"copy_wait<0>();", 2},
		"the first":         {"copy_wait<1>();", 1},
		"none":              {"copy_wait<2>();", 0},
		"no wait":           {"", 0},
		"one after another": {"copy_wait<1>(); copy_wait<0>();", 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := play(t, `
	static const __align__(16) int from[4] = {1, 1, 1, 1};
	__shared__ __align__(16) int to[43][3][4];
	copy_async(to[i][0], from, true);
	copy_commit();
	copy_async(to[i][1], from, true);
	copy_commit();
	copy_async(to[i][2], from, true); // of a group that is not closed
	`+tc.wait+`
	p.out[43 * blockIdx.x + i] = (to[i][0][0] == 1) + (to[i][1][3] == 1) + (to[i][2][0] == 1);`, false)
			must(t, err)
			for i, v := range got {
				if v != tc.want {
					t.Fatalf("thread %d: %d copies are there, want %d", i, v, tc.want)
				}
			}
		})
	}
}

// Threads that wait for others which never come fail the launch: here a part of a warp is at the block's barrier and the
// rest at a meeting of the warp.
func TestNeverMet(t *testing.T) {
	for _, backwards := range []bool{false, true} {
		if _, err := play(t, "if (i < 16) __syncthreads(); else p.out[i] = __shfl_sync(0xffffffffu, i, 0);", backwards); err == nil {
			t.Errorf("no error, backwards %v", backwards)
		}
	}
}
