package kernels

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// run launches a kernel with one parameter struct; an empty grid is no work.
func run[P any](s *Set, st *driver.Stream, f *driver.Function, x, y, threads int, p *P) error {
	return runShared(s, st, f, x, y, threads, 0, p)
}

// runShared is run with dynamic shared memory.
func runShared[P any](s *Set, st *driver.Stream, f *driver.Function, x, y, threads, shared int, p *P) error {
	if x <= 0 || y <= 0 {
		return nil
	}
	l := driver.Launch{Grid: driver.Dim{uint32(x), uint32(y), 1}, Block: driver.X(uint32(threads)), SharedBytes: uint32(shared), PDL: s.overlapped}
	if err := driver.LaunchWith(st, f, &l, p); err != nil {
		return err
	}
	s.timeline.note(f, x*y)
	return nil
}

// Prep fetches a step's descriptor and resolves its pages.
func (s *Set) Prep(st *driver.Stream, p *PrepParams) error { return run(s, st, s.prep, 1, 1, 1024, p) }

// Embed looks up tokens embeddings. tokens, here and below, may exceed the count on the device: padding does nothing.
func (s *Set) Embed(st *driver.Stream, p *EmbedParams, tokens int) error {
	return run(s, st, s.embed, tokens, 1, 128, p)
}

// Rmsnorm adds and normalises rows. X has as many, whatever the count on the device is.
func (s *Set) Rmsnorm(st *driver.Stream, p *RmsnormParams, rows int) error {
	return run(s, st, s.rmsnorm, rows, 1, 256, p)
}

// Qkvpost finishes queries, keys and values and appends to the cache.
func (s *Set) Qkvpost(st *driver.Stream, p *QkvpostParams, tokens int) error {
	return run(s, st, s.qkvpost, tokens, ceilDiv(s.Dims.Heads+2*s.Dims.KVHeads, 4), 128, p)
}

// maxItemBlocks bounds the grid of attention: more items are walked by the same blocks.
const maxItemBlocks = 1 << 16

// Attn runs the work items of a step, planned for the same variant, on so many blocks for each key head; any number but 0 is
// right, if Items has room for as many. Heads is for AttnNarrow, whose product before it was launched with Late.
func (s *Set) Attn(st *driver.Stream, p *AttnParams, form AttnForm, blocks int) error {
	return runShared(s, st, s.attn[form], min(blocks, maxItemBlocks), s.Dims.KVHeads, attnThreads, attnShared(s.Dims, form, s.attnRing), p)
}

// Silumul applies the gate.
func (s *Set) Silumul(st *driver.Stream, p *SilumulParams, tokens int) error {
	return run(s, st, s.silumul, ceilDiv(s.Dims.FFN, 1024), tokens, 256, p)
}

// LogitPart computes features of the parts of rows.
func (s *Set) LogitPart(st *driver.Stream, p *LogitpartParams, samples int) error {
	return run(s, st, s.part, LogitParts, samples, 256, p)
}

// LogitStats joins the features and makes the top lists. LogitPart comes before it.
func (s *Set) LogitStats(st *driver.Stream, p *LogitstatsParams, samples int) error {
	return run(s, st, s.stats, samples, 1, 1024, p)
}

// Adjust changes the logits of samples with adjustments or, with Settle, puts them back.
func (s *Set) Adjust(st *driver.Stream, p *AdjustParams, samples int) error {
	return run(s, st, s.adjust, samples, 1, 256, p)
}

// Sample draws tokens. LogitStats comes before it.
func (s *Set) Sample(st *driver.Stream, p *SampleParams, samples int) error {
	return run(s, st, s.sample, samples, 1, 512, p)
}

// Publish sends the results to the host. It runs for a step without samples too.
func (s *Set) Publish(st *driver.Stream, p *PublishParams, samples int) error {
	return run(s, st, s.publish, max(samples, 1), 1, 256, p)
}

// maxFill bounds the elements of one launch of hashfill and convert.
const maxFill = 1 << 38

// Hashfill writes dummy weights.
func (s *Set) Hashfill(st *driver.Stream, p *HashfillParams) error {
	if p.N > maxFill {
		return fmt.Errorf("hashfill: %w: %d elements", ErrDims, p.N)
	}
	return run(s, st, s.hashfill, int((p.N+2047)/2048), 1, 256, p)
}

// Convert rounds float32 or float16 to bfloat16.
func (s *Set) Convert(st *driver.Stream, p *ConvertParams) error {
	if p.N > maxFill || p.From != 1 && p.From != 2 {
		return fmt.Errorf("convert: %w: %d elements of type %d", ErrDims, p.N, p.From)
	}
	return run(s, st, s.convert, int((p.N+1023)/1024), 1, 256, p)
}

