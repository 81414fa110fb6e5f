package executortest

import (
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor"
)

// Options are the limits that a test needs. Tests never rely on a limit being
// larger than they asked for.
type Options struct {
	PageSize   int // 16 or 64
	Pages      int
	MaxSlots   int
	MaxTokens  int
	MaxRows    int
	MaxContext int
}

// New builds an executor with the given limits. Every call must load the same
// weights. The constructor registers Shutdown with t.Cleanup; calling Shutdown
// twice must be harmless.
type New func(t *testing.T, o Options) executor.Executor

// standard are the limits of most tests.
func standard() Options {
	return Options{PageSize: 16, Pages: 64, MaxSlots: 4, MaxTokens: 128, MaxRows: 4, MaxContext: 256}
}

// suite is one run of all tests.
type suite struct {
	newExec New
	// tolerance bounds ‖a−b‖/‖b‖ of logits and hidden vectors that must agree; 0
	// asks for equality to the last bit.
	tolerance float64
}

// Run runs all tests. tolerance is 0 for an executor whose results do not depend
// on batch, chunking and page size to the last bit, else the relative distance
// up to which logits may differ.
func Run(t *testing.T, newExec New, tolerance float64) {
	s := &suite{newExec, tolerance}
	tests := []struct {
		name string
		run  func(*testing.T)
	}{
		{"reports its limits", s.limits},
		{"chunked prefill and decode equal prefill", s.chunking},
		{"a row alone equals the row in a batch", s.neighbours},
		{"page size leaves no trace", s.pageSize},
		{"truncate and redo equals straight on", s.truncate},
		{"several sampled positions equal one at a time", s.severalSampled},
		{"a step without samples reports nothing", s.noSample},
		{"slots run out and come back", s.slots},
		{"a reused slot starts empty", s.reusedSlot},
		{"bad batches are refused and change nothing", s.badBatches},
		{"truncate checks its arguments", s.badTruncate},
		{"padded vocabulary is never sampled", s.padding},
		{"seeds reproduce", s.seeds},
		{"draws follow the recipe", s.recipe},
		{"penalties, bias and banned ids follow the recipe", s.adjusts},
		{"penalties forget what was cut", s.redone},
		{"mixtures follow the recipe", s.mixtures},
		{"mixtures are checked", s.badMixtures},
		{"what is not offered is refused", s.refusals},
		{"given ids are scored", s.given},
		{"given ids are checked", s.badGiven},
		{"adopted pages equal computed ones", s.adopts},
		{"adopted ids count for penalties", s.adoptsCounted},
		{"adoption is checked", s.badAdoptions},
		{"features agree with the logits", s.features},
		{"wait honours its context", s.waitContext},
		{"depth is a limit", s.depth},
		{"stats count", s.stats},
		{"shutdown closes", s.shutdown},
	}
	for _, tc := range tests {
		t.Run(tc.name, tc.run)
	}
}
