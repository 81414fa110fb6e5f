package cublaslt_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cublaslt"
	"github.com/tokenrouter/tokenrouter/cuda/cublaslt/cublaslttest"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/driver/drivertest"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// bench is a handle on the simulated device with its operands.
type bench struct {
	t      *testing.T
	ctx    *driver.Context
	stream *driver.Stream
	handle *cublaslt.Handle
	ws     cublaslt.Workspace
}

const workspaceBytes = 1024

func newBench(t *testing.T, o cublaslttest.Options) (bench, cublaslttest.Fake, *drivertest.Fake) {
	t.Helper()
	device := drivertest.New(t, drivertest.Options{Devices: 2})
	fake := cublaslttest.New(t, o)
	ctx := device.MustContext(t, 0)
	stream, err := ctx.NewStream(0)
	if err != nil {
		t.Fatal(err)
	}
	lib, err := fake.Load()
	if err != nil {
		t.Fatal(err)
	}
	handle, err := lib.NewHandle(ctx, workspaceBytes)
	if err != nil {
		t.Fatal(err)
	}
	ws, err := ctx.Alloc(workspaceBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(handle.Close(), ctx.Free(ws), stream.Close()); err != nil && !t.Failed() {
			t.Error(err)
		}
	})
	return bench{t, ctx, stream, handle, cublaslt.Workspace{Ptr: ws, Bytes: workspaceBytes}}, fake, device
}

// put copies values to the device, freed at the test's end.
func put[T any](b bench, d tensor.DType, values []T, dims ...int) tensor.View {
	b.t.Helper()
	v := tensor.View{Shape: tensor.Of(dims...), DType: d}
	if len(values) == 0 {
		return v
	}
	p, err := b.ctx.Alloc(uint64(len(driver.Bytes(values))))
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := b.ctx.Free(p); err != nil {
			b.t.Error(err)
		}
	})
	if err := b.ctx.Write(p, driver.Bytes(values)); err != nil {
		b.t.Fatal(err)
	}
	v.Ptr = uint64(p)
	return v
}

func bf16(values []float32) []uint16 {
	out := make([]uint16, len(values))
	for i, v := range values {
		out[i] = uint16(math.Float32bits(v) >> 16) // the tests' values are exact in bf16
	}
	return out
}

// operand is a matrix of small whole numbers, exact in bf16 and in any order of summation.
func operand(rows, cols, seed int) []float32 {
	out := make([]float32, rows*cols)
	for i := range out {
		out[i] = float32((i*7+seed*13)%9 - 4)
	}
	return out
}

// product is out[T, N] = x[T, K] · w[N, K]ᵀ by its definition.
func product(x, w []float32, tokens, n, k int) []float32 {
	out := make([]float32, tokens*n)
	for t := range tokens {
		for i := range n {
			for j := range k {
				out[t*n+i] += x[t*k+j] * w[i*k+j]
			}
		}
	}
	return out
}

func TestMatmul(t *testing.T) {
	b, _, _ := newBench(t, cublaslttest.Options{WorkspaceBytes: 512})
	for _, s := range []struct{ tokens, n, k int }{{1, 1, 1}, {3, 5, 8}, {5, 3, 16}, {1, 32, 7}, {17, 4, 9}} {
		x, w := operand(s.tokens, s.k, 1), operand(s.n, s.k, 2)
		want := product(x, w, s.tokens, s.n, s.k)
		xv, wv := put(b, tensor.BF16, bf16(x), s.tokens, s.k), put(b, tensor.BF16, bf16(w), s.n, s.k)
		single := put(b, tensor.F32, make([]float32, s.tokens*s.n), s.tokens, s.n)
		half := put(b, tensor.BF16, make([]uint16, s.tokens*s.n), s.tokens, s.n)
		err := errors.Join(b.handle.Matmul(b.stream, single, xv, wv, false, b.ws), b.handle.Matmul(b.stream, single, xv, wv, true, b.ws),
			b.handle.Matmul(b.stream, half, xv, wv, false, b.ws), b.stream.Synchronize())
		if err != nil {
			t.Fatal(err)
		}
		got := make([]float32, s.tokens*s.n)
		gotHalf := make([]uint16, s.tokens*s.n)
		if err := errors.Join(b.ctx.Read(driver.Bytes(got), driver.Ptr(single.Ptr)), b.ctx.Read(driver.Bytes(gotHalf), driver.Ptr(half.Ptr))); err != nil {
			t.Fatal(err)
		}
		for i := range want {
			h := math.Float32frombits(uint32(gotHalf[i]) << 16)
			if got[i] != 2*want[i] || math.Abs(float64(h-want[i])) > math.Abs(float64(want[i]))/256 {
				t.Fatalf("%+v element %d: fp32 twice %g, bf16 %g, want %g", s, i, got[i], h, want[i])
			}
		}
	}
}

