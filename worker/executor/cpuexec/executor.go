package cpuexec

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc/panics"
	"github.com/sourcegraph/conc/pool"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/executor/slots"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/sampler"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

var _ executor.Executor = (*Executor)(nil)

// slot is what draws of one open sequence need. Only the caller's goroutine touches
// it. The step in flight has references to seq, counts and the table. Nobody writes these meanwhile
// but the step itself: Launch needs the step to be over, and Close gives them away.
type slot struct {
	seq    *sequence
	counts *sampler.Counts // kept for the slot's next life; nil until first needed
}

// sequence is what draws need. Counts is nil unless the parameters penalize.
type sequence struct {
	sampler.Sequence
	params sampling.Params
}

// flight is the step that was launched and not yet waited for.
type flight struct {
	ticket  executor.Ticket
	batch   *step.Batch
	started time.Time
}

// Executor runs one model on the CPU. See executor.Executor for who may call what.
type Executor struct {
	cfg    Config
	info   executor.Info
	seqs   *slots.Set
	slots  []slot
	ticket executor.Ticket
	flight *flight // nil when no step is in flight; points at flying
	flying flight

	fwd     *forward
	w       *weights
	sampler sampler.Sampler
	hidden  []float32 // [headBlock, C]
	logits  []float32 // [headBlock, V]
	nets    nets
	result  step.Result
	// picks are the sampled and given positions of the step in flight, counted the
	// rows whose ids are counted.
	picks   []pick
	counted []counted

	team   *team
	loop   *pool.Pool
	run    func() // compute, made once so that a step allocates nothing
	unmap  func() error
	failed error
	down   bool
	// launch carries one token a step from Launch to the loop; capacity 1 and at
	// most one step in flight, so the send never blocks. Shutdown closes it.
	launch chan struct{}
	// done carries the end of a step from the loop to Wait; capacity 1.
	done chan error

	steps, tokens, rows atomic.Uint64
	busy                atomic.Int64 // nanoseconds
	openSlots           atomic.Int64
}

// pick is one position that gives an output.
type pick struct {
	row      int32
	token    int32 // index among the step's tokens
	position int32 // of the token that follows
	given    int32 // the id that follows, -1 to sample one
	seq      *sequence
}

// counted is a row whose ids are counted for penalties.
type counted struct {
	row    *step.Row
	counts *sampler.Counts
}

// push counts the row's ids up to a position.
func (c counted) push(position int32) {
	c.counts.Push(c.row.Tokens[c.counts.Len()-int(c.row.Start) : position-c.row.Start]...)
}

// headBlock is the number of sampled positions that pass through the output head
// at a time.
const headBlock = 8

// New loads the weights and starts the goroutines. The checkpoint may be closed
// when it returns. Shutdown must be called.
func New(cfg Config, k *model.Checkpoint) (*Executor, error) {
	cfg, err := cfg.withDefaults(k)
	if err != nil {
		return nil, err
	}
	if err := k.Check(); err != nil {
		return nil, err
	}
	w, err := loadWeights(k, cfg.Vocab)
	if err != nil {
		return nil, err
	}
	mc := k.Config
	kv, unmap, err := reserve(cfg.Pages * pageFloats(&mc, cfg.PageSize))
	if err != nil {
		return nil, err
	}
	e := &Executor{
		cfg: cfg, w: w, unmap: unmap,
		info: executor.Info{
			Model: cfg.Name, Device: "cpu", Vocab: cfg.Vocab, Hidden: mc.Hidden, Layers: mc.Layers,
			PageSize: cfg.PageSize, Pages: cfg.Pages, MaxSlots: cfg.MaxSlots, MaxTokens: cfg.MaxTokens,
			MaxRows: cfg.MaxRows, MaxContext: cfg.MaxContext, Depth: 1,
			Features: step.FEntropy | step.FTopK | step.FHidden | step.FLogits | step.FAdjust | step.FGiven | step.FAdopt | step.FMix,
		},
		slots:  make([]slot, cfg.MaxSlots),
		hidden: make([]float32, headBlock*mc.Hidden),
		logits: make([]float32, headBlock*cfg.Vocab),
		team:   newTeam(cfg.Workers),
		loop:   pool.New(),
		launch: make(chan struct{}, 1),
		done:   make(chan error, 1),
	}
	e.fwd = newForward(&mc, w, bestKernels(), e.team, cfg.MaxTokens, cfg.MaxContext, cfg.PageSize)
	e.fwd.kv = kv
	e.attachNets()
	e.seqs = slots.New(e.info, slots.Limits{})
	e.run = e.compute
	e.loop.Go(e.steploop)
	return e, nil
}

