package engine

import (
	"errors"
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/worker/executor/cudaexec"
	"github.com/tokenrouter/tokenrouter/worker/subservice"
)

// place is where a model runs and with how much memory.
type place struct {
	cuda    bool
	ordinal int // of the GPU
	pages   int // of each replica's pool
	bytes   int64
	// urgent says that the model's steps go first where models share a GPU.
	urgent bool
	// pools are those of the GPU's models that were placed together.
	pools *pools
}

// reserve is the part of a GPU's free memory that no plan takes: code, and what
// libraries allocate.
const reserve = 512 << 20

// MakePlan says where the memory goes without loading weights. With
// Config.GPUMemory it needs no GPU.
func MakePlan(cfg Config) (_ *Plan, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	e := newEngine(cfg)
	defer func() { err = errors.Join(err, e.release()) }()
	for _, m := range cfg.Models {
		l, err := describe(m)
		if err != nil {
			return nil, err
		}
		e.models = append(e.models, l)
	}
	if err := e.attachRouters(); err != nil {
		return nil, err
	}
	e.unseen = cfg.GPUMemory > 0
	if err := e.placeModels(); err != nil {
		return nil, err
	}
	return &e.plan, nil
}

// placeModels gives every model its place and makes the plan.
func (e *Engine) placeModels() (err error) {
	e.plan.Devices, err = e.placeAll(e.models, e.ordinal, e.cfg.Device == "cuda" || len(e.cfg.GPUs) > 0 || e.unseen)
	return err
}

// placeAll gives models their places, which they share among themselves. gpu is the
// ordinal of a model's GPU, by index; insist says that it must be used.
func (e *Engine) placeAll(models []*loaded, gpu func(i int) int, insist bool) ([]DevicePlan, error) {
	groups, order := map[int][]*loaded{}, []int{}
	var onCPU []*loaded
	var devices []DevicePlan
	for i, m := range models {
		cuda, err := e.usesCUDA(gpu(i), m, insist)
		if err != nil {
			return nil, err
		}
		if m.place = (place{cuda: cuda, ordinal: gpu(i)}); !cuda {
			onCPU = append(onCPU, m)
			continue
		}
		if groups[m.place.ordinal] == nil {
			order = append(order, m.place.ordinal)
		}
		groups[m.place.ordinal] = append(groups[m.place.ordinal], m)
	}
	for _, ordinal := range order {
		replicas := 0
		for _, m := range groups[ordinal] {
			replicas += len(m.names())
		}
		all := newPools(replicas)
		for _, m := range groups[ordinal] {
			m.place.pools = all
		}
		d, err := e.planGPU(ordinal, groups[ordinal])
		if err != nil {
			return nil, fmt.Errorf("GPU %d: %w", ordinal, err)
		}
		devices = append(devices, d)
	}
	if len(onCPU) > 0 {
		devices = append(devices, e.planCPU(onCPU))
	}
	return devices, nil
}

// ordinal is the GPU that the configuration gives to a model.
func (e *Engine) ordinal(model int) int {
	switch len(e.cfg.GPUs) {
	case 0:
		return 0
	case 1:
		return e.cfg.GPUs[0]
	}
	return e.cfg.GPUs[model]
}

// usesCUDA decides between GPU and CPU. With "auto" and no word about GPUs, what
// stands against a GPU is not an error.
func (e *Engine) usesCUDA(ordinal int, m *loaded, insist bool) (bool, error) {
	if e.cfg.Device == "cpu" {
		return false, nil
	}
	var err error
	if !e.unseen && (e.noGPU == nil || insist) {
		err = e.gpus.ask(ordinal, func(*cudaexec.Device) error { return nil })
	} else {
		err = e.noGPU
	}
	if err != nil && !insist {
		if e.noGPU == nil && !errors.Is(err, driver.ErrNoDriver) && !errors.Is(err, driver.ErrNoDevice) {
			e.log.Warn("there is a GPU that cannot be used (trctl doctor says more); models run on the CPU", "err", err)
		}
		e.noGPU = err
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("%w (trctl doctor says what is missing)", err)
	}
	if _, err = cudaexec.MakePlan(e.cudaConfig(m, 1), &m.config, math.MaxInt64); err != nil && !insist {
		e.log.Warn("the model runs on the CPU: the GPU's engine cannot", "model", m.cfg.Name, "err", err)
		return false, nil
	}
	return err == nil, err
}

// cudaConfig are the limits of an executor on a GPU with that many pages.
func (e *Engine) cudaConfig(m *loaded, pages int) cudaexec.Config {
	return cudaexec.Config{
		Name: m.cfg.Name, Vocab: m.vocab, PageSize: e.cfg.PageSize, Pages: pages,
		MaxSlots: maxSlots, MaxRows: e.cfg.MaxRows, MaxTokens: e.cfg.ChunkTokens + e.cfg.MaxRows,
		Depth: e.depth(), Reproducible: e.cfg.Reproducible, Nets: m.nets,
	}
}

// depth is the number of steps that a GPU's executor has in flight at a time.
func (e *Engine) depth() int {
	if e.cfg.Lookahead == subservice.LookaheadOff {
		return 1
	}
	return 2
}

