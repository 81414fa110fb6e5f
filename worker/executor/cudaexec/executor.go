package cudaexec

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
	"github.com/tokenrouter/tokenrouter/cuda/kernels"
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
	e.waiter = newWaiter(e.device.watches)
}

// Info implements executor.Executor.
func (e *Executor) Info() executor.Info { return e.info }

// Plan is where the memory went.
func (e *Executor) Plan() Plan { return e.plan }

// Stats implements executor.Executor. What Shutdown changes it does not read.
func (e *Executor) Stats() executor.Stats {
	return executor.Stats{
		Steps: e.steps.Load(), Tokens: e.tokens.Load(), Rows: e.rows.Load(), StepTime: time.Duration(e.busy.Load()), Replays: e.replays.Load(),
		OpenSlots:   int(e.openSlots.Load()),
		MemoryBytes: map[string]int64{"weights": e.plan.Weights, "kv": e.plan.KV(), "activations": e.plan.buffers, "graphs": e.plan.graphs},
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