// checkMatmul refuses shapes that the 16-byte loads cannot read. outs is the number of outputs of a token.
func checkMatmul(p *MatmulParams, outs int32) error {
	if p.K <= 0 || p.K%8 != 0 || p.N < 0 || p.LdY < outs || p.W%16 != 0 || p.X%16 != 0 || p.Y%4 != 0 {
		return fmt.Errorf("matmul: %w: N %d, K %d, ld %d at %#x, %#x, %#x", ErrDims, p.N, p.K, p.LdY, p.W, p.X, p.Y)
	}
	return nil
}

// Gemv multiplies few tokens; any number is right, above the widest variant it reads the weights again.
func (s *Set) Gemv(st *driver.Stream, p *MatmulParams, tokens int) error {
	return s.vector(st, p, tokens, s.gemv[:], gemvRows*4, int(p.N))
}

// GemvGate is Gemv for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) GemvGate(st *driver.Stream, p *MatmulParams, tokens int) error {
	return s.vector(st, p, tokens, s.gemvGate[:], 4, int(p.N)/2)
}

// vector launches the narrowest variant that takes all tokens, or the widest. A block computes outs of n outputs.
func (s *Set) vector(st *driver.Stream, p *MatmulParams, tokens int, f []*driver.Function, outs, n int) error {
	if err := checkMatmul(p, int32(n)); err != nil {
		return err
	}
	i := 0
	for i < len(gemvWidths)-1 && gemvWidths[i] < tokens {
		i++
	}
	return run(s, st, f[i], ceilDiv(n, outs), ceilDiv(tokens, gemvWidths[i]), 128, p)
}

// Slim multiplies up to 32 tokens at a time on tensor cores. Its bits depend on K and the form's warps alone.
func (s *Set) Slim(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.skinny(st, p, tokens, form, 0)
}

// SlimGate is Slim for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) SlimGate(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.skinny(st, p, tokens, form, 1)
}

func (s *Set) skinny(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm, gate int) error {
	if err := checkMatmul(p, p.N>>gate); err != nil {
		return err
	}
	width := 0
	for width < slimWidths-1 && 8<<width < tokens {
		width++
	}
	shape := slimShapes[form][width]
	return run(s, st, s.slim[gate][form][width], ceilDiv(int(p.N), 16*shape.rows), ceilDiv(tokens, 8<<width), 32*shape.warps, p)
}

// BandFits reports whether Band takes a matrix here: a K of several slices needs few tiles a block.
func (s *Set) BandFits(n, k int) bool {
	return s.banded && (ceilDiv(k, 512) <= bandRuns || ceilDiv(ceilDiv(n, 16), s.multiprocessors) <= bandTiles)
}

// Band multiplies up to MaxBand tokens on tensor cores. Its bits are those of Slim in SlimDeep.
func (s *Set) Band(st *driver.Stream, p *MatmulParams, tokens int) error {
	return s.stripe(st, p, tokens, 0)
}

// BandGate is Band for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) BandGate(st *driver.Stream, p *MatmulParams, tokens int) error {
	return s.stripe(st, p, tokens, 1)
}

func (s *Set) stripe(st *driver.Stream, p *MatmulParams, tokens, gate int) error {
	if err := checkMatmul(p, p.N>>gate); err != nil {
		return err
	}
	if tokens > MaxBand || !s.BandFits(int(p.N), int(p.K)) {
		return fmt.Errorf("band: %w: %d tokens, N %d, K %d", ErrDims, tokens, p.N, p.K)
	}
	return runShared(s, st, s.band[gate], min(ceilDiv(int(p.N), 16), s.multiprocessors), min(tokens, 1), 256, bandShared, p)
}

// Tile multiplies many tokens on tensor cores. Its bits are those of Slim in a form.
func (s *Set) Tile(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.square(st, p, tokens, form, 0)
}

// TileGate is Tile for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) TileGate(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm) error {
	return s.square(st, p, tokens, form, 1)
}

func (s *Set) square(st *driver.Stream, p *MatmulParams, tokens int, form SlimForm, gate int) error {
	if err := checkMatmul(p, p.N>>gate); err != nil {
		return err
	}
	i := 0
	for tilePasses[i] != slimShapes[form][0].warps {
		i++
	}
	return run(s, st, s.tile[gate][i], ceilDiv(int(p.N), tileSide), ceilDiv(tokens, tileSide), 256, p)
}
