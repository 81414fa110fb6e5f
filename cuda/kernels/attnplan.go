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
	// AttnForms is the number of variants.
	AttnForms
)

// NarrowTokens is the most tokens of a step that AttnNarrow is for whatever its rows.
const NarrowTokens = 16

// Steps that AttnWide is for: of so many tokens a row on average, or with a row of more than so many.
const (
	wideMean    = 3
	wideLongest = 32
)

// FormOf is the variant for a step of so many tokens in so many rows, the longest of which has so many. The narrow one reads a
// sequence's keys and values for each of its tiles and makes more of the step's own; in a wide tile of one or two tokens most of its
// warps have nothing to do, and a single row of more would make all others wait. Measured on an H200, with rows of up to 30
// tokens beside others of one (docs/bench.md).
func FormOf(tokens, rows, longest int) AttnForm {
	if tokens <= NarrowTokens || tokens < wideMean*rows && longest <= wideLongest {
		return AttnNarrow
	}
	return AttnWide
}

// attnRows are the packed query rows of a tile.
var attnRows = [AttnForms]int{16, 64}

// attnThreads are the threads of a block.
const attnThreads = 128

// attnResident is how many blocks of a variant an H200 holds at once: four and two a multiprocessor.
var attnResident = [AttnForms]int{4 * 132, 2 * 132}

// AttnSlots is the number of items that run at once: that of blocks for each key head.
func (d Dims) AttnSlots(form AttnForm) int { return max(attnResident[form]/d.KVHeads, 1) }

// attnShared is the size of attn's struct Shared, for a ring of so many spans.
func attnShared(d Dims, form AttnForm, ring int) int {
	rows, shared, places := attnRows[form], 1, 2*ring // shared are rows that several warps work on
	if form == AttnNarrow {
		shared, places = rows, 2
	}
	return 2*d.HeadDim*(rows+places*Span) + 2*Span*shared + 2*4*4*shared + 48
}

// Span is the key positions of a span, MaxChunks the most chunks of a tile, groupChunks the chunks of a group.
const (
	Span        = 64
	MaxChunks   = 32
	groupChunks = 4
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
// A tile is one item, or its chunks are spread over as many items as there are blocks that would have nothing to do: with
// enough tiles to fill the device none is spread. Both give the same bits, so the choice is about speed alone.
type AttnPlan struct {
	Items []AttnItem
	// Form is the variant that the items are for.
	Form  AttnForm
	dims  Dims
	room  AttnRoom // left
	used  int      // rows of partials
	tiles []AttnItem
	// spread counts the tiles of several items.
	spread int
}

// Reset starts a step for a variant, with room for partials.
func (p *AttnPlan) Reset(d Dims, form AttnForm, room AttnRoom) {
	p.Items, p.tiles, p.dims, p.Form, p.room, p.used, p.spread = p.Items[:0], p.tiles[:0], d, form, room, 0, 0
}

// Add adds a row: n tokens from index token of the step, the first at position pos of the sequence in slot.
func (p *AttnPlan) Add(token, n, pos, slot int) {
	tile := attnRows[p.Form] / p.dims.Group()
	for at := 0; at < n; {
		spans, end := chunkSpans(pos + at)
		count := min(tile, n-at, end-pos-at)
		p.tiles = append(p.tiles, AttnItem{
			Token: int32(token + at), NTok: int32(count), Pos: int32(pos + at), Slot: int32(slot), Partial: -1, Spans: int32(spans),
			Fresh: int32(pos), ChunkEnd: int32(ceilDiv(pos+at+count, spans*Span)),
		})
		at += count
	}
}

// length is the positions that a tile walks.
func (it *AttnItem) length() int { return int(it.Pos + it.NTok) }

// Finish makes the items of all rows for so many blocks of each key head, or fewer.
func (p *AttnPlan) Finish(slots int) {
	total := 0
	for i := range p.tiles {
		total += p.tiles[i].length()
	}
	if len(p.tiles) > slots { // the longest first, so that the last blocks are short
		slices.SortStableFunc(p.tiles, func(a, b AttnItem) int { return b.length() - a.length() })
	}
	for _, it := range p.tiles {
		chunks, rows := int(it.ChunkEnd), int(it.NTok)*p.dims.Group()
		parts := min(slots*it.length()/total, chunks)
		if p.Form == AttnWide { // many rows: the join of single chunks would cost more than shorter items save
			parts = min(parts, chunks/groupChunks)
		}
		if parts < 2 || chunks > p.room.Chunks || chunks*rows > p.room.Rows {
			p.Items = append(p.Items, it)
			continue
		}
		it.Combine, it.Partial, it.Parts, it.Whole = int32(p.spread), int32(p.used), int32(parts), p.wholeGroups(chunks, parts)
		for i := range parts {
			it.Chunk, it.ChunkEnd = int32(p.cut(chunks, parts, i)), int32(p.cut(chunks, parts, i+1))
			p.Items = append(p.Items, it)
		}
		p.spread++
		p.room.Chunks -= chunks
		p.room.Rows -= chunks * rows
		p.used += chunks * rows
	}
}

// cut is where part i of a tile's chunks begins. In the wide variant that is a border of groups, since one partial is less to write
// and join than four, for many rows.
func (p *AttnPlan) cut(chunks, parts, i int) int {
	if p.Form == AttnWide && i < parts {
		return groupChunks * ((2*chunks*i + groupChunks*parts) / (2 * groupChunks * parts))
	}
	return ceilDiv(chunks*i, parts)
}

// wholeGroups has a bit for each group that lies in one part.
func (p *AttnPlan) wholeGroups(chunks, parts int) uint32 {
	groups := uint32(1)<<ceilDiv(chunks, groupChunks) - 1
	for i := 1; i < parts; i++ {
		if at := p.cut(chunks, parts, i); at%groupChunks != 0 {
			groups &^= 1 << (at / groupChunks)
		}
	}
	return groups
}

// PartialRows is the number of rows of partials that the items write.
func (p *AttnPlan) PartialRows() int { return p.used }

// Spread is the number of tiles with several items.
func (p *AttnPlan) Spread() int { return p.spread }