// planGPU divides a GPU's memory among its models: weights and what steps work in
// first, then as many token slots as all of them can have at once, so that no
// request is admitted by one model and stuck at another.
func (e *Engine) planGPU(ordinal int, group []*loaded) (DevicePlan, error) {
	d := DevicePlan{
		Device: fmt.Sprintf("GPU %d", ordinal), Memory: e.cfg.GPUMemory, Free: e.cfg.GPUMemory, Reproducible: e.cfg.Reproducible,
	}
	if !e.unseen {
		err := e.gpus.ask(ordinal, func(device *cudaexec.Device) (err error) {
			d.Device += ", " + device.Name()
			d.Free, d.Memory, err = device.Memory()
			return err
		})
		if err != nil {
			return d, err
		}
		if e.cfg.GPUMemory > 0 {
			d.Memory, d.Free = min(d.Memory, e.cfg.GPUMemory), min(d.Free, e.cfg.GPUMemory)
		}
	}
	share := e.cfg.MemoryShare
	if share == 0 {
		share = DefaultMemoryShare
	}
	taken, unbuilt := e.takenOn(ordinal)
	d.Free -= unbuilt
	d.Budget = min(int64(share*float64(d.Memory))-taken, d.Free-reserve)
	var plans []cudaexec.Plan // one for each replica
	for _, m := range group {
		p, err := cudaexec.MakePlan(e.cudaConfig(m, 1), &m.config, math.MaxInt64)
		if err != nil {
			return d, err
		}
		for range m.names() {
			plans = append(plans, p)
		}
	}
	pages, err := e.dividePages(&d, group, plans)
	if err != nil {
		return d, err
	}
	urgent, at := 0, 0
	for i, m := range group {
		p := plans[at]
		m.place.pages = pages[at]
		p.Pages = pages[at]
		m.place.bytes = p.Weights + p.Activations + p.KV()
		d.Models = append(d.Models, ModelPlan{
			Model: m.cfg.Name, Replicas: len(m.names()), Weights: p.Weights, Activations: p.Activations, KV: p.KV(),
			Tokens: p.Tokens(), TokenBytes: p.TokenBytes,
		})
		at += len(m.names())
		if p.Weights < d.Models[urgent].Weights {
			urgent = i
		}
	}
	group[urgent].place.urgent = len(group) > 1
	return d, nil
}

// dividePages returns the pages of each plan. Pools larger than all slots can
// use are cut.
func (e *Engine) dividePages(d *DevicePlan, group []*loaded, plans []cudaexec.Plan) ([]int, error) {
	pages := make([]int, len(plans))
	if e.cfg.KVTokens > 0 {
		need := int64(0)
		for i := range plans {
			plans[i].Pages = pagesFor(e.cfg.KVTokens, e.cfg.PageSize)
			pages[i] = plans[i].Pages
			need += plans[i].Weights + plans[i].Activations + plans[i].KV()
		}
		if need > d.Budget {
			return nil, fmt.Errorf("%w: %d token slots for each model take %s with the weights, the budget is %s (%s of memory, %s free)",
				cudaexec.ErrMemory, e.cfg.KVTokens, size(need), size(d.Budget), size(d.Memory), size(d.Free))
		}
		return pages, nil
	}
	_, pages, err := cudaexec.Joint(max(d.Budget, 0), 1, plans...)
	if err != nil {
		return nil, fmt.Errorf("%w (%s of memory, %s free)", err, size(d.Memory), size(d.Free))
	}
	at := 0
	for _, m := range group {
		for range m.names() {
			pages[at] = min(pages[at], maxSlots*pagesFor(m.config.MaxContext, e.cfg.PageSize))
			at++
		}
	}
	return pages, nil
}

// planCPU has no budget: pages of a pool take memory once they are used.
func (e *Engine) planCPU(group []*loaded) DevicePlan {
	d := DevicePlan{Device: "CPU", Reproducible: true}
	if e.cfg.Reproducible {
		e.log.Info("reproducible changes nothing for models on the CPU: their answers always are")
	}
	tokens := e.cfg.KVTokens
	if tokens == 0 {
		tokens = DefaultKVTokens
	}
	for _, m := range group {
		c := &m.config
		m.place.pages = pagesFor(tokens, e.cfg.PageSize)
		p := ModelPlan{
			Model: m.cfg.Name, Replicas: len(m.names()), Tokens: m.place.pages * e.cfg.PageSize,
			TokenBytes: int64(c.Layers) * 2 * int64(c.KVHeads) * int64(c.HeadDim) * 4, // float32
		}
		p.KV = int64(p.Tokens) * p.TokenBytes
		for _, w := range c.Params() {
			n := int64(2) // bfloat16, as nearly all checkpoints have it
			for _, dim := range w.Shape {
				n *= int64(dim)
			}
			p.Weights += n
		}
		for _, net := range m.nets {
			p.Weights += net.Bytes()
		}
		d.Models = append(d.Models, p)
	}
	return d
}

// pagesFor is the number of pages that hold n positions.
func pagesFor(n, page int) int { return (n + page - 1) / page }
