package kernels

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// shapes are the models whose kernels CI compiles: the trio, the ends of the Qwen3 family, and odd groups.
var shapes = map[string]Dims{
	"tiny-s":       {128, 256, 2, 1, 64, 16, 749},
	"tiny-m":       {192, 576, 3, 1, 64, 64, 749},
	"tiny-l":       {256, 768, 4, 2, 64, 32, 749},
	"qwen3-0.6b":   {1024, 3072, 16, 8, 128, 64, 151669},
	"qwen3-4b":     {2560, 9728, 32, 8, 128, 64, 151669},
	"qwen3-32b":    {5120, 25600, 64, 8, 128, 64, 151669},
	"qwen2.5-1.5b": {1536, 8960, 12, 2, 128, 16, 151665},
}

// TestNoSpills compiles every variant for both generations and bounds what each uses.
func TestNoSpills(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles for a minute")
	}
	c, err := nvrtc.Load(nvrtc.Options{LibraryPath: os.Getenv("TRCTL_NVRTC")})
	if errors.Is(err, nvrtc.ErrNoLibrary) {
		t.Skipf("skip: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := nvrtc.NewBuilder(nvrtc.BuilderConfig{Compiler: c})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("NVRTC %s, %s", c.Version(), c.Path())
	for _, arch := range []string{"sm_80", "sm_90a"} {
		compiled := map[string]bool{} // variants of all models, once
		for model, d := range shapes {
			var variants []Variant
			for _, v := range Variants(d, arch) {
				if name := fmt.Sprint(v); !compiled[name] {
					compiled[name] = true
					variants = append(variants, v)
				}
			}
			programs, err := programs(variants, arch, nil)
			if err != nil {
				t.Fatal(err)
			}
			binaries, _, err := b.Build(t.Context(), programs)
			if err != nil {
				t.Fatal(err)
			}
			for i, v := range variants {
				usage := binaries[i].Usage()
				if len(usage) != 1 || usage[0].Kernel != v.Kernel || usage[0].Registers == 0 {
					t.Fatalf("%s for %s: the compiler's log does not tell what it uses: %q", v.Kernel, arch, binaries[i].Log)
				}
				u := usage[0]
				stack := 0
				if v.Kernel == "attn" { // two struct Total, on purpose
					stack = 544
				}
				if u.StackBytes > stack || u.SpillLoadBytes+u.SpillStoreBytes > 0 || u.Registers > v.MaxRegisters {
					t.Errorf("%s %s %v %s: %d registers (limit %d), %d stack, %d + %d spilled", model, v.Kernel, v.Defines, arch,
						u.Registers, v.MaxRegisters, u.StackBytes, u.SpillStoreBytes, u.SpillLoadBytes)
				}
				limit := 48 << 10
				if arch == "sm_90a" {
					limit += 1 << 10 // the image's number includes what the system reserves; that of sm_80 does not
				}
				if u.SharedBytes > limit {
					t.Errorf("%s %s: %d bytes of static shared memory", model, v.Kernel, u.SharedBytes)
				}
			}
		}
	}
}

func TestDimsCheck(t *testing.T) {
	good := shapes["qwen3-0.6b"]
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Dims){
		"hidden":    func(d *Dims) { d.Hidden = 1020 },
		"ffn":       func(d *Dims) { d.FFN = 0 },
		"head size": func(d *Dims) { d.HeadDim = 96 },
		"group":     func(d *Dims) { d.Heads, d.KVHeads = 18, 2 },
		"ratio":     func(d *Dims) { d.KVHeads = 3 },
		"page":      func(d *Dims) { d.PageSize = 4 },
		"vocab":     func(d *Dims) { d.Vocab = 0 },
	} {
		d := good
		change(&d)
		if err := d.Check(); !errors.Is(err, ErrDims) {
			t.Errorf("%s: %v, want ErrDims", name, err)
		}
	}
}

func TestSources(t *testing.T) {
	names := map[string]bool{}
	for _, v := range append(Variants(shapes["tiny-s"], "sm_90a"), RouterVariants()...) {
		names[v.Kernel] = true
	}
	for _, n := range Names() {
		if !names[n] {
			t.Errorf("kernel %s is in no variant", n)
		}
	}
	if _, err := Source("absent"); err == nil {
		t.Error("an absent kernel has a source")
	}
}
