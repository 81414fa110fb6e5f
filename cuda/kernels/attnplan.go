package kernels

import "math"

// AttnScale is AttnParams.Scale of a model with plain scaling: 1/sqrt(D), in base 2.
func AttnScale(headDim int) float32 { return float32(math.Log2E / math.Sqrt(float64(headDim))) }

// AttnPlan cuts a step's rows into the work items of attn. Memory is kept between steps.
//
// A tile with several chunks is spread over blocks, one chunk each, while there is room for partials; otherwise one
// block walks all its chunks. Both give the same bits, so the choice is about speed alone.
type AttnPlan struct {
	Items    []AttnItem
	Combines []AttnCombine
	tile     int
	room     int // partials left
	used     int
}

// Reset starts a step with room for a number of partials.
func (p *AttnPlan) Reset(d Dims, partials int) {
	p.Items, p.Combines, p.tile, p.room, p.used = p.Items[:0], p.Combines[:0], d.TileTokens(), partials, 0
}

// Add plans a row: n tokens from index token of the step, the first at position pos of the sequence in slot.
func (p *AttnPlan) Add(token, n, pos, slot int) {
	for at := 0; at < n; at += p.tile {
		count := min(p.tile, n-at)
		chunks := (pos + at + count + Chunk - 1) / Chunk
		it := AttnItem{
			Token: int32(token + at), NTok: int32(count), Pos: int32(pos + at), Slot: int32(slot), ChunkEnd: int32(chunks), Partial: -1,
		}
		if chunks == 1 || chunks > p.room {
			p.Items = append(p.Items, it)
			continue
		}
		it.Combine = int32(len(p.Combines))
		p.Combines = append(p.Combines, AttnCombine{Token: it.Token, NTok: it.NTok, Partial: int32(p.used), NChunks: int32(chunks)})
		for c := range chunks {
			it.Chunk, it.ChunkEnd, it.Partial = int32(c), int32(c+1), int32(p.used+c)
			p.Items = append(p.Items, it)
		}
		p.room -= chunks
		p.used += chunks
	}
}

// Partials is the number of partials that the planned items write.
func (p *AttnPlan) Partials() int { return p.used }
