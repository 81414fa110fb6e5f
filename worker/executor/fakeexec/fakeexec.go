package fakeexec

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

// ErrBadConfig says that New was given limits out of range.
var ErrBadConfig = errors.New("fakeexec: bad config")

// maxCells bounds the modelled token slots (16 bytes each).
const maxCells = 1 << 26

// AllFeatures is every feature of package step; the fake offers all of them. With
// FAdjust it accepts penalties and the like, but what they do is up to the script.
// Pages can be adopted even if Info lacks FAdopt.
const AllFeatures = step.Outputs | step.FAdjust | step.FGiven | step.FAdopt

// Config says what the fake executor pretends to be.
type Config struct {
	// Info has the limits to enforce. Vocab, PageSize, Pages, MaxSlots, MaxTokens,
	// MaxRows, MaxContext and Depth must be positive.
	Info executor.Info
	// Script gives the tokens; nil means Hashed(Info.Vocab).
	Script Script
	// StepTime gives the time of a step; nil means none.
	StepTime func(*step.Batch) time.Duration
	// Now is the clock that timers follow; nil means time.Now.
	Now func() time.Time
	// Unchecked leaves out the checks of batches and contexts, whose cost grows with
	// the contexts. For simulations of callers that are tested with them.
	Unchecked bool
	// Fail makes the step with this number fail, and the executor with it, when
	// it returns an error. Nil means never.
	Fail func(step uint64) error
}

// Default returns a small configuration for tests.
func Default() Config {
	return Config{Info: executor.Info{
		Model: "fake", Device: "none", Vocab: 1000, Hidden: 8, Layers: 1,
		PageSize: 16, Pages: 256, MaxSlots: 16, MaxTokens: 256, MaxRows: 16,
		MaxContext: 1024, Depth: 1, Features: AllFeatures,
	}}
}

// Executor implements executor.Executor. One goroutine calls it, except for
// Info and Stats.
type Executor struct {
	cfg  Config
	logV float32
	lse  float32 // ln Σ exp of the fake logits

	slots  []sequence // by slot
	free   []step.Slot
	gen    uint64 // generations given, from 1
	memory memory

	step    uint64 // last step launched
	ticket  executor.Ticket
	waited  executor.Ticket
	flights []flight // in launch order
	spare   []step.Out
	busy    time.Time
	fault   error // set once a step has failed
	closed  bool

	mu    sync.Mutex
	stats executor.Stats // guarded by mu
}

// sequence is an open slot.
type sequence struct {
	gen   uint64 // 0 if the slot is free
	cfg   executor.SeqConfig
	table []int32 // page by index, -1 if not patched
	ids   []int32 // of the valid positions
	// prefixes are the chained hashes of ids, aligned with them.
	prefixes []uint64
	// last is what was sampled from the last valid position; -1 if nothing was.
	last int32
}

// push appends an id.
func (q *sequence) push(id int32) {
	prefix := uint64(0)
	if n := len(q.prefixes); n > 0 {
		prefix = q.prefixes[n-1]
	}
	q.ids = append(q.ids, id)
	q.prefixes = append(q.prefixes, chain(prefix, id))
	q.last = -1
}

// flight is a launched step.
type flight struct {
	ticket         executor.Ticket
	launched, done time.Time
	rows, tokens   int
	out            []step.Out
	err            error
}

var _ executor.Executor = (*Executor)(nil)

// New checks the limits and returns an executor with all slots free.
func New(cfg Config) (*Executor, error) {
	in := cfg.Info
	for _, f := range []struct {
		name  string
		value int
	}{
		{"Vocab", in.Vocab}, {"PageSize", in.PageSize}, {"Pages", in.Pages}, {"MaxSlots", in.MaxSlots},
		{"MaxTokens", in.MaxTokens}, {"MaxRows", in.MaxRows}, {"MaxContext", in.MaxContext}, {"Depth", in.Depth},
	} {
		if f.value < 1 || f.value > maxCells {
			return nil, fmt.Errorf("%w: %s %d, want 1 to %d", ErrBadConfig, f.name, f.value, maxCells)
		}
	}
	if in.Hidden < 0 || in.Hidden > maxCells || in.Pages > maxCells/in.PageSize {
		return nil, fmt.Errorf("%w: Hidden %d, %d pages of %d", ErrBadConfig, in.Hidden, in.Pages, in.PageSize)
	}
	if cfg.Script == nil {
		cfg.Script = Hashed(in.Vocab)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	e := &Executor{
		cfg:    cfg,
		logV:   float32(math.Log(float64(in.Vocab))),
		lse:    float32(logSumExp(in.Vocab)),
		slots:  make([]sequence, in.MaxSlots),
		memory: newMemory(in.Pages, in.PageSize),
	}
	for s := in.MaxSlots - 1; s >= 0; s-- {
		e.free = append(e.free, step.Slot(s))
	}
	return e, nil
}

// Info implements executor.Executor.
func (e *Executor) Info() executor.Info { return e.cfg.Info }

// Stats implements executor.Executor.
func (e *Executor) Stats() executor.Stats {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.stats
	s.MemoryBytes = map[string]int64{}
	return s
}

func (e *Executor) usable() error {
	if e.closed {
		return executor.ErrClosed
	}
	return e.fault
}

// Open implements executor.Executor.
func (e *Executor) Open(cfg executor.SeqConfig) (step.Slot, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if err := cfg.Check(&e.cfg.Info); err != nil {
		return 0, fmt.Errorf("fakeexec: open: %w", err)
	}
	if len(e.free) == 0 {
		return 0, executor.ErrNoSlot
	}
	s := e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	e.gen++
	e.slots[s] = sequence{gen: e.gen, cfg: cfg, last: -1}
	e.countSlots()
	return s, nil
}

func (e *Executor) countSlots() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.OpenSlots = len(e.slots) - len(e.free)
}

