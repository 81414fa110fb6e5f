package cudaexec

import (
	"context"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
)

// What graphs take of the device's memory is the driver's choice and known only once they are there, when the pool, whose
// address they hold, has been sized. So the plan reserves for them, and settleGraphs holds what they took against that.
const (
	// graphNodeBytes is what a node is planned with, graphFixedBytes what all graphs of a model are, beside their nodes:
	// the driver takes memory in large pieces, and cuBLASLt's kernels are loaded at their first use. On an H200 3,438 nodes of
	// Qwen3-0.6B took 8 to 10 MB, 4,742 of Qwen3-8B, loaded after it, 2 MB.
	graphNodeBytes  = 4 << 10
	graphFixedBytes = 16 << 20
)

// graphNodes bounds the nodes of all graphs of a model: prep, embed, and up to ten kernels a layer; cuBLASLt may split a
// product in two.
func graphNodes(layers int) int64 {
	bodies := 0
	for _, size := range bodySizes {
		bodies++
		if size > kernels.NarrowTokens { // both variants of attention
			bodies++
		}
	}
	return int64(bodies*(2+14*layers) + 2*len(headSizes)*16)
}

// captures says whether steps are replayed from graphs.
func (c *Config) captures() bool { return !c.Eager && !c.BlockEachOp }

// graphReserve is the memory that a plan holds for graphs.
func graphReserve(c *Config, layers int) int64 {
	if !c.captures() {
		return 0
	}
	return graphFixedBytes + (graphNodes(layers)+netNodes(c.Nets))*graphNodeBytes
}

// settleGraphs captures the graphs and puts into the plan what they take. Memory beyond the reserve comes from the plan's
// headroom, and what is missing then from the pool, if it may shrink; else the error is ErrMemory. Other models of the
// device take nothing meanwhile that would be counted here, but for the modules of their kernels, a few MiB.
func (e *Executor) settleGraphs(ctx context.Context) error {
	if !e.cfg.captures() {
		return nil
	}
	e.device.taking.Lock()
	defer e.device.taking.Unlock()
	if err := e.measureGraphs(ctx); err != nil {
		return err
	}
	if missing := e.graphs.bytes - e.plan.graphs - e.plan.Free; missing > 0 {
		if err := e.shrinkPool(missing); err != nil {
			return err
		}
		if err := e.measureGraphs(ctx); err != nil { // they hold the pool's address
			return err
		}
	}
	p := &e.plan
	if e.cfg.Logger != nil {
		e.cfg.Logger.Info("graphs are captured", "model", e.cfg.Name, "nodes", e.graphs.nodes, "bytes", e.graphs.bytes,
			"reserved_bytes", p.graphs, "difference_bytes", e.graphs.bytes-p.graphs)
	}
	p.Free -= e.graphs.bytes - p.graphs
	p.graphs, p.Activations = e.graphs.bytes, p.buffers+e.graphs.bytes
	if p.Free < 0 {
		return fmt.Errorf("%w: graphs of %s took %s, %s more than there was, after the pool had made room", ErrMemory, e.cfg.Name,
			gib(p.graphs), gib(-p.Free))
	}
	return nil
}

// measureGraphs captures the graphs and asks the driver what memory that took. The driver may keep the memory of graphs that
// were destroyed, so that of two captures the larger number counts.
func (e *Executor) measureGraphs(ctx context.Context) error {
	before, _, err := e.device.Memory()
	if err != nil {
		return err
	}
	if err := e.capture(ctx); err != nil {
		return err
	}
	after, _, err := e.device.Memory()
	e.graphs.bytes = max(before-after, e.graphs.bytes)
	return err
}

// shrinkPool makes the pool smaller by at least so many bytes, and closes the graphs, which hold its address.
func (e *Executor) shrinkPool(bytes int64) error {
	p := &e.plan
	pages := int((bytes + p.PageBytes - 1) / p.PageBytes)
	if e.fixedPool || pages >= p.Pages {
		return fmt.Errorf("%w: graphs of %s took %s; %s were planned and %s free, and the pool of %d pages of %s cannot be smaller", ErrMemory,
			e.cfg.Name, gib(e.graphs.bytes), gib(p.graphs), gib(p.Free), p.Pages, gib(p.PageBytes))
	}
	taken := e.graphs.bytes
	if err := joinClose(e.graphs.close(), func() error { return e.device.ctx.Free(e.kv) }); err != nil {
		return err
	}
	e.kv, e.graphs.bytes = 0, taken
	p.Pages -= pages
	p.Free += int64(pages) * p.PageBytes
	e.cfg.Pages = p.Pages
	var err error
	if e.kv, err = e.device.ctx.Alloc(uint64(p.KV())); err != nil {
		return fmt.Errorf("%w: %d pages, %s: %w", ErrMemory, p.Pages, gib(p.KV()), err)
	}
	if e.cfg.Logger != nil {
		e.cfg.Logger.Warn("the KV pool is smaller than planned: graphs take more memory than was reserved", "pages", p.Pages, "fewer", pages)
	}
	return e.poisonPool()
}
