package node

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
)

// maxSlots bounds the sequences that a replica holds, parked ones included.
const maxSlots = 512

// newExecutor builds an executor for a model on the device that this process has.
func (n *Node) newExecutor(m *loaded) (executor.Executor, error) {
	exec, err := cpuexec.New(cpuexec.Config{
		Name: m.cfg.Name, Vocab: m.tokenizer.Size(), Workers: n.cfg.Workers,
		PageSize: n.cfg.PageSize, Pages: n.pages(),
		MaxSlots: maxSlots, MaxRows: n.cfg.MaxRows, MaxTokens: n.cfg.ChunkTokens + n.cfg.MaxRows,
		MaxContext: n.maxContext(m),
	}, m.checkpoint)
	if err != nil {
		return nil, fmt.Errorf("executor of %s: %w", m.cfg.Name, err)
	}
	return exec, nil
}

// pages is the size of each model's pool.
func (n *Node) pages() int { return (n.cfg.KVTokens + n.cfg.PageSize - 1) / n.cfg.PageSize }

// maxContext is the longest sequence: what the model was made for, if the pool holds it.
func (n *Node) maxContext(m *loaded) int {
	return min(m.checkpoint.Config.MaxContext, n.pages()*n.cfg.PageSize)
}
