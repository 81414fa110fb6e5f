package kernels

import (
	"context"
	"errors"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// recorder counts what it is asked to build.
type recorder struct {
	programs []nvrtc.Program
	err      error
}

func (r *recorder) Build(_ context.Context, programs []nvrtc.Program) ([]nvrtc.Binary, nvrtc.BuildStats, error) {
	r.programs = append(r.programs, programs...)
	return make([]nvrtc.Binary, len(programs)), nvrtc.BuildStats{Compiled: len(programs), Stored: len(programs)}, r.err
}

func TestPrebuild(t *testing.T) {
	small, large := shapes["qwen3-0.6b"], shapes["qwen3-32b"]
	var r recorder
	calls := 0
	stats, err := Prebuild(t.Context(), &r, []string{"sm_80", "sm_90a"}, []Dims{small, large, small}, func(done, total int) {
		if calls++; done != calls || total != 6 {
			t.Errorf("progress %d of %d", done, total)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, arch := range []string{"sm_80", "sm_90a"} {
		any := len(anyModel(arch))
		want += 2*(len(Variants(small, arch))-any) + any + len(RouterVariants())
	}
	if len(r.programs) != want || stats.Compiled != want || stats.Stored != want {
		t.Errorf("%d programs, stats %+v, want %d", len(r.programs), stats, want)
	}
	seen := map[nvrtc.Key]bool{}
	for _, p := range r.programs {
		key := nvrtc.KeyOf(p, "")
		if seen[key] {
			t.Errorf("%s for %s twice", p.Name, p.Arch)
		}
		seen[key] = true
	}
	r.err = errors.New("refused")
	if _, err := Prebuild(t.Context(), &r, []string{"sm_80"}, []Dims{small}, nil); !errors.Is(err, r.err) {
		t.Errorf("error %v", err)
	}
	if _, err := Prebuild(t.Context(), &r, []string{"sm_80"}, []Dims{{}}, nil); !errors.Is(err, ErrDims) {
		t.Errorf("error %v, want ErrDims", err)
	}
}
