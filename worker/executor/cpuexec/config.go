package cpuexec

import (
	"errors"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/router"
)

// ErrConfig says that a Config cannot work with its model, ErrMemory that the
// machine does not give the pool's address space.
var (
	ErrConfig = errors.New("cpuexec: bad configuration")
	ErrMemory = errors.New("cpuexec: not enough memory")
)

// Config are the limits of an executor. Zero fields take the default in brackets.
type Config struct {
	// Name is the served name [the checkpoint's].
	Name string
	// Vocab is the number of real ids, from the tokenizer. Required: rows of the
	// head above it are padding and are not even computed.
	Vocab int
	// PageSize is the token slots in a page [64].
	PageSize int
	// Pages is the size of the pool [enough for MaxSlots sequences of MaxContext].
	// A page takes memory once it is first written.
	Pages     int
	MaxSlots  int // sequences open at a time [64]
	MaxTokens int // tokens in one step [512]
	MaxRows   int // rows in one step [MaxSlots]
	// MaxContext is the positions in one sequence [the model's]. More than the
	// model was trained for is refused.
	MaxContext int
	// Workers is the goroutines that compute, at least 1 [1].
	Workers int
	// Nets are the router nets that score sampled positions [none].
	Nets []*router.Net
}

// Bounds of Config, so that a wrong unit or sign fails with a clear message.
const (
	maxPageSize = 4096
	maxPages    = 1 << 28
	maxSlots    = 1 << 16
	maxTokens   = 1 << 16
	maxWorkers  = 1024
	maxPool     = 1 << 45 // floats
)

// withDefaults fills zero fields and checks all.
func (c Config) withDefaults(m *model.Checkpoint) (Config, error) {
	mc := &m.Config
	if c.Name == "" {
		c.Name = m.Name
	}
	fill := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	fill(&c.PageSize, 64)
	fill(&c.MaxSlots, 64)
	fill(&c.MaxTokens, 512)
	fill(&c.MaxRows, c.MaxSlots)
	fill(&c.MaxContext, mc.MaxContext)
	fill(&c.Workers, 1)
	checks := []struct {
		field     string
		found, to int
	}{
		{"Vocab", c.Vocab, mc.VocabSize},
		{"PageSize", c.PageSize, maxPageSize},
		{"MaxSlots", c.MaxSlots, maxSlots},
		{"MaxTokens", c.MaxTokens, maxTokens},
		{"MaxRows", c.MaxRows, maxSlots},
		{"MaxContext", c.MaxContext, mc.MaxContext},
		{"Workers", c.Workers, maxWorkers},
	}
	for _, k := range checks {
		if k.found < 1 || k.found > k.to {
			return c, fmt.Errorf("%w: %s: expected 1 to %d, found %d", ErrConfig, k.field, k.to, k.found)
		}
	}
	if err := checkNets(c.Nets, mc.Hidden, c.Vocab); err != nil {
		return c, err
	}
	fill(&c.Pages, min(maxPages, c.MaxSlots*pagesFor(c.MaxContext, c.PageSize)))
	if c.Pages < 1 || c.Pages > maxPages {
		return c, fmt.Errorf("%w: Pages: expected 1 to %d, found %d", ErrConfig, maxPages, c.Pages)
	}
	// Every factor is bounded by now, so float64 finds an overflow safely.
	if float64(c.Pages)*float64(pageFloats(mc, c.PageSize)) > math.Min(maxPool, math.MaxInt/4) {
		return c, fmt.Errorf("%w: %d pages of %d bytes: expected at most %d bytes", ErrConfig, c.Pages, 4*pageFloats(mc, c.PageSize), int64(maxPool)*4)
	}
	return c, nil
}

// pagesFor returns how many pages hold n positions.
func pagesFor(n, page int) int { return (n + page - 1) / page }

// pageFloats is the size of a page over all layers.
func pageFloats(c *model.Config, page int) int {
	return c.Layers * 2 * c.KVHeads * page * c.HeadDim
}
