package kernels

import (
	"math"
	"slices"
)

// AttnScale is AttnParams.Scale of a model with plain scaling: 1/sqrt(D), in base 2.
func AttnScale(headDim int) float32 { return float32(math.Log2E / math.Sqrt(float64(headDim))) }

// AttnForm is a variant of attn. Both give the same bits.
type AttnForm int

const (
	// AttnNarrow has tiles of 16 packed query rows, makes queries, keys and values of the step's tokens itself and appends
	// to the cache: Qkvpost does not come before it.
	AttnNarrow AttnForm = iota
	// AttnWide has tiles of 64 and follows Qkvpost.
	AttnWide
	attnForms
)

// NarrowTokens is the most tokens of a step that AttnNarrow is for. Beyond them tiles of 64 rows read a sequence's keys and
// values less often, and each block would make too many of the step's own.
const NarrowTokens = 16

// FormOf is the variant for a step of so many tokens, or of as many as its graph has.
func FormOf(tokens int) AttnForm {
	if tokens <= NarrowTokens {
		return AttnNarrow
	}
	return AttnWide
}

// attnRows are the packed query rows of a tile, attnThreads the threads of a block.
var (
	attnRows    = [attnForms]int{16, 64}
	attnThreads = [attnForms]int{128, 256}
)

// attnShared is the size of attn's struct Shared.
func attnShared(d Dims, form AttnForm) int {
	rows := attnRows[form]
	return 2*d.HeadDim*(rows+2*Span) + 2*Span*rows + 2*4*4*rows
}

// Span is the key positions of a span, MaxChunks the most chunks of a tile.
const (
	Span      = 64
	MaxChunks = 32
)

// chunkSpans is the number of spans in the chunks of a token at a position, the smallest power of two with which there are
// at most MaxChunks of them, and the end of the positions with this number. It depends on the position alone, so that a
// token's sums are joined in the same order in every step.
func chunkSpans(pos int) (spans, end int) {
	spans = 1
	for pos >= spans*Span*MaxChunks {
		spans *= 2
	}
	return spans, spans * Span * MaxChunks
}

// PartialRows is the rows of partials to keep room for with each chunk that may be spread; a decoding tile has as many as
// the group, at most 8.
const PartialRows = 8

// AttnRoom bounds what a step's tiles may spread over blocks.
type AttnRoom struct {
	Rows   int // of the partial arrays
	Chunks int // in all
}

// AttnPlan cuts a step's rows into the work items of attn. Memory is kept between steps.
//
// A tile with several chunks is spread over blocks, one chunk each, while there is room for partials and its sequence alone
// does not fill the device; otherwise one block walks all its chunks. Both give the same bits, so the choice is about speed
// alone.
type AttnPlan struct {
	Items    []AttnItem
	Combines []AttnCombine
	dims     Dims
	tile     int
	room     AttnRoom // left
	used     int      // rows of partials
}

// Reset starts a step for a variant, with room for partials.
func (p *AttnPlan) Reset(d Dims, form AttnForm, room AttnRoom) {
	p.Items, p.Combines, p.dims, p.tile, p.room, p.used = p.Items[:0], p.Combines[:0], d, attnRows[form]/d.Group(), room, 0
}

// fullGrid is the number of blocks that occupy an H200.
const fullGrid = 132

// Add plans a row: n tokens from index token of the step, the first at position pos of the sequence in slot.
func (p *AttnPlan) Add(token, n, pos, slot int) {
	first, split := len(p.Items), ceilDiv(n, p.tile)*p.dims.KVHeads < fullGrid
	for at := 0; at < n; {
		spans, end := chunkSpans(pos + at)
		count := min(p.tile, n-at, end-pos-at)
		chunks := ceilDiv(pos+at+count, spans*Span)
		it := AttnItem{
			Token: int32(token + at), NTok: int32(count), Pos: int32(pos + at), Slot: int32(slot), ChunkEnd: int32(chunks), Partial: -1,
			Spans: int32(spans), Fresh: int32(pos),
		}
		at += count
		if rows := count * p.dims.Group(); split && chunks > 1 && chunks <= p.room.Chunks && chunks*rows <= p.room.Rows {
			p.spread(it, chunks, rows)
			continue
		}
		p.Items = append(p.Items, it)
	}
	if !split {
		slices.Reverse(p.Items[first:]) // the longest first, so that the last blocks are short
	}
}

// spread gives each chunk of a tile an item of its own.
func (p *AttnPlan) spread(it AttnItem, chunks, rows int) {
	it.Combine = int32(len(p.Combines))
	p.Combines = append(p.Combines, AttnCombine{Token: it.Token, NTok: it.NTok, Partial: int32(p.used), NChunks: int32(chunks)})
	for c := range chunks {
		it.Chunk, it.ChunkEnd, it.Partial = int32(c), int32(c+1), int32(p.used+c*rows)
		p.Items = append(p.Items, it)
	}
	p.room.Chunks -= chunks
	p.room.Rows -= chunks * rows
	p.used += chunks * rows
}

// PartialRows is the number of rows of partials that the planned items write.
func (p *AttnPlan) PartialRows() int { return p.used }
