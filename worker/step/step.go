package step

// Slot names an open sequence on an executor. Slots are small non-negative
// integers, reused after Close.
type Slot int32

// Feature is a set of extra outputs wanted for the sampled positions of a row.
// All features are taken from the raw logits (before temperature, penalties and
// truncation) over the real vocabulary, never over padded rows.
type Feature uint32

const (
	// FEntropy asks for the entropy of the softmax at temperature 1, in nats.
	FEntropy Feature = 1 << iota
	// FTopK asks for the Row.TopK largest raw logits, descending, lowest id first on ties.
	FTopK
	// FHidden asks for the vector handed to the output head (after the final norm).
	FHidden
	// FLogits asks for all raw logits of the real vocabulary. For tests and references.
	FLogits
	// FScore asks for the score of one of the router nets attached to the model (Row.Net).
	FScore
)

// Outputs are the features that a row may want.
const Outputs = FEntropy | FTopK | FHidden | FLogits | FScore

// What executors can do besides. These bits stand in executor.Info.Features
// alone; a row never wants them.
const (
	// FAdjust says that sampling obeys MinP, penalties, LogitBias and MinTokens.
	FAdjust Feature = 1 << (16 + iota)
	// FGiven says that rows may have Given.
	FGiven
	// FAdopt says that a slot may begin with pages that other slots have written
	// (see Row.Start).
	FAdopt
	// FContinue says that rows may have Continue, and that two steps may be in flight.
	FContinue
	// FMix says that rows may have Mix.
	FMix
)

// Row is one sequence's part of a step.
type Row struct {
	Slot Slot
	// Start is the position of Tokens[0]. Invariant: it equals the number of
	// positions of the slot whose keys and values are valid. While there are none,
	// it may be any multiple of the page size: the pages of the positions before it
	// are then adopted. Steps that have completed wrote them for other slots with
	// the same ids; they are read, and never written by this slot.
	Start int32
	// Prefix are the ids of the positions before Start, in a row that adopts pages.
	// Needed if the sequence penalizes ids, else it may be nil.
	Prefix []int32
	// Tokens are the ids to feed, at least one. The pages that hold positions
	// [0, Start+len(Tokens)) must have been patched in by this step or earlier.
	Tokens []int32
	// Continue says that the row feeds the token that was last sampled for its slot, which the caller need not know yet:
	// the step that samples it may be in flight. Tokens then has one element, whose value is not used. The last row of
	// the slot sampled its last position, and nothing has been truncated since. Needs FContinue; sequences that
	// penalize ids cannot do it.
	Continue bool
	// Sample marks the positions to sample from: bit i is the i-th position
	// counted from the row's end (bit 0 is the last token). Zero means none, as
	// in a prefill chunk that is not the last.
	Sample uint64
	// Given asks for the log-probabilities of ids that the caller chose: Given[i] is
	// the id that follows Tokens[i]. It may be shorter than Tokens, is not bound to
	// 64 positions, and needs FGiven and Logprobs of at least 0. Invariant: no
	// position is both given and marked in Sample.
	Given []int32
	// Want lists the features of the sampled positions; TopK is the length for
	// FTopK. Given positions have none.
	Want Feature
	TopK int32
	// Net is which of the executor's nets gives the score (FScore), by its place in
	// executor.Info.Nets.
	Net uint8
	// Mix is mixed into the distribution that the row draws from; nil for nothing.
	// Needs FMix. Features and log-probabilities stay the model's own.
	Mix *Mixture
	// Logprobs is the number of alternatives to report with each sampled or given
	// token; -1 means that no log-probability is wanted.
	Logprobs int32
}

// Mixture is another model's distribution, cut to some ids. The row draws from
// Weight·p + (1-Weight)·p', with p the softmax of its raw logits and p' the
// probabilities of Entries, 0 for all other ids. Penalties, temperature and
// truncation apply to the logarithms of that.
type Mixture struct {
	// Weight is in [0, 1].
	Weight float32
	// Entries have ids of the vocabulary, no more than it has; of each, ID and Logprob count. One
	// whose id comes again adds to it.
	Entries []TopEntry
}

// PagePatch sets entry Index of a slot's page table to Page.
type PagePatch struct {
	Slot  Slot
	Index int32
	Page  int32
}

// Batch is the immutable input of one step. An executor may keep it until the
// matching Wait has returned.
type Batch struct {
	// Step is a counter that grows by one each step of one model.
	Step uint64
	Rows []Row
	// Patches take effect before any row runs.
	Patches []PagePatch
}

// Tokens returns the number of tokens fed by the batch (T).
func (b *Batch) Tokens() int {
	n := 0
	for i := range b.Rows {
		n += len(b.Rows[i].Tokens)
	}
	return n
}

// Flags marks what went wrong with one sampled position.
type Flags uint8

const (
	// FlagNaN says that the logits held NaN or +Inf, or that nothing is left to draw
	// from; Token is not usable.
	FlagNaN Flags = 1 << iota
)

// TopEntry is one alternative: its id, raw logit and log-probability at temperature 1.
type TopEntry struct {
	ID      int32
	Logit   float32
	Logprob float32
}

// Out is what one sampled or given position gave.
type Out struct {
	// Row is the index into Batch.Rows.
	Row int32
	// Position is the position that the sampled token would take if committed,
	// that is, the fed position plus one.
	Position int32
	Token    int32
	Flags    Flags
	// Given says that Token comes from Row.Given. Then Logprob and Top (Row.Logprobs
	// entries) are set besides, and nothing else.
	Given bool
	// Logprob is ln p(Token) at temperature 1. Valid if the row asked for log-probabilities.
	Logprob float32
	// Entropy in nats (FEntropy); LogV is ln of the real vocabulary size.
	Entropy, LogV float32
	// Margin is the largest raw logit minus the second largest.
	Margin float32
	// Score is the sigmoid of a router net's output (FScore).
	Score float32
	// Top has the row's Logprobs or TopK largest entries, whichever is longer.
	Top []TopEntry
	// Hidden is [C] float32 (FHidden); Logits is [V] float32 (FLogits).
	Hidden, Logits []float32
}

// Result is the output of one step: the sampled and given positions in row order,
// and within a row by ascending position. Buffers are reused by the next Wait with
// the same Result.
type Result struct {
	Out []Out
}
