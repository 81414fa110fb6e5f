package engine

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
)

// maxSlots bounds the sequences that a replica holds, parked ones included.
const maxSlots = 512

// newExecutor builds an executor for a model on the device that this process has.
func (e *Engine) newExecutor(m *loaded) (executor.Executor, error) {
	exec, err := cpuexec.New(cpuexec.Config{
		Name: m.cfg.Name, Vocab: m.tokenizer.Size(), Workers: e.cfg.Workers,
		PageSize: e.cfg.PageSize, Pages: e.pages(),
		MaxSlots: maxSlots, MaxRows: e.cfg.MaxRows, MaxTokens: e.cfg.ChunkTokens + e.cfg.MaxRows,
		MaxContext: e.maxContext(m),
	}, m.checkpoint)
	if err != nil {
		return nil, fmt.Errorf("executor of %s: %w", m.cfg.Name, err)
	}
	return exec, nil
}

// pages is the size of each model's pool.
func (e *Engine) pages() int { return (e.cfg.KVTokens + e.cfg.PageSize - 1) / e.cfg.PageSize }

// maxContext is the longest sequence: what the model was made for, if the pool holds it.
func (e *Engine) maxContext(m *loaded) int {
	return min(m.checkpoint.Config.MaxContext, e.pages()*e.cfg.PageSize)
}
