package cudaexec

import (
	"os"
	"testing"

	"github.com/tokenrouter/tokenrouter/cuda/cudatest"
	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/executortest"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// trioVocab is the number of real ids of the trio.
const trioVocab = 749

// trio are the embedded models. Tests read them as files, so that the test's binary is small enough to carry about.
func trio() []string { return []string{"tiny-s", "tiny-m", "tiny-l"} }

// openTrio opens one of them.
func openTrio(tb testing.TB, name string) *model.Checkpoint {
	tb.Helper()
	k, err := model.OpenDir("../../../models/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := k.Close(); err != nil {
			tb.Error(err)
		}
	})
	return k
}

// oddConfig is a small shape with awkward sizes: a group of three, an own head, a hidden size that is not a power of two.
func oddConfig() model.Config {
	return model.Config{
		Architecture: model.Qwen3, VocabSize: 101, Hidden: 72, Layers: 2, Heads: 6, KVHeads: 2, HeadDim: 64, FFN: 200, MaxContext: 512,
		RopeTheta: 1e4, NormEps: 1e-6,
	}
}

// openTest opens the test's device: a GPU or the emulator.
func openTest(tb testing.TB) (*Device, *cudatest.Device) {
	tb.Helper()
	t := cudatest.Open(tb)
	d, err := NewDevice(t.Context, t.Builder, t.Blas)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := d.Close(); err != nil {
			tb.Error(err)
		}
	})
	return d, t
}

// build makes an executor that the test shuts down. With TRCTL_TEST_BLOCK in the environment it waits after each
// operation, so that a device fault names the kernel.
func build(tb testing.TB, d *Device, c Config, src Source) *Executor {
	tb.Helper()
	c.BlockEachOp = c.BlockEachOp || os.Getenv("TRCTL_TEST_BLOCK") != ""
	e, err := New(tb.Context(), c, d, src)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Shutdown(); err != nil {
			tb.Error(err)
		}
	})
	return e
}

func TestSuite(t *testing.T) {
	named := func(name string) func(testing.TB) (Source, int) {
		return func(tb testing.TB) (Source, int) { return Checkpoint(openTrio(tb, name)), trioVocab }
	}
	odd := func(testing.TB) (Source, int) { return Dummy("odd", oddConfig(), 5), 99 }
	tests := []struct {
		name         string
		open         func(testing.TB) (Source, int)
		reproducible bool
		tolerance    float64
		gpuOnly      bool // too slow for the emulator, or nothing new there
	}{
		{"tiny-s", named("tiny-s"), false, 2e-2, true},
		{"odd", odd, true, 0, false},
		{"tiny-s, reproducible", named("tiny-s"), true, 0, true},
		{"tiny-m", named("tiny-m"), false, 2e-2, true},
		{"tiny-l", named("tiny-l"), false, 2e-2, true},
		{"tiny-l, reproducible", named("tiny-l"), true, 0, true},
		{"odd, fast", odd, false, 2e-2, true}, // the emulator takes these products in TestGolden and TestGraphsAreEager
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if _, dev := openTest(t); dev.Simulated && (tc.gpuOnly || testing.Short()) {
				t.Skip("skip: no CUDA driver, and the emulator is too slow for this")
			}
			executortest.Run(t, func(t *testing.T, o executortest.Options) executor.Executor {
				d, _ := openTest(t)
				src, vocab := tc.open(t)
				return build(t, d, Config{
					Vocab: vocab, PageSize: o.PageSize, Pages: o.Pages, MaxSlots: o.MaxSlots, MaxTokens: o.MaxTokens, MaxRows: o.MaxRows,
					MaxContext: o.MaxContext, Partials: 64, Poison: true, Reproducible: tc.reproducible,
				}, src)
			}, tc.tolerance)
		})
	}
}
