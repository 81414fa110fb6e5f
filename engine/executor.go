package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/models/dummy"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// maxSlots bounds the sequences that a replica holds, parked ones included.
const maxSlots = 512

// urgentPriority is more urgent than any a GPU has; the driver takes its most
// urgent one.
const urgentPriority = -100

// carefulSteps is how many steps wait after each operation in the run after a
// fault whose operation is not known, so that the next such fault names it.
const carefulSteps = 256

// running is an executor with what its run holds beside it.
type running struct {
	executor.Executor
	gpu *gpu // nil on a CPU
}

// newExecutor builds an executor for a replica's next run.
func (e *Engine) newExecutor(ctx context.Context, r *replica) (*running, error) {
	build := e.newCPU
	if r.model.place.cuda {
		build = e.newCUDA
		e.moving.Add(1)
		defer e.moving.Add(-1)
	}
	x, err := build(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("executor of %s: %w", r.model.cfg.Name, err)
	}
	return x, nil
}

func (e *Engine) newCPU(_ context.Context, r *replica) (*running, error) {
	m := r.model
	if e.cfg.newCPU != nil {
		exec, err := e.cfg.newCPU(m.cfg.Name, m.vocab, m.place.pages)
		if err != nil {
			return nil, err
		}
		return &running{Executor: exec}, nil
	}
	checkpoint := m.checkpoint
	if m.cfg.Dummy != nil {
		checkpoint = dummyCheckpoint(m, *m.cfg.Dummy)
	}
	exec, err := cpuexec.New(cpuexec.Config{
		Name: m.cfg.Name, Vocab: m.vocab, Workers: e.cfg.Workers,
		PageSize: e.cfg.PageSize, Pages: m.place.pages,
		MaxSlots: maxSlots, MaxRows: e.cfg.MaxRows, MaxTokens: e.cfg.ChunkTokens + e.cfg.MaxRows,
		MaxContext: e.maxContext(m), Nets: m.nets,
	}, checkpoint)
	if err != nil {
		return nil, err
	}
	return &running{Executor: exec}, nil
}

// dummyCheckpoint fills a model's shape.
func dummyCheckpoint(m *loaded, seed uint64) *model.Checkpoint {
	params := m.config.Params()
	tensors := make([]model.Tensor, len(params))
	for i, p := range params {
		tensors[i] = model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Bytes: dummy.Bytes(seed, p.Name, p.Shape)}
	}
	return model.FromTensors(m.cfg.Name, m.config, tensors)
}

// newCUDA builds an executor whose pool is as large as those of its GPU's other models.
func (e *Engine) newCUDA(ctx context.Context, r *replica) (_ *running, err error) {
	m := r.model
	device, err := e.gpus.acquire(m.place.ordinal)
	if err != nil {
		return nil, err
	}
	x := &running{gpu: device}
	defer func() {
		if err != nil {
			e.noteFault(r, x, err)
			e.gpus.release(device)
		}
	}()
	all := m.place.pools
	for {
		asked := all.limit(m.place.pages)
		if x.Executor, err = e.buildCUDA(ctx, r, device, asked); err != nil {
			return nil, err
		}
		got := x.Info().Pages
		all.built(asked, got, !r.built.Swap(true))
		if err = all.wait(ctx, device); err != nil {
			return nil, errors.Join(err, x.Shutdown())
		}
		limit := all.limit(m.place.pages)
		if got <= limit {
			return x, nil
		}
		e.log.Warn("the model is loaded again with a smaller KV pool: another on its GPU found too little memory",
			"replica", r.name, "pages", got, "then", limit)
		if err = x.Shutdown(); err != nil {
			return nil, err
		}
	}
}

// buildCUDA loads a replica's model with a pool of that many pages, or fewer.
func (e *Engine) buildCUDA(ctx context.Context, r *replica, device *gpu, pages int) (executor.Executor, error) {
	m := r.model
	cfg := e.cudaConfig(m, pages)
	// The plan was for the model's own context; a shorter one takes no more.
	cfg.MaxContext, cfg.MemoryBytes = min(e.maxContext(m), pages*e.cfg.PageSize), m.place.bytes
	cfg.Shrink, cfg.Logger = e.cfg.KVTokens == 0, e.log
	if m.place.urgent {
		cfg.Priority = urgentPriority
	}
	if r.careful {
		cfg.BlockSteps = carefulSteps
	}
	if e.cfg.Progress != nil {
		cfg.Progress = func(done, total int64) { e.cfg.Progress(m.cfg.Name, done, total) }
	}
	source := cudaexec.Source(nil)
	if m.cfg.Dummy != nil {
		source = cudaexec.Dummy(m.cfg.Name, m.config, *m.cfg.Dummy)
	} else {
		source = cudaexec.Checkpoint(m.checkpoint)
	}
	exec, err := cudaexec.New(ctx, cfg, device.device, source)
	if err != nil {
		return nil, err // a nil *cudaexec.Executor would be no nil Executor
	}
	return exec, nil
}

// end shuts the executor down after a run that ended with fault, or with nil. On a
// lost GPU nothing can be given back one by one, and the errors of trying say
// nothing new. An executor with a step that hangs must not be called any more, and what
// the driver is asked by others then may hang as well.
func (e *Engine) end(r *replica, x *running, fault error) error {
	if errors.Is(fault, subservice.ErrHung) || x.gpu != nil && e.hang.any() {
		return nil
	}
	lost := e.noteFault(r, x, fault)
	if x.gpu != nil {
		e.moving.Add(1)
		defer e.moving.Add(-1)
	}
	err := x.Shutdown()
	if x.gpu != nil {
		e.gpus.release(x.gpu)
	}
	if lost {
		return nil
	}
	return err
}

// noteFault looks whether a run's error has lost its GPU.
func (e *Engine) noteFault(r *replica, x *running, fault error) (lost bool) {
	var step *cudaexec.StepError
	if errors.As(fault, &step) {
		r.careful = step.Op == ""
	}
	lost = x.gpu != nil && (driver.IsSticky(fault) || errors.Is(fault, errGPULost))
	if lost {
		e.gpus.lose(x.gpu, fault)
	}
	return lost
}

// watchGPU returns an error once the run's GPU is lost, by a fault in any of the
// replicas on it.
func (x *running) watchGPU(ctx context.Context) error {
	if x.gpu == nil {
		return nil
	}
	select {
	case <-x.gpu.gone:
		return errGPULost
	case <-ctx.Done():
		return nil
	}
}

// permanent says that an error of building an executor stays the same however
// often it is tried.
func permanent(err error) bool {
	return errors.Is(err, cudaexec.ErrMemory) || errors.Is(err, cudaexec.ErrConfig) ||
		errors.Is(err, cpuexec.ErrMemory) || errors.Is(err, cpuexec.ErrConfig)
}

// maxContext is the longest sequence: what the model was made for, if the pool holds it.
func (e *Engine) maxContext(m *loaded) int {
	return min(m.config.MaxContext, m.place.pages*e.cfg.PageSize)
}
