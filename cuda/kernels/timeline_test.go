package kernels

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest/simt"
	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// Every kernel begins with its timer, so that a new one is on timelines too.
func TestEveryKernelIsTimed(t *testing.T) {
	for _, name := range Names() {
		source, err := Source(name)
		if err != nil {
			t.Fatal(err)
		}
		_, kernel, ok := strings.Cut(source, "extern \"C\" __global__")
		_, body, ok2 := strings.Cut(kernel, "{\n")
		if !ok || !ok2 || !strings.HasPrefix(body, "\tTIMELINE_BLOCK;\n") {
			t.Errorf("%s.cu: the kernel's first line is not TIMELINE_BLOCK", name)
		}
		// A function that waits would not find the timer.
		if before, _, _ := strings.Cut(source, "extern \"C\" __global__"); strings.Contains(before, "await_previous();") {
			t.Errorf("%s.cu: await_previous is called outside of the kernel", name)
		}
	}
}

func TestTimelineLayout(t *testing.T) {
	text := Headers()["timeline.cuh"]
	typ := reflect.TypeFor[BlockStamp]()
	members := fields(t, text, "BlockStamp")
	if len(members) != typ.NumField() {
		t.Fatalf("BlockStamp has members %v, Go has %d", members, typ.NumField())
	}
	var b strings.Builder
	b.WriteString("#include \"params.cuh\"\n#ifdef __CUDACC_RTC__\n#define OFFSET(m) __INTADDR__(&((BlockStamp *)0)->m)\n" +
		"#else\n#define OFFSET(m) __builtin_offsetof(BlockStamp, m)\n#endif\n")
	fmt.Fprintf(&b, "static_assert(sizeof(BlockStamp) == %d, \"size\");\n", typ.Size())
	for i, m := range members {
		fmt.Fprintf(&b, "static_assert(OFFSET(%s) == %d, \"%s\");\n", m, typ.Field(i).Offset, m)
	}
	b.WriteString("extern \"C\" __global__ void layout(const __grid_constant__ Patch p) { TIMELINE_BLOCK; }\n")
	for name, builder := range compilers(t) {
		p := nvrtc.Program{Name: "layout.cu", Source: b.String(), Headers: Headers(), Arch: "sm_90a", Defines: defines("TIMELINE", 8)}
		if _, _, err := builder.Build(t.Context(), []nvrtc.Program{p}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// loadCompiler finds NVRTC, or skips.
func loadCompiler(t *testing.T) *nvrtc.Compiler {
	t.Helper()
	c, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC")})
	if errors.Is(err, nvrtc.ErrNoLibrary) {
		t.Skipf("skip: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// oneOfEach are programs of every kernel, one of its variants, and those variants.
func oneOfEach(t *testing.T, d Dims, arch string) ([]nvrtc.Program, []Variant) {
	t.Helper()
	all, err := Programs(d, arch)
	if err != nil {
		t.Fatal(err)
	}
	nets, err := RouterPrograms(arch)
	if err != nil {
		t.Fatal(err)
	}
	var out []nvrtc.Program
	var of []Variant
	variants := append(Variants(d, arch), RouterVariants()...)
	seen := map[string]bool{}
	for i, p := range append(all, nets...) {
		if !seen[p.Name] {
			seen[p.Name] = true
			out, of = append(out, p), append(of, variants[i])
		}
	}
	return out, of
}

// Without TIMELINE the code is what it would be without timers in the source, to the last bit.
func TestNoTimelineIsFree(t *testing.T) {
	c := loadCompiler(t)
	programs, _ := oneOfEach(t, shapes["tiny-s"], "sm_90a")
	for _, p := range programs {
		if name := p.Name; name != "rmsnorm.cu" && name != "gemv.cu" && name != "publish.cu" {
			continue // short ones, for time
		}
		with, err := c.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		p.Source = strings.Replace(p.Source, "\tTIMELINE_BLOCK;\n", "", 1)
		p.Headers = maps.Clone(p.Headers)
		p.Headers["params.cuh"] = strings.Replace(p.Headers["params.cuh"], "#include \"timeline.cuh\"\n", "", 1)
		without, err := c.Compile(p)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(with.Cubin, without.Cubin) {
			t.Errorf("%s: the timer changes the code of normal builds", p.Name)
		}
	}
}

// TestTimelineRegisters compiles every kernel with its timer. As many blocks fit a multiprocessor as without; the timer's own words may
// be spilled.
func TestTimelineRegisters(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for some seconds")
	}
	b, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: loadCompiler(t)})
	if err != nil {
		t.Fatal(err)
	}
	programs, variants := oneOfEach(t, shapes["qwen3-32b"], "sm_90a")
	NewTimeline(nil, nil).stamp(programs)
	start := time.Now()
	binaries, _, err := b.Build(t.Context(), programs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d kernels in %v", len(programs), time.Since(start).Round(time.Second/10))
	for i, p := range programs {
		for _, u := range binaries[i].Usage() {
			t.Logf("%s: %d registers, %d stack, %d + %d spilled", u.Kernel, u.Registers, u.StackBytes, u.SpillStoreBytes, u.SpillLoadBytes)
			if u.SpillStoreBytes > 32 || u.Registers > variants[i].MaxRegisters {
				t.Errorf("%s: with a timer %d registers (limit %d), %d bytes spilled", p.Name, u.Registers, variants[i].MaxRegisters, u.SpillStoreBytes)
			}
		}
	}
}

// timedKernel is a kernel on the emulator with room for so many stamps.
func timedKernel(t *testing.T, ctx *driver.Context, b Builder, line *Timeline, v Variant, room int) *driver.Function {
	t.Helper()
	list, err := programs([]Variant{v}, "sm_80", nil)
	if err != nil {
		t.Fatal(err)
	}
	line.stamp(list)
	list[0].Defines["TIMELINE"] = fmt.Sprint(room)
	images, _, err := b.Build(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ctx.LoadModule(images[0].Cubin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	f, err := m.Function(v.Kernel)
	if err != nil {
		t.Fatal(err)
	}
	if err := line.add(m, f); err != nil {
		t.Fatal(err)
	}
	return f
}

// emulator opens it, or skips.
func emulator(t *testing.T) (*driver.Context, *driver.Stream, Builder) {
	t.Helper()
	c, err := simt.NewCompiler(filepath.Join(os.TempDir(), "trctl-simt"))
	if err != nil {
		t.Skipf("skip: %v", err)
	}
	drv, err := simt.Open()
	if err != nil {
		t.Skipf("skip: %v", err)
	}
	gpu, err := drv.Device(0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := gpu.Retain()
	if err != nil {
		t.Fatal(err)
	}
	st, err := ctx.NewStream(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(st.Close(), ctx.Close()); err != nil {
			t.Error(err)
		}
	})
	return ctx, st, c
}

// Blocks that return at once, a grid of two dimensions, one kernel without a wait, and a buffer that is too small.
func TestTimelineStamps(t *testing.T) {
	ctx, st, b := emulator(t)
	var launches [][2]int
	line := NewTimeline(ctx, func(module, blocks int) { launches = append(launches, [2]int{module, blocks}) })
	gemv := timedKernel(t, ctx, b, line, gemvVariant(1, 0), 100)
	convert := timedKernel(t, ctx, b, line, Variant{Kernel: "convert"}, 4)
	set := &Set{timeline: line}
	mem, err := ctx.Alloc(1 << 16)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := ctx.Free(mem); err != nil {
			t.Error(err)
		}
	}()
	if err := errors.Join(st.Set8(mem, 0, 1<<16), line.Reset(st)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // no tokens: all blocks return after their wait
		p := MatmulParams{Count: mem, W: mem + 256, X: mem + 4096, Y: mem + 8192, N: 20, K: 8, LdY: 20}
		if err := run(set, st, gemv, 3, 4, 128, &p); err != nil {
			t.Fatal(err)
		}
	}
	if err := run(set, st, convert, 6, 1, 256, &ConvertParams{In: mem, Out: mem + 32768, N: 100, From: 1}); err != nil {
		t.Fatal(err)
	}
	if want := [][2]int{{0, 12}, {0, 12}, {1, 6}}; !reflect.DeepEqual(launches, want) {
		t.Errorf("launches %v, want %v", launches, want)
	}
	for module, want := range []struct {
		kernel               string
		blocks, ran, stamped int
	}{{"gemv", 12, 24, 24}, {"convert", 6, 6, 4}} {
		stamps, n, err := line.Read(module)
		if err != nil || n != want.ran || len(stamps) != want.stamped || line.Kernel(module) != want.kernel {
			t.Fatalf("module %d, %s: %d stamps of %d blocks, %v; want %+v", module, line.Kernel(module), len(stamps), n, err, want)
		}
		seen := map[uint32]int{}
		for i, s := range stamps {
			seen[s.Block]++
			if int(s.Blocks) != want.blocks || s.Block >= s.Blocks || s.SM > 3 || s.Ended < s.Began+uint64(s.Waited) || s.Ended-s.Began > uint64(time.Minute) ||
				i > 0 && s.Began < stamps[i-1].Began || module == 1 && s.Waited != 0 {
				t.Errorf("%s: stamp %d is %+v", want.kernel, i, s)
			}
		}
		for block, n := range seen {
			if n != want.ran/want.blocks {
				t.Errorf("%s: block %d has %d stamps", want.kernel, block, n)
			}
		}
	}
	if err := line.Reset(st); err != nil {
		t.Fatal(err)
	}
	if stamps, n, err := line.Read(1); len(stamps) != 0 || n != 0 || err != nil {
		t.Errorf("after a reset %d stamps of %d blocks, %v", len(stamps), n, err)
	}
}

// untimed drops what makes programs note their blocks.
type untimed struct{ Builder }

func (u untimed) Build(ctx context.Context, list []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	for i := range list {
		delete(list[i].Defines, "TIMELINE")
	}
	return u.Builder.Build(ctx, list)
}

// A module without stamps is refused, and a nil Timeline changes no program.
func TestTimelineRefused(t *testing.T) {
	ctx, _, b := emulator(t)
	line := NewTimeline(ctx, func(int, int) {})
	if s, err := LoadTimedRouter(t.Context(), ctx, untimed{b}, line); err == nil || !strings.Contains(err.Error(), "timeline_blocks") {
		t.Errorf("kernels without stamps: error %v (%v)", err, s)
	}
	plain, err := programs([]Variant{{Kernel: "convert"}, gemvVariant(1, 0)}, "sm_80", nil)
	if err != nil {
		t.Fatal(err)
	}
	var none *Timeline
	none.stamp(plain)
	if plain[0].Defines != nil || plain[1].Defines["TIMELINE"] != "" {
		t.Errorf("a nil Timeline defines %v and %v", plain[0].Defines, plain[1].Defines)
	}
	before := nvrtc.KeyOf(plain[1], "")
	line.stamp(plain)
	if plain[0].Defines["TIMELINE"] == "" || nvrtc.KeyOf(plain[1], "") == before {
		t.Error("timed kernels have the keys of others")
	}
}
