package executor

import (
	"context"
	"errors"
	"time"

	"github.com/tokenrouter/tokenrouter/api/sampling"
	"github.com/tokenrouter/tokenrouter/worker/step"
)

var (
	// ErrNoSlot says that all slots are open. The scheduler's row limit must not exceed Info.MaxSlots.
	ErrNoSlot = errors.New("executor: no free slot")
	// ErrBadBatch says that a batch breaks a rule of step.Batch; nothing was run.
	ErrBadBatch = errors.New("executor: bad batch")
	// ErrUnsupported says that a sequence needs a feature that Info.Features lacks.
	ErrUnsupported = errors.New("executor: not supported")
	// ErrFailed says that the device or model can no longer be used. Every later
	// call fails too; the owner restarts the replica.
	ErrFailed = errors.New("executor: failed")
	// ErrClosed says that Shutdown has been called.
	ErrClosed = errors.New("executor: closed")
)

// Info describes a loaded model and its limits. It does not change.
type Info struct {
	Model  string // served name
	Device string // "cpu" or the device's name
	// Vocab is the number of real ids; rows of the output head above it are padding.
	Vocab      int
	Hidden     int
	Layers     int
	PageSize   int // token slots in a page
	Pages      int // pages of the pool
	MaxSlots   int // sequences open at a time
	MaxTokens  int // tokens in one step
	MaxRows    int // rows in one step
	MaxContext int // positions in one sequence
	Depth      int // steps in flight at a time
	// Nets names the router nets attached, in the order that step.Row.Net counts in. An
	// executor offers step.FScore if it has any.
	Nets []string
	// Features are the outputs offered and the abilities (step.FAdjust and so on).
	Features step.Feature
}

// MaxNets bounds Info.Nets.
const MaxNets = 16

// SeqConfig is what stays the same for a sequence while its slot is open.
type SeqConfig struct {
	// Sampling has slices that must not change while the slot is open.
	Sampling sampling.Params
	// Model is the key of this model's random draws (its index in the deployment).
	Model uint8
	// PromptLen is the number of prompt ids: positions from there on are the
	// answer, for penalties and MinTokens. It may exceed what has been fed so far.
	PromptLen int
}

// Ticket names a launched step.
type Ticket uint64

// Stats counts work since the executor was built.
type Stats struct {
	Steps, Tokens, Rows uint64
	// StepTime is the total time between launch and result.
	StepTime time.Duration
	// Replays is the number of steps whose layers were replayed from a captured graph.
	Replays uint64
	// OpenSlots is the number of slots open now.
	OpenSlots int
	// MemoryBytes is what the executor holds, by use ("weights", "kv", "activations", "graphs").
	MemoryBytes map[string]int64
}

// Executor runs one loaded model. Calls come from one goroutine (the decode
// loop of a sub-service) except Info and Stats, which any goroutine may call.
type Executor interface {
	Info() Info
	// Open reserves a slot with an empty page table and no valid positions. Its
	// errors are ErrNoSlot, ErrUnsupported and those of SeqConfig.Check.
	Open(SeqConfig) (step.Slot, error)
	// Truncate sets the number of valid positions of a slot. It takes effect
	// before the next Launch. Length must not exceed the present one. What was fed
	// after it no longer counts for penalties: a slot that was truncated and fed
	// again gives the same results as one that went straight on.
	Truncate(s step.Slot, length int) error
	// Close frees the slot. Its pages may be reused only once all steps
	// launched before have been waited for.
	Close(step.Slot)
	// Launch starts a step and does not block; at most Info.Depth steps are in flight.
	Launch(*step.Batch) (Ticket, error)
	// Wait blocks until the step is done and fills r. Tickets are waited for in launch order.
	// An error other than ctx's means that the model has failed. Where a driver or a device hangs, neither Launch nor the step
	// may ever end: the owner watches both (subservice.ErrHung), and leaves the executor as it is then.
	Wait(ctx context.Context, t Ticket, r *step.Result) error
	Stats() Stats
	// Shutdown releases everything. It waits for steps in flight.
	Shutdown() error
}
