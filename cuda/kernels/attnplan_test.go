package kernels

import (
	"math/rand/v2"
	"testing"
)

// Every chunk of every tile is in one item, tiles are within one row and one length of chunks, and partials within the room.
func TestAttnPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var p AttnPlan
	for round := range 2000 {
		d := Dims{Heads: 8 << rng.IntN(3), KVHeads: 8, HeadDim: 128}
		form := AttnForm(rng.IntN(int(AttnForms)))
		room := AttnRoom{Rows: rng.IntN(4000), Chunks: rng.IntN(400)}
		p.Reset(d, form, room)
		type row struct{ at, n, pos int }
		var rows []row
		at := 0
		for range 1 + rng.IntN(9) {
			r := row{at, 1 + rng.IntN(200)*rng.IntN(2), rng.IntN(3000)}
			p.Add(r.at, r.n, r.pos, len(rows))
			rows, at = append(rows, r), at+r.n
		}
		slots := 1 + rng.IntN(100)
		p.Finish(slots)
		chunksOf := map[int32]int32{} // token to how many of its chunks are in items
		tiles := map[int32]AttnItem{}
		arrivals := map[int32]int32{}
		usedChunks, covered := 0, 0
		for _, it := range p.Items {
			r := rows[it.Slot]
			spans, end := chunkSpans(int(it.Pos))
			last := int(it.Pos + it.NTok)
			if int(it.Token)-r.at != int(it.Pos)-r.pos || last > min(r.pos+r.n, end) || int(it.Spans) != spans || int(it.NTok)*d.Group() > attnRows[form] || int(it.Fresh) != r.pos {
				t.Fatalf("round %d: item %+v of row %+v", round, it, r)
			}
			if chunksOf[it.Token] != it.Chunk || it.ChunkEnd <= it.Chunk {
				t.Fatalf("round %d: item %+v begins after chunk %d", round, it, chunksOf[it.Token])
			}
			chunksOf[it.Token] = it.ChunkEnd
			for c := it.Chunk; it.Partial >= 0 && c < it.ChunkEnd; c++ { // a chunk's group is whole if all its chunks are in this item
				first := c / groupChunks * groupChunks
				in := first >= it.Chunk && min(first+groupChunks, int32(ceilDiv(last, spans*Span))) <= it.ChunkEnd
				if in != (it.Whole>>(c/groupChunks)&1 == 1) {
					t.Fatalf("round %d: whole groups %b of item %+v, chunk %d", round, it.Whole, it, c)
				}
			}
			if _, seen := tiles[it.Token]; !seen {
				covered += int(it.NTok)
				if it.Partial >= 0 {
					usedChunks += ceilDiv(last, spans*Span)
				}
			}
			tiles[it.Token] = it
			if it.Partial >= 0 {
				arrivals[it.Combine]++
			}
		}
		for token, it := range tiles {
			chunks := ceilDiv(int(it.Pos+it.NTok), int(it.Spans)*Span)
			if int(chunksOf[token]) != chunks || it.Partial >= 0 && (arrivals[it.Combine] != it.Parts || it.Parts < 2) {
				t.Fatalf("round %d: tile %+v has %d chunks, %d planned", round, it, chunks, chunksOf[token])
			}
		}
		if covered != at || p.PartialRows() > room.Rows || usedChunks > room.Chunks || p.Spread() != len(arrivals) || len(p.Items) > max(len(tiles), slots)+len(tiles) {
			t.Fatalf("round %d: %d of %d tokens, %d rows, %d chunks, %d items of %d tiles", round, covered, at, p.PartialRows(), usedChunks, len(p.Items), len(tiles))
		}
	}
}

// TestFormOf has the steps that were measured on both sides of the border.
func TestFormOf(t *testing.T) {
	for _, tc := range []struct {
		tokens, rows, longest int
		want                  AttnForm
	}{
		{1, 1, 1, AttnNarrow}, {64, 64, 1, AttnNarrow}, {16, 1, 16, AttnNarrow}, {15, 3, 5, AttnNarrow},
		{46, 17, 30, AttnNarrow}, // 16 that decode beside one of 30 tokens
		{24, 8, 3, AttnWide}, {40, 8, 5, AttnWide}, {72, 8, 16, AttnWide}, {64, 1, 64, AttnWide}, {2048, 1, 2048, AttnWide},
		{190, 64, 127, AttnWide}, // a chunk of a prompt beside 63 that decode
	} {
		if got := FormOf(tc.tokens, tc.rows, tc.longest); got != tc.want {
			t.Errorf("%d tokens in %d rows, up to %d: form %d, want %d", tc.tokens, tc.rows, tc.longest, got, tc.want)
		}
	}
}
