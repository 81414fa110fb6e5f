package cudaexec

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// ErrMemory says that a model does not fit its memory; the text has the numbers.
var ErrMemory = errors.New("cudaexec: not enough device memory")

// Plan is where a model's memory goes. All sizes are bytes.
type Plan struct {
	Model string
	// Budget is what the model may take; Free of it is not planned for anything.
	Budget, Free int64
	// Weights include the rotary table and router nets; Activations the workspace and captured graphs.
	Weights, Activations int64
	// buffers is the part of Activations that steps work in, graphs that of captured graphs: what is reserved for them, and of
	// an executor's plan what they take.
	buffers, graphs int64
	// Pages of PageBytes each make the KV pool; TokenBytes is one token's part.
	Pages, PageSize       int
	PageBytes, TokenBytes int64
}

// KV is the size of the pool.
func (p *Plan) KV() int64 { return int64(p.Pages) * p.PageBytes }

// Tokens is the number of positions that the pool holds.
func (p *Plan) Tokens() int { return p.Pages * p.PageSize }

// String is the plan as a few lines for people.
func (p *Plan) String() string {
	var b strings.Builder
	line := func(what string, bytes int64, more string) {
		fmt.Fprintf(&b, "  %-12s %12s  %s\n", what, gib(bytes), more)
	}
	fmt.Fprintf(&b, "memory plan of %s\n", p.Model)
	line("weights", p.Weights, "")
	line("activations", p.Activations, "")
	line("kv", p.KV(), fmt.Sprintf("%d tokens in %d pages of %d, %.1f KiB a token", p.Tokens(), p.Pages, p.PageSize, float64(p.TokenBytes)/1024))
	line("headroom", p.Free, fmt.Sprintf("of a budget of %s", gib(p.Budget)))
	return b.String()
}

func gib(n int64) string { return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30)) }

// MakePlan settles the memory of a model within a budget of bytes; it needs no GPU. Without cfg.Pages the pool takes what
// is left, up to what all slots can use; with it, a pool that does not fit is refused. The error is ErrConfig or
// ErrMemory.
func MakePlan(cfg Config, m *model.Config, budget int64) (Plan, error) {
	cfg, err := cfg.withDefaults(m, cfg.Name)
	if err != nil {
		return Plan{}, err
	}
	return makePlan(&cfg, m, budget)
}

func makePlan(cfg *Config, m *model.Config, budget int64) (Plan, error) {
	measure := tensor.Measure()
	w, err := layoutWeights(measure, cfg, m)
	if err != nil {
		return Plan{}, err
	}
	before := measure.Used()
	if _, err := layoutBuffers(measure, cfg, m); err != nil {
		return Plan{}, err
	}
	p := Plan{
		Model: cfg.Name, Budget: budget, Weights: w.bytes, buffers: int64(measure.Used() - before), PageSize: cfg.PageSize,
		TokenBytes: int64(m.Layers) * 2 * int64(m.KVHeads) * int64(m.HeadDim) * 2,
	}
	p.PageBytes = p.TokenBytes * int64(cfg.PageSize)
	p.graphs = graphReserve(cfg, m.Layers)
	p.Activations = p.buffers + p.graphs
	left := budget - p.Weights - p.Activations
	p.Pages = cfg.Pages
	if p.Pages == 0 {
		useful := min(cfg.MaxSlots*pagesFor(cfg.MaxContext, cfg.PageSize), maxPages, (1<<31-1)/cfg.PageSize)
		p.Pages = int(min(max(left, 0)/p.PageBytes, int64(useful)))
	}
	if fit := int(max(left, 0) / p.PageBytes); cfg.Shrink && fit > 0 {
		p.Pages = min(p.Pages, fit)
	}
	p.Free = left - p.KV()
	if p.Free < 0 || p.Pages == 0 {
		need := p.Weights + p.Activations + int64(max(p.Pages, 1))*p.PageBytes
		return p, fmt.Errorf("%w: %s needs %s (weights %s, activations %s, %d pages of %s), the budget is %s", ErrMemory, cfg.Name,
			gib(need), gib(p.Weights), gib(p.Activations), max(p.Pages, 1), gib(p.PageBytes), gib(budget))
	}
	return p, nil
}

// Joint is the largest number of tokens T that all models of one GPU can hold at once, so that no request is admitted by one
// model and stuck at another: T = (share·memory - Σ (weights + activations)) / Σ bytes a token. It returns T and the
// pages of each plan. share is in (0, 1]. The error is ErrMemory when not one page of each fits.
func Joint(memory int64, share float64, plans ...Plan) (tokens int64, pages []int, err error) {
	if !(share > 0 && share <= 1) || len(plans) == 0 {
		return 0, nil, fmt.Errorf("%w: joint plan of %d models with a share of %v", ErrConfig, len(plans), share)
	}
	left, each := int64(math.Floor(share*float64(memory))), int64(0)
	page := int64(1)
	for _, p := range plans {
		left -= p.Weights + p.Activations
		each += p.TokenBytes
		page = max(page, int64(p.PageSize))
	}
	if left < each*page {
		return 0, nil, fmt.Errorf("%w: %d models leave %s of %s for the pools, and one page of each takes %s", ErrMemory, len(plans),
			gib(left), gib(int64(share*float64(memory))), gib(each*page))
	}
	tokens = left / each / page * page
	for _, p := range plans {
		pages = append(pages, int(min(tokens/int64(p.PageSize), maxPages)))
	}
	return tokens, pages, nil
}
