package cudaexec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/slots"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

var _ executor.Executor = (*Executor)(nil)

// slot is what draws of one open sequence need. Its table is what the device's holds for the pages in use.
type slot struct {
	cfg  executor.SeqConfig
	past history // of the ids fed, if the parameters penalize
}

// flight is a step that was launched and not yet waited for. There are Config.Depth of them, used in turn.
type flight struct {
	ring    int           // index of the flight, and of its entries in the rings
	ended   *driver.Event // behind the step
	entry   *entry        // the step's descriptor
	ticket  executor.Ticket
	batch   *step.Batch
	started time.Time
	picks   []pick
	// adjusted is the number of adjustments, scored says that positions want scores.
	adjusted int
	scored   bool
	// done reports whether the step's results have been published, wait waits for its event.
	done func() bool
	wait func() error
}

// Executor runs one model on one GPU. See executor.Executor for who may call what.
type Executor struct {
	cfg   Config
	info  executor.Info
	model model.Config
	plan  Plan

	device *Device
	set    *kernels.Set // the one to close
	launch *kernels.Set // the same kernels, as steps launch them
	// routerSet and router are the same for the kernels of router nets, nil without nets.
	routerSet, router *kernels.Router
	stream            *driver.Stream
	arena             driver.Ptr // weights and buffers
	kv                driver.Ptr // [L][N, 2, Hk, P, D] bf16
	// fixedPool says that the pool was asked for by number and may not shrink.
	fixedPool bool
	w         *weights
	b         *buffers
	desc      *descriptor
	res       *results
	attn      kernels.AttnPlan
	graphs    graphs
	tracer    *tracer // nil without Config.Timeline

	seqs   *slots.Set
	slots  []slot
	ticket executor.Ticket
	adjust adjuster
	logV   float32 // ln of the real vocabulary size
	failed error
	down   bool

	// flights are used in turn; inFlight of them, up to the last one launched, are in flight.
	flights   []flight
	inFlight  int
	begun     time.Time // when the device could begin the last step launched, zero if that is not known
	idleSince time.Time // when the last step waited for was done
	waiter    *waiter

	steps, tokens, rows atomic.Uint64
	replays             atomic.Uint64 // steps whose layers were a graph
	busy                atomic.Int64  // nanoseconds
	openSlots           atomic.Int64
}

// pick is one position that gives an output.
type pick struct {
	row      int32
	position int32 // of the token that follows
	top      int32 // entries to report
	given    bool
}

// New compiles the kernels, plans and takes the memory, and loads the weights. ctx bounds the loading. Shutdown must be
// called. The error is ErrConfig, ErrMemory, or the failed operation's.
func New(ctx context.Context, cfg Config, d *Device, src Source) (_ *Executor, err error) {
	name, m, err := src.describe()
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.withDefaults(m, name); err != nil {
		return nil, err
	}
	e := &Executor{cfg: cfg, model: *m, device: d, tracer: newTracer(&cfg, d)}
	defer func() {
		if err != nil {
			err = joinClose(err, e.release)
		}
	}()
	if e.set, err = kernels.LoadTimed(ctx, d.ctx, d.builder, dims(&cfg, m), e.tracer.timed()); err != nil {
		return nil, err
	}
	if e.stream, err = d.ctx.NewStream(cfg.Priority); err != nil {
		return nil, err
	}
	if e.launch, err = overlapped(e.set, d, &cfg); err != nil {
		return nil, err
	}
	if err = e.loadRouters(func() (*kernels.Router, error) {
		return kernels.LoadTimedRouter(ctx, d.ctx, d.builder, e.tracer.timed())
	}); err != nil {
		return nil, err
	}
	if err = e.takeMemory(); err != nil {
		return nil, err
	}
	if err = e.takeFlights(); err != nil {
		return nil, err
	}
	if err = e.loadWeights(ctx, src); err != nil {
		return nil, err
	}
	if err = e.settleGraphs(ctx); err != nil {
		return nil, err
	}
	e.start()
	return e, nil
}

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

// oldest is the flight that is waited for next; there is one.
func (e *Executor) oldest() *flight {
	return &e.flights[(int(e.ticket)-e.inFlight)%len(e.flights)]
}

// overlapped returns the kernels as steps launch them.
func overlapped(set *kernels.Set, d *Device, cfg *Config) (*kernels.Set, error) {
	major, _, err := d.ctx.Device().ComputeCapability()
	if err != nil || major < 9 || cfg.NoOverlap {
		return set, err
	}
	return set.Overlapped(), nil
}

