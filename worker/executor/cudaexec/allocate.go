package cudaexec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
)

// takeMemory plans and allocates. A pool that was not asked for by number, or may shrink, shrinks when the device has less
// than planned.
func (e *Executor) takeMemory() error {
	budget := e.cfg.MemoryBytes
	if budget == 0 {
		free, _, err := e.device.Memory()
		if err != nil {
			return err
		}
		budget = free / 10 * 9
	}
	plan, err := makePlan(&e.cfg, &e.model, budget)
	if err != nil {
		return err
	}
	ctx := e.device.ctx
	size := uint64(plan.Weights+plan.buffers) + 2*tensor.DefaultAlign
	if e.arena, err = e.device.alloc(size); err != nil {
		return fmt.Errorf("%w: weights and activations of %s: %w", ErrMemory, gib(int64(size)), err)
	}
	base := roundUp(int(e.arena), tensor.DefaultAlign)
	arena, err := tensor.NewArena(uint64(base), size-(uint64(base)-uint64(e.arena)))
	if err != nil {
		return err
	}
	if e.w, err = layoutWeights(arena, &e.cfg, &e.model); err != nil {
		return err
	}
	if e.b, err = layoutBuffers(arena, &e.cfg, &e.model); err != nil {
		return err
	}
	asked := max(plan.Pages, e.cfg.Pages)
	e.fixedPool = e.cfg.Pages != 0 && !e.cfg.Shrink
	for {
		if e.kv, err = e.device.alloc(uint64(plan.KV())); err == nil {
			break
		}
		if !driver.IsOutOfMemory(err) || e.fixedPool || plan.Pages < 2 {
			return fmt.Errorf("%w: %d pages, %s: %w", ErrMemory, plan.Pages, gib(plan.KV()), err)
		}
		plan.Pages -= max(plan.Pages/10, 1)
	}
	if plan.Pages < asked && e.cfg.Logger != nil {
		e.cfg.Logger.Warn("the KV pool is smaller than planned: the device is out of memory", "planned_pages", asked, "pages", plan.Pages)
	}
	e.cfg.Pages, e.plan = plan.Pages, plan
	if e.desc, err = newDescriptor(ctx, &e.cfg); err != nil {
		return err
	}
	e.res, err = newResults(ctx, &e.cfg, e.model.Hidden)
	return err
}

// takeFlights makes the flights.
func (e *Executor) takeFlights() (err error) {
	e.flights = make([]flight, e.cfg.Depth)
	for i := range e.flights {
		f := &e.flights[i]
		f.ring, f.entry = i, &e.desc.entries[i]
		if f.ended, err = e.device.ctx.NewEvent(driver.EventOptions{Blocking: true}); err != nil {
			return err
		}
		f.wait = f.ended.Wait
		f.done = func() bool { return atomic.LoadUint64(e.res.flag) >= uint64(f.ticket) } // steps end in order
	}
	return nil
}

// loadWeights fills everything that stays the same between steps.
func (e *Executor) loadWeights(ctx context.Context, src Source) error {
	dev := e.device.ctx
	// Products may read rows that no step has written; what they make of them is not used.
	if err := e.stream.Set8(ptr(e.b.x), 0, uint64(e.plan.buffers)); err != nil {
		return err
	}
	for _, v := range []tensor.View{e.b.arrived, e.b.joined, e.b.last, e.b.claims, e.b.parted} {
		n, err := v.Bytes()
		if err == nil {
			err = e.stream.Set8(ptr(v), 0, n)
		}
		if err != nil {
			return err
		}
	}
	if err := e.poisonPool(); err != nil {
		return err
	}
	if err := writeFloats(dev, e.w.rope, kernels.RopeTable(e.cfg.MaxContext, e.model.InvFreq())); err != nil {
		return err
	}
	if err := e.loadNets(); err != nil {
		return err
	}
	l := &loader{device: e.device, set: e.set, stream: e.stream, progress: e.cfg.Progress}
	for _, p := range e.model.Params() {
		n := int64(2)
		for _, d := range p.Shape {
			n *= int64(d)
		}
		l.total += n
	}
	if err := src.load(ctx, l, e.w); err != nil {
		return err
	}
	return e.stream.Synchronize()
}

// poisonPool fills the pool with NaN, if that is asked for.
func (e *Executor) poisonPool() error {
	if !e.cfg.Poison {
		return nil
	}
	return e.stream.Set8(e.kv, 0xff, uint64(e.plan.KV()))
}

// joinClose closes in order and joins all errors to err.
func joinClose(err error, closers ...func() error) error {
	errs := []error{err}
	for _, c := range closers {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// release frees everything that New took, in reverse order. Work on the stream has ended or the device is lost.
func (e *Executor) release() error {
	var errs []error
	free := func(p *driver.Ptr) {
		if *p != 0 {
			errs = append(errs, e.device.free(*p))
			*p = 0
		}
	}
	if e.stream != nil {
		errs = append(errs, e.stream.Synchronize())
	}
	if e.res != nil && e.res.mem != nil {
		errs = append(errs, e.res.mem.Close())
	}
	if e.desc != nil {
		errs = append(errs, e.desc.close())
	}
	errs = append(errs, e.graphs.close())
	free(&e.kv)
	free(&e.arena)
	for _, f := range e.flights {
		if f.ended != nil {
			errs = append(errs, f.ended.Close())
		}
	}
	if e.stream != nil {
		errs = append(errs, e.stream.Close())
	}
	if e.routerSet != nil {
		errs = append(errs, e.routerSet.Close())
	}
	if e.set != nil {
		errs = append(errs, e.set.Close())
	}
	e.res, e.desc, e.flights, e.stream, e.set, e.routerSet = nil, nil, nil, nil, nil, nil
	return errors.Join(errs...)
}