// Truncate implements executor.Executor. The page table entries past length are
// forgotten: growing again needs new patches.
func (e *Executor) Truncate(s step.Slot, length int) error {
	if err := e.usable(); err != nil {
		return err
	}
	q := e.open(s)
	if q == nil || length < 0 || length > len(q.ids) {
		return fmt.Errorf("%w: truncate slot %d to %d", executor.ErrBadBatch, s, length)
	}
	q.ids, q.prefixes, q.last = q.ids[:length], q.prefixes[:length], -1
	keep := (length + e.cfg.Info.PageSize - 1) / e.cfg.Info.PageSize
	for len(q.table) > keep {
		e.memory.unref(q.table[len(q.table)-1])
		q.table = q.table[:len(q.table)-1]
	}
	return nil
}

// Close implements executor.Executor. A slot that is not open is ignored.
func (e *Executor) Close(s step.Slot) {
	q := e.open(s)
	if q == nil {
		return
	}
	for _, page := range q.table {
		e.memory.unref(page)
	}
	*q = sequence{}
	e.free = append(e.free, s)
	e.countSlots()
}

// open returns the slot's sequence, nil if the slot is not open.
func (e *Executor) open(s step.Slot) *sequence {
	if s < 0 || int(s) >= len(e.slots) || e.slots[s].gen == 0 {
		return nil
	}
	return &e.slots[s]
}

// Launch implements executor.Executor. The result is computed at once and
// handed out by Wait when its time has passed.
func (e *Executor) Launch(b *step.Batch) (executor.Ticket, error) {
	if err := e.usable(); err != nil {
		return 0, err
	}
	if !e.cfg.Unchecked {
		if err := e.check(b); err != nil {
			return 0, fmt.Errorf("%w: step %d: %w", executor.ErrBadBatch, b.Step, err)
		}
	}
	e.step = b.Step
	e.ticket++
	f := flight{ticket: e.ticket, launched: e.cfg.Now(), rows: len(b.Rows), tokens: b.Tokens()}
	start := f.launched
	if e.busy.After(start) {
		start = e.busy // one step at a time; later ones queue
	}
	f.done = start
	if e.cfg.StepTime != nil {
		f.done = start.Add(max(0, e.cfg.StepTime(b)))
	}
	e.busy = f.done
	if e.cfg.Fail != nil {
		f.err = e.cfg.Fail(b.Step)
	}
	for _, p := range b.Patches {
		e.memory.patch(&e.slots[p.Slot], p.Index, p.Page)
	}
	// All contexts are read before anything is written, as adopted pages may be
	// shared with other rows of the batch.
	for i := range b.Rows {
		e.memory.adopt(&e.slots[b.Rows[i].Slot], int(b.Rows[i].Start))
	}
	f.out, e.spare = e.spare[:0], nil
	for i := range b.Rows {
		f.out = e.run(f.out, int32(i), &b.Rows[i])
	}
	e.flights = append(e.flights, f)
	return f.ticket, nil
}

// run writes one row's tokens and samples from its marked positions.
func (e *Executor) run(out []step.Out, i int32, r *step.Row) []step.Out {
	q := &e.slots[r.Slot]
	last := q.last
	for _, id := range r.Tokens {
		if r.Continue {
			id = last
		}
		e.memory.write(q, id, e.ticket)
	}
	e.memory.use(q, len(q.ids), e.ticket)
	for k, id := range r.Given {
		n := int(r.Start) + k + 1
		out = append(out, e.given(i, r, n, id, e.cfg.Script(q.cfg, q.ids[:n:n])))
	}
	for bit := min(len(r.Tokens), 64) - 1; bit >= 0; bit-- {
		if r.Sample>>bit&1 == 0 {
			continue
		}
		n := len(q.ids) - bit
		s := e.cfg.Script(q.cfg, q.ids[:n:n])
		o := e.output(i, r, n, s, q.cfg.Sampling.Seed)
		if bit == 0 {
			q.last = max(o.Token, 0) // whatever it is, a next row may feed it
		}
		out = append(out, o)
	}
	return out
}

// Wait implements executor.Executor. After ctx has ended the ticket can be
// waited for again.
func (e *Executor) Wait(ctx context.Context, t executor.Ticket, r *step.Result) error {
	if err := e.usable(); err != nil {
		return err
	}
	if len(e.flights) == 0 || e.flights[0].ticket != t {
		return fmt.Errorf("%w: wait for ticket %d, which is not the oldest in flight", executor.ErrBadBatch, t)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f := e.flights[0]
	if err := e.sleep(ctx, f.done); err != nil {
		return err
	}
	e.flights = e.flights[1:]
	e.waited = t
	if f.err != nil {
		e.fault = fmt.Errorf("%w: %w", executor.ErrFailed, f.err)
		return e.fault
	}
	r.Out = append(r.Out[:0], f.out...)
	e.spare = f.out
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stats.Steps++
	e.stats.Rows += uint64(f.rows)
	e.stats.Tokens += uint64(f.tokens)
	e.stats.StepTime += f.done.Sub(f.launched)
	return nil
}

// sleep blocks until the clock shows t or ctx ends.
func (e *Executor) sleep(ctx context.Context, t time.Time) error {
	for {
		left := t.Sub(e.cfg.Now())
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// Shutdown implements executor.Executor. It waits for the steps in flight.
func (e *Executor) Shutdown() error {
	if e.closed {
		return nil
	}
	if n := len(e.flights); n > 0 {
		if err := e.sleep(context.Background(), e.flights[n-1].done); err != nil {
			return err
		}
	}
	e.closed = true
	return nil
}
