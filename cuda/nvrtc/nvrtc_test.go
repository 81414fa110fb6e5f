package nvrtc

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/internal/dynlib"
)

// compilers opens every NVRTC of the machine, one for each major version, or skips the test.
func compilers(t testing.TB) []*Compiler {
	t.Helper()
	var out []*Compiler
	var reason error
	for _, major := range []int{13, 12} {
		for _, path := range dynlib.Candidates("", []string{"libnvrtc.so.13", "libnvrtc.so.12"}[13-major]) {
			c, err := Load(Options{LibraryPath: path})
			if err != nil {
				reason = err
				continue
			}
			out = append(out, c)
			break
		}
	}
	if len(out) == 0 {
		t.Skipf("NVRTC is not installed: %v", reason)
	}
	return out
}

const addSource = `
#include "add.cuh"
extern "C" __global__ void add(const __grid_constant__ AddParams p) {
	int i = blockIdx.x * blockDim.x + threadIdx.x;
	if (i < p.n) p.out[i] = SCALE * (p.a[i] + p.b[i]);
}
`

const addHeader = `
struct AddParams { const float *a, *b; float *out; int n; };
static_assert(sizeof(AddParams) == 32, "layout");
`

func addProgram() Program {
	return Program{
		Name: "add.cu", Source: addSource, Headers: map[string]string{"add.cuh": addHeader}, Arch: "sm_90a",
		Defines: map[string]string{"SCALE": "2.0f"},
	}
}

func TestLoadMissing(t *testing.T) {
	_, err := Load(Options{LibraryPath: "/nonexistent/libnvrtc.so.12"})
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "/nonexistent/libnvrtc.so.12") {
		t.Errorf("got %v", err)
	}
	if _, err := Load(Options{LibraryPath: "libc.so.6"}); !errors.Is(err, ErrNoLibrary) {
		t.Errorf("a library without NVRTC's functions: got %v", err)
	}
}

func TestCompile(t *testing.T) {
	for _, c := range compilers(t) {
		t.Run(c.Version(), func(t *testing.T) {
			archs, err := c.Archs()
			if err != nil || !slices.Contains(archs, 90) || !slices.Contains(archs, 80) {
				t.Errorf("archs %v, %v", archs, err)
			}
			for _, arch := range []string{"sm_80", "sm_90", "sm_90a"} {
				p := addProgram()
				p.Arch = arch
				b, err := c.Compile(p)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.HasPrefix(b.Cubin, []byte("\x7fELF")) || !bytes.Contains(b.Cubin, []byte("add")) {
					t.Errorf("%s: %d bytes that are no cubin of add", arch, len(b.Cubin))
				}
				u := b.Usage()
				if len(u) != 1 || u[0].Kernel != "add" || u[0].Registers == 0 || u[0].SpillStoreBytes != 0 {
					t.Errorf("%s: usage %+v of log %q", arch, u, b.Log)
				}
				if image := cubinUsage(b.Cubin); !slices.Equal(image, u) {
					t.Errorf("%s: the image says %+v, the log %+v", arch, image, u)
				}
			}
		})
	}
}

// What the image says of stack and shared memory agrees with the log, for two kernels in one image.
func TestUsageOfImage(t *testing.T) {
	const deep = `extern "C" __global__ void deep(float *x, int n) {
	__shared__ float s[100];
	float l[40];
	for (int i = 0; i < 40; i++) l[(i * n) % 40] = x[i * n];
	s[threadIdx.x] = l[threadIdx.x % 40];
	__syncthreads();
	x[0] = s[n];
}`
	for _, c := range compilers(t) {
		for arch, reserved := range map[string]int{"sm_80": 0, "sm_90a": 1024} {
			p := addProgram()
			p.Arch, p.Source = arch, p.Source+deep
			b, err := c.Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			want := b.logUsage()
			slices.SortFunc(want, func(a, b Usage) int { return strings.Compare(a.Kernel, b.Kernel) })
			want[1].SharedBytes += reserved
			got := cubinUsage(b.Cubin)
			if !slices.Equal(got, want) {
				t.Errorf("%s %s: the image says %+v, the log %+v", c.Version(), arch, got, want)
			}
			if b.Log = ""; !slices.Equal(b.Usage(), got) {
				t.Errorf("%s %s: without a log: %+v", c.Version(), arch, b.Usage())
			}
		}
	}
}

func FuzzUsageOfImage(f *testing.F) {
	f.Add([]byte("\x7fELF\x02\x01\x81"))
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, image []byte) { cubinUsage(image) })
}