// loadWeights fills everything that stays the same between steps.
func (e *Executor) loadWeights(ctx context.Context, src Source) error {
	dev := e.device.ctx
	// Products may read rows that no step has written; what they make of them is not used.
	if err := e.stream.Set8(ptr(e.b.x), 0, uint64(e.plan.buffers)); err != nil {
		return err
	}
	for _, v := range []tensor.View{e.b.arrived, e.b.joined, e.b.cut, e.b.last} {
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

// start fills the host's side and starts the thread that sleeps until events.
func (e *Executor) start() {
	m, c := &e.model, &e.cfg
	e.info = executor.Info{
		Model: c.Name, Device: e.device.name, Vocab: c.Vocab, Hidden: m.Hidden, Layers: m.Layers, PageSize: c.PageSize, Pages: c.Pages,
		MaxSlots: c.MaxSlots, MaxTokens: c.MaxTokens, MaxRows: c.MaxRows, MaxContext: c.MaxContext, Depth: c.Depth,
		Features: step.FEntropy | step.FTopK | step.FHidden | step.FLogits | step.FAdjust | step.FGiven | step.FAdopt | step.FMix,
	}
	for _, n := range c.Nets {
		e.info.Nets = append(e.info.Nets, n.Name)
		e.info.Features |= step.FScore
	}
	if c.Depth > 1 {
		e.info.Features |= step.FContinue
	}
	e.logV = float32(math.Log(float64(c.Vocab)))
	e.seqs = slots.New(e.info, slots.Limits{Patches: e.desc.layout.maxPatches, Top: kernels.MaxTop})
	e.slots = make([]slot, c.MaxSlots)
	e.waiter = newWaiter()
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

// Info implements executor.Executor.
func (e *Executor) Info() executor.Info { return e.info }

// Plan is where the memory went.
func (e *Executor) Plan() Plan { return e.plan }

// usable returns why no call can succeed any more.
func (e *Executor) usable() error {
	if e.down {
		return executor.ErrClosed
	}
	return e.failed
}

// fail ends the executor.
func (e *Executor) fail(err error) error {
	e.failed = fmt.Errorf("%w: %w", executor.ErrFailed, err)
	return e.failed
}

// Open implements executor.Executor.
func (e *Executor) Open(c executor.SeqConfig) (step.Slot, error) {
	if err := e.usable(); err != nil {
		return -1, err
	}
	if err := c.Check(&e.info); err != nil {
		return -1, fmt.Errorf("cudaexec: open: %w", err)
	}
	c.PromptLen = min(c.PromptLen, e.cfg.MaxContext) // no position is beyond
	s, err := e.seqs.Open(c.Sampling.Penalizes())
	if err != nil {
		return -1, err
	}
	sl := &e.slots[s]
	if sl.cfg = c; c.Sampling.Penalizes() {
		sl.past.reset(c.PromptLen)
	}
	e.openSlots.Add(1)
	return s, nil
}

// Truncate implements executor.Executor. Page table entries stay.
func (e *Executor) Truncate(s step.Slot, length int) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.seqs.Truncate(s, length); err != nil {
		return fmt.Errorf("cudaexec: %w", err)
	}
	return nil
}

// Close implements executor.Executor. Closing a slot that is not open does nothing. A step in flight works on the
// device's page table, which changes with the next launch at the earliest.
func (e *Executor) Close(s step.Slot) {
	if !e.down && e.seqs.Close(s, false) {
		e.openSlots.Add(-1)
	}
}

// Stats implements executor.Executor.
func (e *Executor) Stats() executor.Stats {
	return executor.Stats{
		Steps: e.steps.Load(), Tokens: e.tokens.Load(), Rows: e.rows.Load(), StepTime: time.Duration(e.busy.Load()), Replays: e.replays.Load(),
		OpenSlots:   int(e.openSlots.Load()),
		MemoryBytes: map[string]int64{"weights": e.plan.Weights, "kv": e.plan.KV(), "activations": e.plan.buffers, "graphs": e.graphs.bytes},
	}
}

// Shutdown implements executor.Executor. Calling it again does nothing.
func (e *Executor) Shutdown() error {
	if e.down {
		return nil
	}
	e.down = true
	e.waiter.close()
	return e.release()
}
