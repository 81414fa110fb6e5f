package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tokenrouter/tokenrouter/worker/kv"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

var (
	// ErrBadConfig says that New was given limits that make no sense.
	ErrBadConfig = errors.New("scheduler: bad config")
	// ErrBadSpec says that a sequence has no tokens or more than its MaxLen.
	ErrBadSpec = errors.New("scheduler: bad sequence")
	// ErrQueueFull says that Config.MaxQueue sequences are waiting; try later or elsewhere.
	ErrQueueFull = errors.New("scheduler: queue full")
	// ErrNeverFits says that the whole pool is too small for the sequence.
	ErrNeverFits = errors.New("scheduler: sequence never fits")
	// ErrNoRoom says that no slot or not enough pages are free now.
	ErrNoRoom = errors.New("scheduler: no room")
	// ErrDuplicate says that the id is in use.
	ErrDuplicate = errors.New("scheduler: duplicate id")
	// ErrUnknown says that no sequence has the id.
	ErrUnknown = errors.New("scheduler: unknown id")
	// ErrState says that the event is not allowed in the sequence's state.
	ErrState = errors.New("scheduler: wrong state")
	// ErrInFlight says that the sequence is part of a step that has not completed.
	ErrInFlight = errors.New("scheduler: in flight")
	// ErrTooLong says that the ids would exceed the sequence's MaxLen.
	ErrTooLong = errors.New("scheduler: beyond the reserved length")
	// ErrNoTokens says that there is no id to append or to feed.
	ErrNoTokens = errors.New("scheduler: no tokens")
	// ErrBadLength says that Truncate was asked to grow a sequence.
	ErrBadLength = errors.New("scheduler: bad length")
	// ErrBadSlot says that a slot is negative, taken, or already bound.
	ErrBadSlot = errors.New("scheduler: bad slot")
)

// ID names a sequence. It is unique among the sequences that are not finished.
type ID uint64

// Kind says what a row does. It has no effect on the executor.
type Kind uint8

const (
	// Prefill is a chunk of a first pass, or of a suffix longer than a chunk.
	Prefill Kind = iota
	// Extend feeds several tokens on kept keys and values.
	Extend
	// Decode feeds one token.
	Decode
)

// String returns the name of the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Prefill:
		return "prefill"
	case Extend:
		return "extend"
	case Decode:
		return "decode"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// State says where a sequence is; see the package's diagram.
type State uint8

const (
	Gone    State = iota // finished, or never submitted
	Queued               // waits for a slot and pages
	Running              // has the turn here
	Parked               // the turn is elsewhere; slot and pages are kept
)