func TestCompileErrors(t *testing.T) {
	for _, c := range compilers(t) {
		tests := []struct {
			name   string
			change func(*Program)
			want   string
		}{
			{"syntax", func(p *Program) { p.Source += "int f( {" }, "error"},
			{"missing header", func(p *Program) { p.Headers = nil }, "add.cuh"},
			{"missing macro", func(p *Program) { p.Defines = nil }, "SCALE"},
			{"failed assertion", func(p *Program) { p.Source += `static_assert(sizeof(AddParams) == 1, "bad layout");` }, "bad layout"},
			{"unknown option", func(p *Program) { p.Options = []string{"--no-such-option"} }, "no-such-option"},
		}
		for _, tt := range tests {
			p := addProgram()
			tt.change(&p)
			_, err := c.Compile(p)
			var e *CompileError
			if !errors.As(err, &e) || !strings.Contains(e.Log, tt.want) || !strings.Contains(err.Error(), "add.cu") {
				t.Errorf("%s %s: got %v", c.Version(), tt.name, err)
			}
		}
	}
}

func TestProgramCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Program)
	}{
		{"no name", func(p *Program) { p.Name = "" }},
		{"no source", func(p *Program) { p.Source = "" }},
		{"no arch", func(p *Program) { p.Arch = "" }},
		{"virtual arch", func(p *Program) { p.Arch = "compute_90" }},
		{"arch with option", func(p *Program) { p.Arch = "sm_90 -lineinfo" }},
		{"zero byte in source", func(p *Program) { p.Source += "\x00" }},
		{"zero byte in header", func(p *Program) { p.Headers = map[string]string{"h": "\x00"} }},
		{"zero byte in option", func(p *Program) { p.Options = []string{"-a\x00"} }},
		{"macro with value in its name", func(p *Program) { p.Defines = map[string]string{"A=1": ""} }},
		{"too much text", func(p *Program) { p.Headers = map[string]string{"h": strings.Repeat(" ", maxText)} }},
	}
	for _, tt := range tests {
		p := addProgram()
		tt.change(&p)
		if err := p.check(); !errors.Is(err, ErrProgram) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
	for _, arch := range []string{"sm_80", "sm_90a", "sm_100f", "sm_120"} {
		p := addProgram()
		p.Arch = arch
		if err := p.check(); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
	}
}

func TestUsage(t *testing.T) {
	b := Binary{Log: `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first' for 'sm_90a'
ptxas info    : Function properties for first
    8 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 8 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compiling entry function 'second' for 'sm_90a'
ptxas info    : Used 8 registers
`}
	want := []Usage{
		{Kernel: "first", Registers: 64, StackBytes: 8, SpillStoreBytes: 16, SpillLoadBytes: 24, SharedBytes: 4096},
		{Kernel: "second", Registers: 8},
	}
	if got := b.Usage(); !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
	if got := (Binary{}).Usage(); len(got) != 0 {
		t.Errorf("empty log: %+v", got)
	}
}

func TestBuilder(t *testing.T) {
	c := compilers(t)[0]
	cache, err := OpenCache(CacheConfig{Dir: filepath.Join(t.TempDir(), "cubins")})
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBuilder(BuilderConfig{Compiler: c, Cache: cache, Parallel: 2})
	if err != nil {
		t.Fatal(err)
	}
	programs := make([]Program, 3)
	for i := range programs {
		programs[i] = addProgram()
		programs[i].Defines = map[string]string{"SCALE": []string{"1.0f", "2.0f", "3.0f"}[i]}
	}
	first, stats, err := b.Build(t.Context(), programs)
	if err != nil || stats != (BuildStats{Compiled: 3, Stored: 3}) {
		t.Fatalf("%+v, %v", stats, err)
	}
	second, stats, err := b.Build(t.Context(), programs)
	if err != nil || stats != (BuildStats{Cached: 3}) {
		t.Fatalf("%+v, %v", stats, err)
	}
	for i := range first {
		if !bytes.Equal(first[i].Cubin, second[i].Cubin) || first[i].Log != second[i].Log {
			t.Errorf("program %d differs from the cache", i)
		}
	}
	// Without the library the cache alone serves, and says what it lacks.
	cacheOnly, err := NewBuilder(BuilderConfig{Cache: cache})
	if err != nil {
		t.Fatal(err)
	}
	if _, stats, err := cacheOnly.Build(t.Context(), programs); err != nil || stats.Cached != 3 {
		t.Errorf("%+v, %v", stats, err)
	}
	other := addProgram()
	other.Arch = "sm_80"
	if _, _, err := cacheOnly.Build(t.Context(), []Program{other}); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "sm_80") {
		t.Errorf("got %v", err)
	}
	// All mistakes are reported, not only the first.
	bad := []Program{addProgram(), addProgram(), addProgram()}
	bad[0].Source, bad[2].Source = "first mistake", "third mistake"
	_, _, err = b.Build(t.Context(), bad)
	if err == nil || !strings.Contains(err.Error(), "first") || !strings.Contains(err.Error(), "third") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("stop")
	cancel(stop)
	if _, _, err := b.Build(ctx, programs); !errors.Is(err, stop) {
		t.Errorf("got %v", err)
	}
}

func TestNewBuilderNeedsSomething(t *testing.T) {
	cache, err := OpenCache(CacheConfig{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	for _, cfg := range []BuilderConfig{{}, {Cache: cache}} {
		if _, err := NewBuilder(cfg); !errors.Is(err, ErrNoLibrary) {
			t.Errorf("%+v: got %v", cfg, err)
		}
	}
}