func TestHeuristicOnce(t *testing.T) {
	b, _, _ := newBench(t, cublaslttest.Options{WorkspaceBytes: 256})
	for range 3 {
		if need, err := b.handle.Prepare(4, 8, 16, tensor.BF16); err != nil || need != 256 {
			t.Fatalf("needs %d, %v", need, err)
		}
	}
	if n := b.handle.Asked(); n != 1 {
		t.Errorf("asked %d times for one shape", n)
	}
	if _, err := b.handle.Prepare(4, 8, 16, tensor.F32); err != nil || b.handle.Asked() != 2 {
		t.Errorf("asked %d times for two shapes, %v", b.handle.Asked(), err)
	}
	for _, bad := range [][3]int{{0, 1, 1}, {1, -1, 1}, {1, 1, 0}} {
		if _, err := b.handle.Prepare(bad[0], bad[1], bad[2], tensor.BF16); !errors.Is(err, tensor.ErrShape) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := b.handle.Prepare(1, 1, 1, tensor.U8); !errors.Is(err, tensor.ErrDType) {
		t.Errorf("u8: %v", err)
	}
}

func TestMatmulRefused(t *testing.T) {
	b, _, _ := newBench(t, cublaslttest.Options{WorkspaceBytes: 512})
	good := func(d tensor.DType, dims ...int) tensor.View {
		return tensor.View{Ptr: 1 << 20, Shape: tensor.Of(dims...), DType: d}
	}
	off := good(tensor.BF16, 2, 8)
	off.Ptr += 8
	tests := []struct {
		name      string
		out, x, w tensor.View
		want      error
	}{
		{"K differs", good(tensor.BF16, 2, 4), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 16), tensor.ErrShape},
		{"N differs", good(tensor.BF16, 2, 5), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 8), tensor.ErrShape},
		{"T differs", good(tensor.BF16, 3, 4), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 8), tensor.ErrShape},
		{"rank", good(tensor.BF16, 8), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 8), tensor.ErrShape},
		{"type of x", good(tensor.BF16, 2, 4), good(tensor.F32, 2, 8), good(tensor.BF16, 4, 8), tensor.ErrDType},
		{"type of out", good(tensor.I32, 2, 4), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 8), tensor.ErrDType},
		{"alignment", good(tensor.BF16, 2, 4), off, good(tensor.BF16, 4, 8), tensor.ErrAlign},
		{"empty weights", good(tensor.BF16, 2, 0), good(tensor.BF16, 2, 8), good(tensor.BF16, 0, 8), tensor.ErrShape},
	}
	for _, tt := range tests {
		if err := b.handle.Matmul(b.stream, tt.out, tt.x, tt.w, false, b.ws); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	none := b.handle.Matmul(b.stream, good(tensor.BF16, 0, 4), good(tensor.BF16, 0, 8), good(tensor.BF16, 4, 8), false, b.ws)
	if none != nil || b.handle.Asked() != 0 {
		t.Errorf("no tokens: %v", none)
	}
	small := cublaslt.Workspace{Ptr: b.ws.Ptr, Bytes: 511}
	err := b.handle.Matmul(b.stream, good(tensor.BF16, 2, 4), good(tensor.BF16, 2, 8), good(tensor.BF16, 4, 8), false, small)
	if !errors.Is(err, cublaslt.ErrWorkspace) {
		t.Errorf("small workspace: %v", err)
	}
}