// String returns the name of the state in lower case.
func (s State) String() string {
	switch s {
	case Gone:
		return "gone"
	case Queued:
		return "queued"
	case Running:
		return "running"
	case Parked:
		return "parked"
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Config has the limits of one sub-service.
type Config struct {
	MaxRows   int // rows in a step
	MaxTokens int // tokens in a step
	// ChunkTokens bounds one prefill chunk, and the sum of the chunks that share
	// a step with decodes or extends. 1 to MaxTokens.
	ChunkTokens int
	MaxSlots    int // sequences admitted at a time, parked ones included
	MaxQueue    int // sequences waiting for admission
	// Threshold is the fewest ready sequences that start a step; 0 means 1.
	Threshold int
	// LongestWait bounds the wait of a ready sequence for others. 0 means
	// max(2·own step time, peer step time), and 50 ms until steps are measured.
	LongestWait time.Duration
}

func (c Config) validate() error {
	switch {
	case c.MaxRows < 1:
		return fmt.Errorf("%w: MaxRows %d, want at least 1", ErrBadConfig, c.MaxRows)
	case c.MaxTokens < 1:
		return fmt.Errorf("%w: MaxTokens %d, want at least 1", ErrBadConfig, c.MaxTokens)
	case c.ChunkTokens < 1 || c.ChunkTokens > c.MaxTokens:
		return fmt.Errorf("%w: ChunkTokens %d, want 1 to MaxTokens %d", ErrBadConfig, c.ChunkTokens, c.MaxTokens)
	case c.MaxSlots < 1:
		return fmt.Errorf("%w: MaxSlots %d, want at least 1", ErrBadConfig, c.MaxSlots)
	case c.MaxQueue < 1:
		return fmt.Errorf("%w: MaxQueue %d, want at least 1", ErrBadConfig, c.MaxQueue)
	case c.Threshold < 0:
		return fmt.Errorf("%w: Threshold %d, want at least 0", ErrBadConfig, c.Threshold)
	case c.LongestWait < 0:
		return fmt.Errorf("%w: LongestWait %s, want at least 0", ErrBadConfig, c.LongestWait)
	}
	return nil
}

// Spec describes a sequence when it is submitted.
type Spec struct {
	Tokens []int32 // ids known so far; copied
	// MaxLen is the number of positions to reserve: prompt plus longest answer.
	MaxLen int
	// Want, TopK and Logprobs go into every sampled row of the sequence.
	Want           step.Feature
	TopK, Logprobs int32
}

// Counts is the scheduler's state in numbers.
type Counts struct {
	Queued, Running, Parked int
	Ready, InFlight         int // parts of Running
}

// Scheduler holds the sequences of one sub-service.
type Scheduler struct {
	cfg  Config
	pool *kv.Pool

	seqs  map[ID]*sequence
	slots map[step.Slot]*sequence // bound ones
	queue []*sequence             // oldest first
	// ready has the ready sequences in ascending order of sequence.order.
	ready  []*sequence
	order  uint64 // last order given
	counts Counts // Ready and Queued are the lengths above
	step   uint64 // last step planned

	// truncated has sequences whose executor must be told of a shorter length.
	truncated []*sequence
	entries   []kv.Entry // scratch of Next

	delay delay
}

// New checks the limits and returns a scheduler that owns the pool.
func New(cfg Config, pool *kv.Pool) (*Scheduler, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if pool == nil {
		return nil, fmt.Errorf("%w: no pool", ErrBadConfig)
	}
	return &Scheduler{
		cfg:   cfg,
		pool:  pool,
		seqs:  make(map[ID]*sequence),
		slots: make(map[step.Slot]*sequence),
		delay: delay{threshold: max(cfg.Threshold, 1), fixed: cfg.LongestWait},
	}, nil
}

// Submit queues a sequence. It needs at least one token.
// Errors: ErrBadSpec, ErrNeverFits, ErrDuplicate, ErrQueueFull.
func (s *Scheduler) Submit(now time.Duration, id ID, spec Spec) error {
	if len(spec.Tokens) == 0 {
		return fmt.Errorf("%w: no tokens", ErrBadSpec)
	}
	if err := s.checkSpec(id, spec); err != nil {
		return err
	}
	if len(s.queue) >= s.cfg.MaxQueue {
		return fmt.Errorf("%w: %d waiting", ErrQueueFull, len(s.queue))
	}
	q := s.newSequence(now, id, spec)
	q.state = Queued
	s.queue = append(s.queue, q)
	return nil
}

// SubmitParked admits a sequence at once, before the queue, and parks it: the
// turn is elsewhere. The caller opens a slot and calls Bind. The token list may
// be empty. Errors: ErrBadSpec, ErrNeverFits, ErrDuplicate, ErrNoRoom.
func (s *Scheduler) SubmitParked(now time.Duration, id ID, spec Spec) error {
	if err := s.checkSpec(id, spec); err != nil {
		return err
	}
	if s.admitted() >= s.cfg.MaxSlots {
		return fmt.Errorf("%w: %d slots in use", ErrNoRoom, s.admitted())
	}
	table := kv.NewTable(s.pool)
	if err := table.Reserve(spec.MaxLen); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRoom, err)
	}
	q := s.newSequence(now, id, spec)
	q.table = table
	q.state = Parked
	s.counts.Parked++
	return nil
}

