package kernels

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// run launches a kernel with one parameter struct; an empty grid is no work.
func run[P any](st *driver.Stream, f *driver.Function, x, y, threads int, p *P) error {
	if x <= 0 || y <= 0 {
		return nil
	}
	l := driver.Launch{Grid: driver.Dim{uint32(x), uint32(y), 1}, Block: driver.X(uint32(threads))}
	return driver.LaunchWith(st, f, &l, p)
}

// Prep fetches a step's descriptor and resolves its pages.
func (s *Set) Prep(st *driver.Stream, p *PrepParams) error { return run(st, s.prep, 1, 1, 1024, p) }

// Embed looks up tokens embeddings. tokens, here and below, may exceed the count on the device: padding does nothing.
func (s *Set) Embed(st *driver.Stream, p *EmbedParams, tokens int) error {
	return run(st, s.embed, tokens, 1, 128, p)
}

// Rmsnorm adds and normalises rows.
func (s *Set) Rmsnorm(st *driver.Stream, p *RmsnormParams, rows int) error {
	return run(st, s.rmsnorm, rows, 1, 256, p)
}

// Qkvpost finishes queries, keys and values and appends to the cache.
func (s *Set) Qkvpost(st *driver.Stream, p *QkvpostParams, tokens int) error {
	return run(st, s.qkvpost, tokens, ceilDiv(s.Dims.Heads+2*s.Dims.KVHeads, 4), 128, p)
}

// maxItemBlocks bounds the grid of attention: more items are walked by the same blocks.
const maxItemBlocks = 1 << 16

// Attn runs the work items of a step.
func (s *Set) Attn(st *driver.Stream, p *AttnParams, items int) error {
	return run(st, s.attn, min(items, maxItemBlocks), s.Dims.KVHeads, 128, p)
}

// AttnCombine joins partials.
func (s *Set) AttnCombine(st *driver.Stream, p *CombineParams, combines int) error {
	return run(st, s.combine, min(combines, maxItemBlocks), s.Dims.KVHeads, 128, p)
}

// Silumul applies the gate.
func (s *Set) Silumul(st *driver.Stream, p *SilumulParams, tokens int) error {
	return run(st, s.silumul, ceilDiv(s.Dims.FFN, 1024), tokens, 256, p)
}

// LogitStats computes features and top lists.
func (s *Set) LogitStats(st *driver.Stream, p *LogitstatsParams, samples int) error {
	return run(st, s.stats, samples, 1, 1024, p)
}

// Adjust changes the logits of samples with adjustments or, with Settle, puts them back.
func (s *Set) Adjust(st *driver.Stream, p *AdjustParams, samples int) error {
	return run(st, s.adjust, samples, 1, 256, p)
}

// Sample draws tokens. LogitStats comes before it.
func (s *Set) Sample(st *driver.Stream, p *SampleParams, samples int) error {
	return run(st, s.sample, samples, 1, 512, p)
}

// Score runs a linear router head.
func (s *Set) Score(st *driver.Stream, p *ScoreParams, samples int) error {
	return run(st, s.score, ceilDiv(samples, 4), 1, 128, p)
}

// Publish sends the results to the host. It runs for a step without samples too.
func (s *Set) Publish(st *driver.Stream, p *PublishParams, samples int) error {
	return run(st, s.publish, max(samples, 1), 1, 256, p)
}

// maxFill bounds the elements of one launch of hashfill and convert.
const maxFill = 1 << 38

// Hashfill writes dummy weights.
func (s *Set) Hashfill(st *driver.Stream, p *HashfillParams) error {
	if p.N > maxFill {
		return fmt.Errorf("hashfill: %w: %d elements", ErrDims, p.N)
	}
	return run(st, s.hashfill, int((p.N+2047)/2048), 1, 256, p)
}

// Convert rounds float32 or float16 to bfloat16.
func (s *Set) Convert(st *driver.Stream, p *ConvertParams) error {
	if p.N > maxFill || p.From != 1 && p.From != 2 {
		return fmt.Errorf("convert: %w: %d elements of type %d", ErrDims, p.N, p.From)
	}
	return run(st, s.convert, int((p.N+1023)/1024), 1, 256, p)
}

// checkMatmul refuses shapes that the 16-byte loads cannot read.
func checkMatmul(p *MatmulParams) error {
	if p.K <= 0 || p.K%8 != 0 || p.N < 0 || p.LdY < p.N || p.W%16 != 0 || p.X%16 != 0 || p.Y%4 != 0 {
		return fmt.Errorf("matmul: %w: N %d, K %d, ld %d at %#x, %#x, %#x", ErrDims, p.N, p.K, p.LdY, p.W, p.X, p.Y)
	}
	return nil
}

// Gemv multiplies few tokens; any number is right, above MaxGemv it reads the weights again.
func (s *Set) Gemv(st *driver.Stream, p *MatmulParams, tokens int) error {
	if err := checkMatmul(p); err != nil {
		return err
	}
	i := 0
	for i < len(gemvWidths)-1 && gemvWidths[i] < tokens {
		i++
	}
	const rows = gemvRows * 4 // of a block
	return run(st, s.gemv[i], ceilDiv(int(p.N), rows), ceilDiv(tokens, gemvWidths[i]), 128, p)
}

// smallGemm is the number of tokens up to which the small shape of gemm is used.
const smallGemm = 16

// Gemm multiplies on tensor cores. A token's bits do not depend on the number of tokens.
func (s *Set) Gemm(st *driver.Stream, p *MatmulParams, tokens int) error {
	if err := checkMatmul(p); err != nil {
		return err
	}
	i := 1
	if tokens <= smallGemm {
		i = 0
	}
	shape := gemmShapes[i]
	rows, cols := 16*shape[0]*shape[2], 8*shape[1]*(4/shape[2])
	return run(st, s.gemm[i], ceilDiv(tokens, cols), ceilDiv(int(p.N), rows), 128, p)
}