func TestUnsupported(t *testing.T) {
	b, _, _ := newBench(t, cublaslttest.Options{WorkspaceBytes: workspaceBytes + 1})
	for range 2 {
		if _, err := b.handle.Prepare(1, 8, 8, tensor.BF16); !errors.Is(err, cublaslt.ErrUnsupported) {
			t.Errorf("got %v", err)
		}
	}
	if n := b.handle.Asked(); n != 1 {
		t.Errorf("asked %d times for a shape known to be unsupported", n)
	}
}

func TestLibraryErrors(t *testing.T) {
	b, fake, device := newBench(t, cublaslttest.Options{})
	before := fake.Open()
	for _, function := range []string{"cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatrixLayoutCreate",
		"cublasLtMatmulPreferenceCreate", "cublasLtMatmulAlgoGetHeuristic"} {
		fake.Fail(function, 7)
		var e *cublaslt.Error
		if _, err := b.handle.Prepare(1, 8, 8, tensor.BF16); !errors.As(err, &e) || e.Status != 7 || e.Name != "CUBLAS_STATUS_INVALID_VALUE" {
			t.Errorf("%s: got %v", function, err)
		}
		if fake.Open() != before {
			t.Errorf("%s: %d objects left", function, fake.Open()-before)
		}
	}
	fake.Fail("cublasLtCreate", 1)
	lib, err := fake.Load()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lib.NewHandle(b.ctx, 0); err == nil {
		t.Error("failed creation was accepted")
	}
	fake.Fail("", 0)
	second, err := lib.NewHandle(device.MustContext(t, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	if err := second.Close(); !errors.Is(err, cublaslt.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
	if _, err := second.Prepare(1, 1, 1, tensor.BF16); !errors.Is(err, cublaslt.ErrClosed) {
		t.Errorf("use after close: %v", err)
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[int]string{120900: "12.9.0", 130104: "13.1.4", 110_000: "", 140_000: ""} {
		fake := cublaslttest.New(t, cublaslttest.Options{Version: version})
		lib, err := fake.Load()
		if want == "" {
			if !errors.Is(err, cublaslt.ErrNoLibrary) {
				t.Errorf("%d: %v", version, err)
			}
			continue
		}
		if err != nil || lib.Version() != want {
			t.Errorf("%d: %v", version, err)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	_, err := cublaslt.Load(cublaslt.Options{LibraryPath: "/nonexistent/libcublasLt.so.13"})
	if !errors.Is(err, cublaslt.ErrNoLibrary) || !strings.Contains(err.Error(), "/nonexistent/libcublasLt.so.13") {
		t.Errorf("got %v", err)
	}
	if _, err := cublaslt.Load(cublaslt.Options{LibraryPath: "libc.so.6"}); !errors.Is(err, cublaslt.ErrNoLibrary) {
		t.Errorf("a library without cuBLASLt's functions: %v", err)
	}
}

// The real library, where it is installed: it exports what the table wants and reports its version without a GPU.
func TestLoadHere(t *testing.T) {
	lib, err := cublaslt.Load(cublaslt.Options{})
	if err != nil {
		if !errors.Is(err, cublaslt.ErrNoLibrary) {
			t.Fatalf("got %v", err)
		}
		t.Skipf("cuBLASLt is not installed: %v", err)
	}
	if !strings.HasPrefix(lib.Version(), "12.") && !strings.HasPrefix(lib.Version(), "13.") {
		t.Errorf("version %s of %s", lib.Version(), lib.Path())
	}
	t.Logf("version %s of %s", lib.Version(), lib.Path())
}
