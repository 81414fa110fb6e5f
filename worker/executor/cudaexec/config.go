package cudaexec

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// Config are the limits of an executor. Zero fields take the default in brackets.
type Config struct {
	// Name is the served name [the source's].
	Name string
	// Vocab is the number of real ids, from the tokenizer; for a dummy model the config's vocab_size. Required.
	Vocab int
	// PageSize is the token slots in a page [64], a multiple of 8.
	PageSize int
	// Pages is the size of the pool [what fits MemoryBytes, at most enough for MaxSlots sequences of MaxContext]. A
	// number that does not fit is refused, unless Shrink allows fewer.
	Pages      int
	Shrink     bool
	MaxSlots   int // sequences open at a time [64]
	MaxTokens  int // tokens in one step [2048]
	MaxRows    int // rows in one step [MaxSlots]
	MaxContext int // positions in one sequence [the model's]
	// MemoryBytes is the device memory that this model may take, all uses together [9/10 of what is free].
	MemoryBytes int64
	// Partials bounds the attention chunks that are spread over blocks in one step [2048].
	Partials int
	// Depth is the number of steps in flight at a time [1]. With 2 the next step can be launched before the results of one are
	// known (step.Row.Continue).
	Depth int
	// HeadStart is how many layers the first of a step's graphs has; the others are launched while they run [1 of a large
	// model, all of a small one]. Results are the same to the last bit.
	HeadStart int
	// Eager launches each kernel of a step on its own instead of replaying CUDA graphs, and NoOverlap keeps a kernel from
	// starting while the one before it ends. Both are for comparisons; results are the same to the last bit.
	Eager, NoOverlap bool
	// Timeline has each block of the kernels note when it runs, for Executor.Timeline. They take three registers more, the kernels are
	// compiled anew, and each takes 16 MiB of device memory. Results are the same to the last bit.
	Timeline bool
	// Products says what multiplies matrices, for comparisons.
	Products Products
	// Reproducible trades speed for results that do not depend on the batch to the last bit.
	Reproducible bool
	// Priority is the stream's: smaller is more urgent [0].
	Priority int
	// Nets are the router nets that score sampled positions [none].
	Nets []*router.Net
	// Poison fills unwritten pages and activations with NaN before use, and BlockEachOp waits after each operation so
	// that an error names it. For tests and for finding a fault.
	Poison, BlockEachOp bool
	// BlockSteps is BlockEachOp for the first steps alone: for the first run after a fault whose operation is not known.
	BlockSteps int
	// Progress is told how many bytes of weights are on the device; it may be called from several goroutines. May be nil.
	Progress func(done, total int64)
	// Logger hears of a pool that was made smaller than asked for. May be nil.
	Logger *slog.Logger
}

// Products is a choice of kernels for the matrix products.
type Products int

const (
	// ProductsAuto takes for each size what is fastest.
	ProductsAuto Products = iota
	// ProductsLibrary takes cuBLASLt for all.
	ProductsLibrary
	// ProductsOwn takes slim, and panel or tile, for all.
	ProductsOwn
	// ProductsBand is ProductsAuto with band for one and two tokens too, ProductsSlim without band.
	ProductsBand
	ProductsSlim
)

// ErrConfig says that a Config cannot work with its model.
var ErrConfig = errors.New("cudaexec: bad configuration")

// Bounds of Config, so that a wrong unit or sign fails with a clear message.
const (
	maxPageSize = 4096
	maxPages    = 1 << 24 // a page's first slot number stays below 2^31
	maxSlots    = 1 << 16
	maxTokens   = 1 << 16 // the largest grid in y
	maxPartials = 1 << 16
	maxDepth    = 2
)

// headRows is the number of sampled positions that pass through the output head at a time.
const headRows = 64

// withDefaults fills zero fields except Pages and MemoryBytes, which the plan settles, and checks all.
func (c Config) withDefaults(m *model.Config, name string) (Config, error) {
	if c.Name == "" {
		c.Name = name
	}
	fill := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	fill(&c.PageSize, 64)
	fill(&c.MaxSlots, 64)
	fill(&c.MaxTokens, 2048)
	fill(&c.MaxRows, c.MaxSlots)
	fill(&c.MaxContext, m.MaxContext)
	fill(&c.Partials, 2048)
	fill(&c.Depth, 1)
	for _, k := range []struct {
		field     string
		found, to int
	}{
		{"Vocab", c.Vocab, m.VocabSize},
		{"PageSize", c.PageSize, maxPageSize},
		{"MaxSlots", c.MaxSlots, maxSlots},
		{"MaxTokens", c.MaxTokens, maxTokens - headRows},
		{"MaxRows", c.MaxRows, maxSlots},
		{"MaxContext", c.MaxContext, m.MaxContext},
		{"Partials", c.Partials, maxPartials},
		{"Depth", c.Depth, maxDepth},
	} {
		if k.found < 1 || k.found > k.to {
			return c, fmt.Errorf("%w: %s: expected 1 to %d, found %d", ErrConfig, k.field, k.to, k.found)
		}
	}
	if c.Pages < 0 || c.Pages > maxPages || c.Pages*c.PageSize > 1<<31-1 {
		return c, fmt.Errorf("%w: Pages: expected 0 to %d, found %d", ErrConfig, min(maxPages, (1<<31-1)/c.PageSize), c.Pages)
	}
	if c.MemoryBytes < 0 {
		return c, fmt.Errorf("%w: MemoryBytes: expected at least 0, found %d", ErrConfig, c.MemoryBytes)
	}
	if err := checkNets(c.Nets, m, c.Vocab); err != nil {
		return c, err
	}
	if c.HeadStart < 0 {
		return c, fmt.Errorf("%w: HeadStart: expected at least 0, found %d", ErrConfig, c.HeadStart)
	}
	if c.Products < ProductsAuto || c.Products > ProductsSlim {
		return c, fmt.Errorf("%w: Products: %d", ErrConfig, c.Products)
	}
	if err := dims(&c, m).Check(); err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

// dims are the dimensions that kernels are compiled for.
func dims(c *Config, m *model.Config) kernels.Dims {
	return kernels.Dims{
		Hidden: m.Hidden, FFN: m.FFN, Heads: m.Heads, KVHeads: m.KVHeads, HeadDim: m.HeadDim, PageSize: c.PageSize, Vocab: c.Vocab,
	}
}

// pagesFor returns how many pages hold n positions.
func pagesFor(n, page int) int { return (n + page - 1) / page }

// roundUp rounds n up to a multiple of m.
func roundUp(n, m int) int { return (n + m - 1) / m * m }
