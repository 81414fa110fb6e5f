package cpuexec

import (
	"fmt"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/executortest"
)

func TestSuite(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("workers=%d", workers), func(t *testing.T) {
			executortest.Run(t, func(t *testing.T, o executortest.Options) executor.Executor {
				return newTrio(t, "tiny-s", Config{PageSize: o.PageSize, Pages: o.Pages, MaxSlots: o.MaxSlots,
					MaxTokens: o.MaxTokens, MaxRows: o.MaxRows, MaxContext: o.MaxContext, Workers: workers})
			}, 0)
		})
	}
}