// steploop runs the launched steps until Shutdown.
func (e *Executor) steploop() {
	for range e.launch {
		var c panics.Catcher
		c.Try(e.run)
		if r := c.Recovered(); r != nil {
			e.done <- fmt.Errorf("%w: %w", executor.ErrFailed, r.AsError())
			continue
		}
		e.done <- nil
	}
}

// Info implements executor.Executor.
func (e *Executor) Info() executor.Info { return e.info }

// usable returns why no call can succeed any more.
func (e *Executor) usable() error {
	if e.down {
		return executor.ErrClosed
	}
	return e.failed
}

// Open implements executor.Executor.
func (e *Executor) Open(c executor.SeqConfig) (step.Slot, error) {
	if err := e.usable(); err != nil {
		return -1, err
	}
	if err := c.Check(&e.info); err != nil {
		return -1, fmt.Errorf("cpuexec: open: %w", err)
	}
	s, err := e.seqs.Open(c.Sampling.Penalizes())
	if err != nil {
		return -1, err
	}
	sl := &e.slots[s]
	q := &sequence{params: c.Sampling}
	promptLen := min(c.PromptLen, e.cfg.MaxContext) // no position is beyond
	q.Sequence = sampler.Sequence{Params: &q.params, Model: c.Model, PromptLen: int32(promptLen)}
	if q.params.Penalizes() {
		if sl.counts == nil {
			sl.counts = sampler.NewCounts(e.cfg.Vocab, 0)
		}
		sl.counts.Reset(promptLen)
		q.Counts = sl.counts
	}
	sl.seq = q
	e.openSlots.Add(1)
	return s, nil
}

// Truncate implements executor.Executor. Page table entries stay.
func (e *Executor) Truncate(s step.Slot, length int) error {
	if err := e.usable(); err != nil {
		return err
	}
	if err := e.seqs.Truncate(s, length); err != nil {
		return fmt.Errorf("cpuexec: %w", err)
	}
	return nil
}

// Close implements executor.Executor. Closing a slot that is not open does nothing.
func (e *Executor) Close(s step.Slot) {
	flying := e.flight != nil // the step in flight may use what the slot has
	if e.down || !e.seqs.Close(s, flying) {
		return
	}
	e.openSlots.Add(-1)
	if flying {
		e.slots[s].counts = nil
	}
}

// Stats implements executor.Executor.
func (e *Executor) Stats() executor.Stats {
	return executor.Stats{
		Steps: e.steps.Load(), Tokens: e.tokens.Load(), Rows: e.rows.Load(),
		StepTime:  time.Duration(e.busy.Load()),
		OpenSlots: int(e.openSlots.Load()),
		MemoryBytes: map[string]int64{
			"weights":     e.w.bytes + e.nets.weights,
			"kv":          int64(e.cfg.Pages) * int64(pageFloats(e.fwd.cfg, e.cfg.PageSize)) * 4,
			"activations": e.fwd.bytes() + e.nets.memory,
		},
	}
}

// Shutdown implements executor.Executor. Calling it again does nothing.
func (e *Executor) Shutdown() error {
	if e.down {
		return nil
	}
	e.down = true
	close(e.launch)
	e.loop.Wait()
	e.team.stop()
	return e.unmap()
}

// Wait implements executor.Executor. After an error of ctx the step goes on, and
// Wait may be called again for the same ticket.
func (e *Executor) Wait(ctx context.Context, t executor.Ticket, r *step.Result) error {
	if err := e.usable(); err != nil {
		return err
	}
	if e.flight == nil || e.flight.ticket != t {
		return fmt.Errorf("cpuexec: wait: ticket %d is not in flight", t)
	}
	var err error
	select {
	case err = <-e.done:
	case <-ctx.Done():
		// A step that has just ended counts, so that a late caller gets its result.
		select {
		case err = <-e.done:
		default:
			return ctx.Err()
		}
	}
	e.busy.Add(int64(time.Since(e.flight.started)))
	e.flight = nil
	e.flying.batch = nil
	if err != nil {
		e.failed = err
		return err
	}
	copyResult(r, &e.result)
	return nil
}

// copyResult copies into the caller's buffers.
func copyResult(dst, src *step.Result) {
	dst.Out = growOut(dst.Out, len(src.Out))
	for i := range src.Out {
		d, s := &dst.Out[i], &src.Out[i]
		top, hidden, logits := d.Top, d.Hidden, d.Logits
		*d = *s
		d.Top = append(top[:0], s.Top...)
		d.Hidden = append(hidden[:0], s.Hidden...)
		d.Logits = append(logits[:0], s.Logits...)
	}
}

// growOut returns out with length n, keeping the buffers of its elements.
func growOut(out []step.Out, n int) []step.Out {
	out = out[:cap(out)]
	for len(out) < n {
		out = append(out, step.Out{})
	}
	return out[:n]
}
