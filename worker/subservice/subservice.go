package subservice

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sourcegraph/conc"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/handoff"
	"github.com/tokenrouter/tokenrouter/internal/unwelcome"
	"github.com/tokenrouter/tokenrouter/policies"
	"github.com/tokenrouter/tokenrouter/worker/executor"
	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/schedule"
	"github.com/tokenrouter/tokenrouter/worker/scheduler"
	"github.com/tokenrouter/tokenrouter/worker/step"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer/chat"
)

// Config is a replica's complete configuration.
type Config struct {
	// Replica is this replica's name, unique in the cluster; Model the served name.
	Replica, Model string
	Executor       executor.Executor
	// Tokenizer and Template may be nil: without a template there is no chat, and
	// without a tokenizer Vocabulary is needed instead.
	Tokenizer  *tokenizer.Tokenizer
	Template   *chat.Template
	Vocabulary Vocabulary
	// StopIDs end an answer (the checkpoint's eos ids).
	StopIDs []int32
	// Deployments are those to begin with; see Set.
	Deployments []Deployment
	Scheduler   scheduler.Config
	// Clock is the time since Start; nil makes Start the time of New. Members of
	// one Coordinator must have the same.
	Clock func() time.Duration
	Start time.Time
	// Coordinator says when steps start, together with the other replicas of the
	// process; nil leaves it to the scheduler's threshold and longest wait. Order is
	// the model's place in the order of models, 0 for the first.
	Coordinator *schedule.Coordinator
	Order       int
	// Lookahead says whether steps are launched ahead, where the executor can.
	Lookahead Lookahead
	// HangAfter is what every step is given at least before it has hung; 0 is 2 s on a GPU, 5 min on a CPU.
	HangAfter time.Duration
	// HeldUp, if set, is how long other work of the process may hold the device up now: a step in progress is given that at
	// least. Any goroutine calls it; it must not wait for a replica.
	HeldUp func() time.Duration
	// CollaboratorWait is how long a turn waits for a lost collaborator to come back.
	CollaboratorWait time.Duration
	Logger           *slog.Logger
}

// Subservice is one replica. New builds it, Run runs it.
type Subservice struct {
	cfg  Config
	log  *slog.Logger
	exec executor.Executor
	info executor.Info
	pool *kv.Pool
	in   *inbox
	// clock is the scheduler's time.
	clock func() time.Duration
	// refused are the gateways whose versions are not spoken here.
	refused unwelcome.Log
	// words is the configuration's Vocabulary, or that of its Tokenizer.
	words Vocabulary
	// roster is what was set last, never nil; draining says that no request is taken in.
	roster   atomic.Pointer[roster]
	draining atomic.Bool

	// Owned by the decode loop from here on.
	sched *scheduler.Scheduler
	// present is the roster that the loop has taken up. linkedBy is when links to its
	// replicas should be up.
	present   *roster
	linkedBy  time.Duration
	seqs      map[uint64]*sequence
	ended     *tombstones
	links     map[string]Link
	lost      map[uint64]*sequence // sequences whose turn waits for a link
	parcels   []parcel             // frames that wait for room on their links
	untold    []untold             // events for client loops
	early     []early              // hand-offs that wait for their version
	hurried   bool                 // one of them is applied now, whatever its version
	flying    *flight              // the step in flight, of two the older one
	ahead     ahead
	result    step.Result
	judged    []*route      // the policies that have rows of the current step
	alive     time.Duration // when keepAlive last looked
	handoffs  uint64
	committed uint64
	paused    int // sequences with entryState.held
	// rows and seconds are of all steps so far.
	rows, seconds Histogram
	// member is the part in the Coordinator while Run runs, nil without one; round
	// is the round in which sequences were last let in.
	member *schedule.Member
	round  uint64
	group  group
	// measured is what the replica knows of its own steps.
	measured estimator
	// Scratch of hand-offs: none of it is kept by those who get it.
	handoff policies.Handoff
	frame   handoff.Frame
	unseen  []handoff.Token
	came    []int32

	// thresholds are the tables that were set last, by deployment. The map never changes.
	thresholds atomic.Pointer[map[string]*Thresholds]
	estimates  atomic.Pointer[[]Estimate]

	stats  atomic.Pointer[Stats]
	traces traces
	// watch looks after the loop's steps while Run runs.
	watch *watchdog
}

// Stats is a snapshot taken between steps.
type Stats struct {
	Queued, Running, Parked int
	// PagesHeld is the number of pages not free; PagesTotal is the pool.
	PagesHeld, PagesTotal int
	PageAllocs            uint64
	Slots                 int
	Steps, Tokens, Rows   uint64
	StepTime              time.Duration
	// Handoffs counts turns sent, Committed the tokens this model wrote.
	Handoffs, Committed uint64
	Links               int
	// Cached counts pages in the prefix cache; Queries and Hits the pages looked
	// for and found in it; Preemptions the sequences that had to make room.
	Cached, Evictions, Queries, Hits, Preemptions uint64
	// Admissions counts leaves of the queue and QueueWait the time in it, Waits
	// the rows of steps and BatchWait the time for which they were ready before.
	Admissions, Waits    uint64
	QueueWait, BatchWait time.Duration
	// BatchRows and StepSeconds are of all steps; see FirstRows and FirstSeconds.
	BatchRows, StepSeconds Histogram
	// Paused is the number of sequences whose gateway is too far behind.
	Paused int
	// AheadSteps were launched before the results of the step before were known.
	// AheadUsed are their rows that went on from it, AheadWasted those that would
	// have, had their sequence not left.
	AheadSteps, AheadUsed, AheadWasted uint64
}

