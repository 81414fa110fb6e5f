package kernels

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest/simt"
	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// shared maps the structs of params.cuh to Go's.
var shared = map[string]any{
	"StepHead": StepHead{}, "Patch": Patch{}, "AttnItem": AttnItem{}, "Sample": Sample{}, "Adjust": Adjust{}, "AdjustParams": AdjustParams{},
	"Stat": Stat{}, "TopEntry": TopEntry{}, "PrepParams": PrepParams{}, "EmbedParams": EmbedParams{},
	"RmsnormParams": RmsnormParams{}, "QkvpostParams": QkvpostParams{}, "HeadsParams": HeadsParams{}, "AttnParams": AttnParams{},
	"LogitPart": LogitPart{}, "LogitpartParams": LogitpartParams{}, "MatmulParams": MatmulParams{}, "SilumulParams": SilumulParams{},
	"LogitstatsParams": LogitstatsParams{}, "SampleParams": SampleParams{},
	"PublishParams": PublishParams{}, "HashfillParams": HashfillParams{}, "ConvertParams": ConvertParams{},
}

// fields lists the members of a struct of params.cuh in order.
func fields(t *testing.T, text, name string) []string {
	t.Helper()
	_, body, ok := strings.Cut(text, "struct "+name+" {")
	if !ok {
		t.Fatalf("params.cuh has no struct %s", name)
	}
	body, _, _ = strings.Cut(body, "};")
	var out []string
	for line := range strings.Lines(body) {
		line, _, _ = strings.Cut(line, "//")
		for decl := range strings.SplitSeq(line, ";") {
			for i, part := range strings.Split(decl, ",") {
				words := strings.Fields(strings.ReplaceAll(part, "*", " "))
				if len(words) == 0 {
					continue
				}
				if i == 0 && len(words) < 2 {
					t.Fatalf("%s: cannot read %q", name, decl)
				}
				out = append(out, words[len(words)-1])
			}
		}
	}
	return out
}

// layoutSource makes a program that compiles only if both layouts agree.
func layoutSource(t *testing.T) string {
	t.Helper()
	text := Headers()["params.cuh"]
	var b strings.Builder
	b.WriteString("#include \"params.cuh\"\n#ifdef __CUDACC_RTC__\n#define OFFSET(t, m) __INTADDR__(&((t *)0)->m)\n" +
		"#else\n#define OFFSET(t, m) __builtin_offsetof(t, m)\n#endif\n")
	for name, value := range shared {
		typ := reflect.TypeOf(value)
		fmt.Fprintf(&b, "static_assert(sizeof(%s) == %d, \"size of %s\");\n", name, typ.Size(), name)
		members := fields(t, text, name)
		if len(members) != typ.NumField() {
			t.Fatalf("%s has members %v, Go has %d", name, members, typ.NumField())
		}
		for i, m := range members {
			fmt.Fprintf(&b, "static_assert(OFFSET(%s, %s) == %d, \"%s.%s is not at Go's %s\");\n",
				name, m, typ.Field(i).Offset, name, m, typ.Field(i).Name)
		}
	}
	b.WriteString("extern \"C\" __global__ void layout(const __grid_constant__ Patch p) {}\n")
	return b.String()
}

// compilers lists what can compile here: the emulator's compiler and NVRTC.
func compilers(t *testing.T) map[string]Builder {
	t.Helper()
	out := map[string]Builder{}
	if c, err := simt.NewCompiler(filepath.Join(os.TempDir(), "trctl-simt")); err == nil {
		out["emulator"] = c
	}
	if c, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC")}); err == nil {
		b, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: c})
		if err != nil {
			t.Fatal(err)
		}
		out["nvrtc "+c.Version()] = b
	} else if !errors.Is(err, nvrtc.ErrNoLibrary) {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Skip("skip: no NVRTC and no C++ compiler")
	}
	return out
}

func TestLayoutAgrees(t *testing.T) {
	source := layoutSource(t)
	for name, b := range compilers(t) {
		p := nvrtc.Program{Name: "layout.cu", Source: source, Headers: Headers(), Arch: "sm_80"}
		if _, _, err := b.Build(t.Context(), []nvrtc.Program{p}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		p.Source = strings.Replace(source, "sizeof(StepHead) == ", "sizeof(StepHead) == 1", 1)
		if _, _, err := b.Build(t.Context(), []nvrtc.Program{p}); err == nil {
			t.Errorf("%s: a wrong size compiled", name)
		}
	}
}
