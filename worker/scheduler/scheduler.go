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
	Queued               // waits for a slot and pages: new, or preempted
	Running              // has the turn here
	Parked               // the turn is elsewhere; slot and pages are kept, unless preempted
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

// Reserve says how many pages a sequence is promised on admission.
type Reserve uint8

const (
	// ReserveLazy promises the pages of the known ids and Config.AheadPages more.
	// Later pages are taken when a step needs them, from others if there are none.
	ReserveLazy Reserve = iota
	// ReserveFull promises the pages of MaxLen positions, so that an admitted
	// sequence never needs those of others.
	ReserveFull
)

// Config has the limits of one sub-service.
type Config struct {
	MaxRows   int // rows in a step
	MaxTokens int // tokens in a step
	// ChunkTokens bounds one prefill chunk, and the sum of the chunks that share
	// a step with decodes or extends. 1 to MaxTokens.
	ChunkTokens int
	MaxSlots    int // sequences admitted at a time, parked ones included
	MaxQueue    int // sequences waiting for admission
	// Reserve is how pages are promised, AheadPages how many beyond the known ids
	// (ReserveLazy); 0 means 1.
	Reserve    Reserve
	AheadPages int
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
	case c.Reserve > ReserveFull:
		return fmt.Errorf("%w: Reserve %d, want 0 to %d", ErrBadConfig, c.Reserve, ReserveFull)
	case c.AheadPages < 0:
		return fmt.Errorf("%w: AheadPages %d, want at least 0", ErrBadConfig, c.AheadPages)
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
	// MaxLen is the most positions that the sequence may have: prompt plus longest answer.
	MaxLen int
	// Age orders requests: the smaller, the older. It is the time of submission at
	// the entry, in nanoseconds since any start, and the same on every model, so
	// that all agree on who goes first; ties go to the smaller ID. 0 means unknown:
	// the order of arrival here is used, which must not be mixed with given ages.
	Age int64
	// Visit says that the request is admitted elsewhere already, so that MaxQueue
	// does not apply.
	Visit bool
	// Cache lets the sequence use the prefix cache, and leave its full pages there.
	// Salt separates tenants: pages are shared among equal salts only.
	Cache bool
	Salt  [32]byte
	// Want, TopK, Net and Logprobs go into every sampled row of the sequence.
	Want           step.Feature
	TopK, Logprobs int32
	Net            uint8
}

// Counts is the scheduler's state in numbers.
type Counts struct {
	Queued, Running, Parked int
	Ready, InFlight         int // parts of Running
	// Away is the part of Parked that holds neither slot nor pages.
	Away int
	// Preemptions counts sequences that gave slot and pages back; it only grows,
	// as do all that follow.
	Preemptions uint64
	// Admissions counts leaves of the queue, QueueWait is the time spent in it.
	Admissions uint64
	QueueWait  time.Duration
	// Waits counts rows of completed steps, BatchWait is the time from being ready
	// to the start of the step: for a step in progress, or for a fuller batch.
	Waits     uint64
	BatchWait time.Duration
}

// Scheduler holds the sequences of one sub-service.
type Scheduler struct {
	cfg  Config
	pool *kv.Pool

	seqs  map[ID]*sequence
	slots map[step.Slot]*sequence // bound ones
	queue []*sequence             // by age, oldest first
	// ready has the ready sequences in ascending order of sequence.order.
	ready    []*sequence
	deferred []*sequence
	order    uint64 // last order given
	counts   Counts // Ready and Queued are the lengths above
	step     uint64 // last step planned

	// truncated has sequences whose executor must be told of a shorter length.
	truncated []*sequence
	// starved is the oldest sequence that found no pages for its next row. While
	// it waits, younger ones are given none.
	starved *sequence
	// preempted are the slots that the caller has to close.
	preempted []Preemption
	parks     uint64 // last order of parking given
	arrivals  int64  // ages given to sequences without

	entries []kv.Entry  // scratch of Next
	turn    []*sequence // scratch of fill
	going   []*sequence // scratch of Ahead
	unknown [1]int32    // stands for tokens that only the executor knows; never written

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

// PrefixHit returns the number of positions that the prefix cache had when the
// sequence was first admitted.
func (s *Scheduler) PrefixHit(id ID) int {
	if q := s.seqs[id]; q != nil {
		return q.hit
	}
	return 0
}

// Lived is what a sequence has been through so far; nothing if it is not known.
func (s *Scheduler) Lived(id ID) Lived {
	if q := s.seqs[id]; q != nil {
		return q.lived
	}
	return Lived{}
}

// admitted returns the number of sequences that hold a slot.
func (s *Scheduler) admitted() int { return s.counts.Running + s.counts.Parked - s.counts.Away }

// Counts returns the scheduler's state in numbers.
func (s *Scheduler) Counts() Counts {
	c := s.counts
	c.Queued, c.Ready = len(s.queue), len(s.ready)
	return c
}
