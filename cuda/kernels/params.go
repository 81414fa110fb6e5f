package kernels

import "github.com/tokenrouter/tokenrouter/cuda/driver"

// StepHead is the start of a step's descriptor; see params.cuh.
type StepHead struct {
	Step                                           uint64
	Tokens, Samples, Items, Patches, Ring, Padding int32
}

// Offsets of the counts in StepHead, for kernels that take the address of one count.
const (
	HeadTokens  = 8
	HeadSamples = 12
)

// Patch sets Table[Slot][Index] = Page.
type Patch struct{ Slot, Index, Page int32 }

// AttnItem is one tile of queries over a range of key chunks; see params.cuh.
type AttnItem struct {
	Token, NTok, Pos, Slot, Chunk, ChunkEnd, Partial, Combine int32
	Spans, Fresh, Parts                                       int32
	Whole                                                     uint32
}

// Sample is one position to sample from; see params.cuh. Given is -1 to sample.
type Sample struct {
	Token          int32
	Position       uint32
	SeedLo, SeedHi uint32
	Model          uint32
	Temperature    float32
	TopP           float32
	TopK           int32
	Top            int32
	Want           uint32
	Given          int32
	AdjustAt       int32
	AdjustN        int32
	MinP           float32
	Repetition     float32
	Frequency      float32
	Presence       float32
	Slot           int32
	Mix            float32
	MixN           int32
}

// MinMix is the smallest weight that a device gives its own model in a mixture: float32 holds its logarithm and a sum above it.
const MinMix = 1e-37

// Adjust is what applies to one id's logit at one sampled position; see params.cuh. In an entry of a mixture Bias is a probability.
type Adjust struct {
	ID   int32
	Kind uint32
	N    int32
	Bias float32
}

// Bits of Adjust.Kind.
const (
	AdjustSeen   = 1
	AdjustBanned = 2
)

// Values of a token's source in the descriptor.
const (
	SourceGiven = 0
	SourceLast  = 1
)

// Bits of Sample.Want. With WantNoTop the top list is for the score alone and stays on the device.
const (
	WantScore  = 1
	WantHidden = 2
	WantLogits = 4
	WantNoTop  = 8
)

// MaxTop bounds Sample.Top.
const MaxTop = 128

// Stat is the device's result for one sample.
type Stat struct {
	Max, LSE, Entropy, Margin float32
	ArgMax, Flags, Token      int32
	Logprob, Score            float32
	Padding                   int32
}

// TopEntry is an entry of a top list.
type TopEntry struct {
	ID    int32
	Logit float32
}

// PrepParams mirrors struct PrepParams.
type PrepParams struct {
	In, Out, Table, Slots, Turn, Last                              driver.Ptr
	IDsAt, SourceAt, PosAt, OwnerAt, PatchesAt, ItemsAt, SamplesAt int32
	MaxPages, PageSize, EntryBytes, Ring, Padding                  int32
}

// EmbedParams mirrors struct EmbedParams.
type EmbedParams struct{ Head, Table, IDs, X driver.Ptr }

// RmsnormParams mirrors struct RmsnormParams.
type RmsnormParams struct {
	Count, X, Delta, Weight, Samples, Out, Out32 driver.Ptr
	Eps                                          float32
	First, Late, Padding                         int32
}

// HeadsParams mirrors struct HeadsParams.
type HeadsParams struct {
	QKV, Bias, QNorm, KNorm, Rope driver.Ptr
	Eps                           float32
	Padding                       int32
}

// QkvpostParams mirrors struct QkvpostParams.
type QkvpostParams struct {
	Head, Pos, Slots, Q, Cache driver.Ptr
	Heads                      HeadsParams
}

// AttnParams mirrors struct AttnParams.
type AttnParams struct {
	Head, Items, Q, Cache, Table, Out, PartO, PartML, Arrived driver.Ptr
	MaxPages                                                  int32
	Scale                                                     float32
	Heads                                                     HeadsParams
	Last, Padding                                             int32
}

// MatmulParams mirrors struct MatmulParams.
type MatmulParams struct {
	Count, W, X, Y, Claims driver.Ptr
	// Partial is room for the sums of Panel's parts, of PanelRoom floats, and Arrived for PanelTiles counters, which are 0
	// before and after. Without them a block of it always has all of K.
	Partial, Arrived driver.Ptr
	N, K, LdY, Late  int32
	passes, _        int32 // over K; set by Panel
}

// SilumulParams mirrors struct SilumulParams.
type SilumulParams struct{ Head, GU, Out driver.Ptr }

// LogitPart is the device's result for a part of a row of logits; LogitParts is their number.
type LogitPart struct {
	Max, Second, Sum, Weighted float32
	ArgMax, Bad                int32
}

// LogitParts is the number of parts of a row.
const LogitParts = 32

// LogitpartParams mirrors struct LogitpartParams.
type LogitpartParams struct {
	Head, Logits, Parts driver.Ptr
	Ld, First           int32
}

// LogitstatsParams mirrors struct LogitstatsParams.
type LogitstatsParams struct {
	Head, Samples, Logits, Parts, Stats, Top driver.Ptr
	Ld, First                                int32
}

// AdjustParams mirrors struct AdjustParams.
type AdjustParams struct {
	Head, Samples, Adjusts, Saved, Logits, Stats driver.Ptr
	Ld, First, Settle, RingEntries               int32
}

// SampleParams mirrors struct SampleParams.
type SampleParams struct {
	Head, Samples, Logits, Stats, Last driver.Ptr
	Ld, First                          int32
}

// PublishParams mirrors struct PublishParams.
type PublishParams struct {
	Head, Samples, Stats, Top, Hidden, Logits driver.Ptr
	OutStats, OutTop, OutHidden, OutLogits    driver.Ptr
	OutStep, Arrived                          driver.Ptr
	RingBytes                                 uint64
	C, V, Ld, First                           int32
}

// HashfillParams mirrors struct HashfillParams.
type HashfillParams struct {
	Out           driver.Ptr
	Key, First, N uint64
	Scale, Offset float32
}

// ConvertParams mirrors struct ConvertParams. From is 1 for float32 and 2 for float16.
type ConvertParams struct {
	In, Out       driver.Ptr
	N             uint64
	From, Padding int32
}