// New checks the configuration and builds a replica. It starts nothing.
func New(cfg Config) (*Subservice, error) {
	info := cfg.Executor.Info()
	if cfg.Replica == "" || len(cfg.Replica) > handoff.MaxName {
		return nil, fmt.Errorf("sub-service: replica name %q must have 1 to %d bytes", cfg.Replica, handoff.MaxName)
	}
	words := cfg.Vocabulary
	switch {
	case words == nil && cfg.Tokenizer == nil:
		return nil, fmt.Errorf("sub-service %s: it has neither a tokenizer nor a vocabulary", cfg.Replica)
	case words == nil:
		words = tokenized{cfg.Tokenizer}
	}
	if cfg.CollaboratorWait == 0 {
		cfg.CollaboratorWait = 10 * time.Second
	}
	pool, err := kv.NewPool(info.Pages, info.PageSize)
	if err != nil {
		return nil, fmt.Errorf("sub-service %s: %w", cfg.Replica, err)
	}
	sched, err := scheduler.New(cfg.Scheduler, pool)
	if err != nil {
		return nil, fmt.Errorf("sub-service %s: %w", cfg.Replica, err)
	}
	s := &Subservice{
		cfg: cfg, log: cfg.Logger.With("replica", cfg.Replica), exec: cfg.Executor, info: info,
		ahead: newAhead(cfg.Lookahead, &info), pool: pool, words: words, in: newInbox(), clock: cfg.Clock, sched: sched, round: 1, group: newGroup(),
		seqs:  map[uint64]*sequence{},
		watch: newWatchdog(&info, patienceWith(&info, cfg.HangAfter), cfg.HeldUp),
		ended: newTombstones(maxTombstones), links: map[string]Link{}, lost: map[uint64]*sequence{},
	}
	if s.clock == nil {
		s.cfg.Start = time.Now()
		s.clock = func() time.Duration { return time.Since(s.cfg.Start) }
	}
	s.roster.Store(&roster{})
	if err := s.Set(cfg.Deployments, nil); err != nil {
		return nil, err
	}
	s.takeRoster()
	s.publish()
	return s, nil
}

// Drain lets the replica take in no new request. What it has goes on, and turns of
// other entries' requests still come: those that have no other replica need this one.
func (s *Subservice) Drain() { s.draining.Store(true) }

// now is the scheduler's time.
func (s *Subservice) now() time.Duration { return s.clock() }

// Stats returns the latest snapshot. Any goroutine may call it.
func (s *Subservice) Stats() Stats { return *s.stats.Load() }

// StepAllowed is what the step in progress is given before it has hung, but for HeldUp; 0 without one. Any goroutine may call
// it.
func (s *Subservice) StepAllowed() time.Duration { return s.watch.allowed() }

// Run runs the decode loop. It returns when ctx ends (with nil), the executor
// fails, or a step hangs (ErrHung, also while ctx ends); all requests have then been
// told, and their pages freed.
func (s *Subservice) Run(ctx context.Context) error {
	s.join(s.in.poke)
	// Steps are waited for even when ctx ends: their pages may be reused only afterwards.
	steps, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	ended := make(chan struct{}) // closed when the loop has
	var loop conc.WaitGroup
	var failed error // the loop's, until it has ended
	loop.Go(func() {
		defer close(ended)
		failed = s.decodeLoop(ctx, steps)
	})
	if hung := s.watch.watch(s.now, ended, s.log); hung != nil {
		// The loop is not waited for. It ends when the executor comes back, or with the process.
		s.exec = unreachable{s.exec}
		return s.stop(hung)
	}
	loop.Wait()
	return s.stop(failed)
}

// stop tells everyone that the loop has ended, and why.
func (s *Subservice) stop(err error) error {
	if s.member != nil {
		s.member.Leave(s.now())
	}
	failure := &generate.Error{Code: generate.CodeUnavailable, Message: "the replica is stopping", Retryable: true}
	if err != nil {
		failure.Message = "the replica failed"
		err = fmt.Errorf("sub-service %s: %w", s.cfg.Replica, err)
	}
	for _, m := range s.in.close() {
		if sub, ok := m.(*submission); ok {
			sub.reply <- failure
		}
	}
	for _, q := range inOrder(s.seqs) {
		if q.entry != nil {
			s.fail(q, failure)
		} else {
			s.remove(q)
		}
	}
	s.publish()
	s.tellClients()
	return err
}

// publish takes the snapshot that Stats returns.
func (s *Subservice) publish() {
	c := s.sched.Counts()
	p := s.pool.Counts()
	x := s.exec.Stats()
	s.stats.Store(&Stats{
		Queued: c.Queued, Running: c.Running, Parked: c.Parked,
		PagesHeld: p.Held + p.Quarantined, PagesTotal: s.pool.Total(), PageAllocs: p.Allocs,
		Slots: x.OpenSlots, Steps: x.Steps, Tokens: x.Tokens, Rows: x.Rows, StepTime: x.StepTime,
		Handoffs: s.handoffs, Committed: s.committed, Links: len(s.links),
		Cached: uint64(p.Cached), Evictions: p.Evictions, Queries: p.Queries, Hits: p.Hits, Preemptions: c.Preemptions,
		Admissions: c.Admissions, QueueWait: c.QueueWait, Waits: c.Waits, BatchWait: c.BatchWait,
		BatchRows: s.rows, StepSeconds: s.seconds, Paused: s.paused,
		AheadSteps: s.ahead.steps, AheadUsed: s.ahead.used, AheadWasted: s.ahead.wasted,
	})
}
