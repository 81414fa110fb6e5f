package kernels

import (
	"fmt"
	"math"

	"github.com/tokenrouter/tokenrouter/cuda/driver"
)

// MaxStreamk is the most tokens of streamk.
const MaxStreamk = 64

// streamkWidths are the tokens that variants of streamk are for, at most.
var streamkWidths = [...]int{32, 48, MaxStreamk}

// streamkShape is how a block of streamk is cut: warps of so many tiles of 16 rows, and steps of so many runs of 32 elements.
// The number of rows decides where tiles begin, rows and runs where they are cut, and so the bits.
type streamkShape struct{ tiles, warps, runs int }

// Forms of streamk. Tokens are read once for each tile of rows, so that tall tiles are better where there is one for each
// multiprocessor; where there are fewer, each is cut many times, and short ones leave less to join.
const (
	streamkShort = iota
	streamkTall
	streamkGate // tall; matrices of gate and up are the largest
	streamkForms
)

var streamkShapes = [streamkForms]streamkShape{streamkShort: {2, 4, 2}, streamkTall: {2, 8, 1}, streamkGate: {2, 8, 1}}

// streamkLimit is the shared memory that two blocks of a multiprocessor have each.
const streamkLimit = 113 << 10

// maxStreamkRows is the most rows of a tile, maxStreamkWarps the most warps that multiply them.
const (
	maxStreamkRows  = 256
	maxStreamkWarps = 8
)

// MaxStreamkBlocks bounds the blocks of a launch: multiprocessors beyond these are left idle.
const MaxStreamkBlocks = 192

// StreamkPartBytes is the size of StreamkParams.Parts, StreamkCounters the number of StreamkParams.Arrived.
const (
	StreamkPartBytes = 2 * MaxStreamkBlocks * maxStreamkRows * MaxStreamk * 4
	StreamkCounters  = MaxStreamkBlocks * maxStreamkWarps
)

func (s streamkShape) rows() int    { return 16 * s.tiles * s.warps }
func (s streamkShape) step() int    { return 32 * s.runs }
func (s streamkShape) threads() int { return 32 * s.warps }

// stage is the bytes of a step in shared memory, stages how many there are.
func (s streamkShape) stage(width int) int  { return 2 * s.step() * (s.rows() + width) }
func (s streamkShape) stages(width int) int { return streamkLimit / s.stage(width) }

// registers are what two blocks leave each other in each of a multiprocessor's four parts.
func (s streamkShape) registers() int { return min(1<<14/ceilDiv(2*s.warps, 4)/32/8*8, 255) }

// line is the number of steps of a matrix.
func (s streamkShape) line(n, k int) int { return ceilDiv(n, s.rows()) * ceilDiv(k, s.step()) }

func streamkVariant(s streamkShape, width, gate int) Variant {
	return Variant{"streamk", defines("STREAMK_M", s.tiles, "STREAMK_N", width/8, "STREAMK_W", s.warps, "STREAMK_R", s.runs,
		"STREAMK_S", s.stages(width), "STREAMK_ACT", gate), s.registers()}
}

// streamkVariants lists them by form and width.
func streamkVariants() []Variant {
	var out []Variant
	for form, shape := range streamkShapes {
		gate := 0
		if form == streamkGate {
			gate = 1
		}
		for _, width := range streamkWidths {
			out = append(out, streamkVariant(shape, width, gate))
		}
	}
	return out
}

// streamkForm is a form's kernels, by width.
type streamkForm struct {
	streamkShape
	kernels [len(streamkWidths)]*driver.Function
}

// allowStreamk asks for the shared memory of all forms.
func (s *Set) allowStreamk() error {
	for i := range s.streamk {
		form := &s.streamk[i]
		for width, f := range form.kernels {
			if err := f.SetMaxSharedBytes(form.stages(streamkWidths[width]) * form.stage(streamkWidths[width])); err != nil {
				return err
			}
		}
	}
	return nil
}

// StreamkFits reports whether Streamk takes a matrix here, StreamkGate too.
func (s *Set) StreamkFits(n, k int) bool {
	return s.streamed && (streamkShapes[streamkShort].line(n, k)+1) < math.MaxInt32/MaxStreamkBlocks
}

// Streamk multiplies up to MaxStreamk tokens on tensor cores, in matrices of any size. Its bits depend on the matrix's size and
// the device alone.
func (s *Set) Streamk(st *driver.Stream, p *StreamkParams, tokens int) error {
	form := streamkShort
	if ceilDiv(int(p.Product.N), streamkShapes[streamkTall].rows()) >= s.multiprocessors {
		form = streamkTall
	}
	return s.streamkRun(st, p, tokens, form)
}

// StreamkGate is Streamk for gate over up, which ends in silu(gate) * up. Y is bf16.
func (s *Set) StreamkGate(st *driver.Stream, p *StreamkParams, tokens int) error {
	return s.streamkRun(st, p, tokens, streamkGate)
}

func (s *Set) streamkRun(st *driver.Stream, p *StreamkParams, tokens, form int) error {
	f, m, outs := &s.streamk[form], &p.Product, p.Product.N
	if form == streamkGate {
		outs /= 2
	}
	if err := checkMatmul(m, outs); err != nil {
		return err
	}
	if tokens > MaxStreamk || !s.StreamkFits(int(m.N), int(m.K)) || p.Parts%16 != 0 || p.Arrived%4 != 0 {
		return fmt.Errorf("streamk: %w: %d tokens, N %d, K %d, parts at %#x, counters at %#x", ErrDims, tokens, m.N, m.K, p.Parts, p.Arrived)
	}
	width := 0
	for streamkWidths[width] < tokens {
		width++
	}
	blocks := min(f.line(int(m.N), int(m.K)), s.multiprocessors, MaxStreamkBlocks)
	return runShared(s, st, f.kernels[width], blocks, min(tokens, 1), f.threads(), f.stages(streamkWidths[width])*f.stage(streamkWidths[width]), p)
}