func (s *Scheduler) checkSpec(id ID, spec Spec) error {
	if len(spec.Tokens) > spec.MaxLen || spec.MaxLen < 1 {
		return fmt.Errorf("%w: %d tokens, MaxLen %d", ErrBadSpec, len(spec.Tokens), spec.MaxLen)
	}
	if need := s.pool.PagesFor(spec.MaxLen); need > s.pool.Total() {
		return fmt.Errorf("%w: %d pages, the pool has %d", ErrNeverFits, need, s.pool.Total())
	}
	if s.seqs[id] != nil {
		return fmt.Errorf("%w: %d", ErrDuplicate, id)
	}
	return nil
}

func (s *Scheduler) newSequence(now time.Duration, id ID, spec Spec) *sequence {
	q := &sequence{
		id:       id,
		ids:      slices.Clone(spec.Tokens),
		maxLen:   spec.MaxLen,
		want:     spec.Want,
		topK:     spec.TopK,
		logprobs: spec.Logprobs,
		first:    true,
		since:    now,
	}
	s.seqs[id] = q
	return q
}

// admitted returns the number of sequences that hold a slot.
func (s *Scheduler) admitted() int { return s.counts.Running + s.counts.Parked }

// Admit moves queued sequences to running, oldest first, while slots and pages
// permit. One that does not fit holds back those behind it, so that a long
// sequence is not overtaken for ever. The caller opens an executor slot for each
// and calls Bind.
func (s *Scheduler) Admit(now time.Duration) []ID {
	var ids []ID
	for len(s.queue) > 0 && s.admitted() < s.cfg.MaxSlots {
		q := s.queue[0]
		table := kv.NewTable(s.pool)
		if table.Reserve(q.maxLen) != nil {
			break
		}
		q.table = table
		q.state = Running
		q.since = now
		s.counts.Running++
		s.queue[0] = nil
		s.queue = s.queue[1:]
		ids = append(ids, q.id)
	}
	return ids
}

// Bind tells the executor slot of an admitted sequence. A running one becomes
// ready, and counts as waiting since its admission.
// Errors: ErrUnknown, ErrState, ErrBadSlot.
func (s *Scheduler) Bind(id ID, slot step.Slot) error {
	q, err := s.find(id)
	if err != nil {
		return err
	}
	if q.state == Queued {
		return fmt.Errorf("%w: bind %d, which is queued", ErrState, id)
	}
	if q.bound || slot < 0 || s.slots[slot] != nil {
		return fmt.Errorf("%w: bind %d to slot %d", ErrBadSlot, id, slot)
	}
	q.slot, q.bound = slot, true
	s.slots[slot] = q
	s.settle(q, q.since)
	return nil
}

func (s *Scheduler) find(id ID) (*sequence, error) {
	q := s.seqs[id]
	if q == nil {
		return nil, fmt.Errorf("%w: %d", ErrUnknown, id)
	}
	return q, nil
}

// Known returns the number of committed ids held, 0 if the sequence is gone.
func (s *Scheduler) Known(id ID) int {
	if q := s.seqs[id]; q != nil {
		return len(q.ids)
	}
	return 0
}

// Cached returns the number of positions whose keys and values are valid. While
// a step is in flight its tokens do not count.
func (s *Scheduler) Cached(id ID) int {
	if q := s.seqs[id]; q != nil {
		return q.cached
	}
	return 0
}

// State returns where the sequence is.
func (s *Scheduler) State(id ID) State {
	if q := s.seqs[id]; q != nil {
		return q.state
	}
	return Gone
}

// Tokens returns the known ids. The caller must not change them; they are valid
// until the next event of the sequence.
func (s *Scheduler) Tokens(id ID) []int32 {
	if q := s.seqs[id]; q != nil {
		return slices.Clip(q.ids)
	}
	return nil
}

// Slot returns the executor slot of a bound sequence.
func (s *Scheduler) Slot(id ID) (step.Slot, bool) {
	if q := s.seqs[id]; q != nil && q.bound {
		return q.slot, true
	}
	return 0, false
}

// Counts returns the scheduler's state in numbers.
func (s *Scheduler) Counts() Counts {
	c := s.counts
	c.Queued, c.Ready = len(s.queue), len(s.ready)
	return c
}
