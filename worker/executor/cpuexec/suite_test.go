package cpuexec

import (
	"math"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/executortest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestSuite(t *testing.T) {
	trio := func(t *testing.T, c Config) *Executor { return newTrio(t, "tiny-s", c) }
	odd := func(t *testing.T, c Config) *Executor { return newOdd(t, c) }
	family := func(name string) func(*testing.T, Config) *Executor {
		return func(t *testing.T, c Config) *Executor { return newOddFamily(t, name, c) }
	}
	tests := []struct {
		name    string
		open    func(*testing.T, Config) *Executor
		workers int
		kernels kernels
	}{
		{"tiny-s", trio, 1, bestKernels()},
		{"tiny-s with helpers", trio, 3, bestKernels()},
		{"odd sizes", odd, 1, bestKernels()},
		{"plain kernels", odd, 2, goKernels()},
		{"biases", family("qwen2"), 1, bestKernels()},
		{"scaled rotation", family("llama3"), 1, goKernels()},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			executortest.Run(t, func(t *testing.T, o executortest.Options) executor.Executor {
				e := tc.open(t, Config{PageSize: o.PageSize, Pages: o.Pages, MaxSlots: o.MaxSlots,
					MaxTokens: o.MaxTokens, MaxRows: o.MaxRows, MaxContext: o.MaxContext, Workers: tc.workers})
				e.fwd.k = tc.kernels
				// Anything read from a page before it is written shows.
				for i := range e.fwd.kv {
					e.fwd.kv[i] = float32(math.NaN())
				}
				return e
			}, 0)
		})
	}
}
