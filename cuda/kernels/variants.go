package kernels

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/tokenrouter/tokenrouter/cuda/nvrtc"
)

// ErrDims says that the kernels cannot be built for a model's dimensions.
var ErrDims = errors.New("kernels: unsupported dimensions")

// Dims are the dimensions that kernels are compiled for.
type Dims struct {
	Hidden, FFN             int // C, F: multiples of 8
	Heads, KVHeads, HeadDim int // Hq, Hk, D: Hq/Hk from 1 to 8, D 64 or 128
	PageSize                int // P: a multiple of 8
	Vocab                   int // V: real vocabulary
}

// Check returns ErrDims with the first value that does not fit.
func (d Dims) Check() error {
	switch {
	case d.Hidden <= 0 || d.Hidden%8 != 0 || d.Hidden > 1<<15:
		return fmt.Errorf("%w: hidden size %d, need a multiple of 8 up to 32768", ErrDims, d.Hidden)
	case d.FFN <= 0 || d.FFN%8 != 0 || d.FFN > 1<<20:
		return fmt.Errorf("%w: feed-forward size %d, need a multiple of 8", ErrDims, d.FFN)
	case d.HeadDim != 64 && d.HeadDim != 128:
		return fmt.Errorf("%w: head size %d, need 64 or 128", ErrDims, d.HeadDim)
	case d.KVHeads <= 0 || d.Heads <= 0 || d.Heads%d.KVHeads != 0 || d.Heads/d.KVHeads > 8:
		return fmt.Errorf("%w: %d query heads over %d key heads, need groups of 1 to 8", ErrDims, d.Heads, d.KVHeads)
	case d.PageSize <= 0 || d.PageSize%8 != 0:
		return fmt.Errorf("%w: page size %d, need a multiple of 8", ErrDims, d.PageSize)
	case d.Vocab <= 0 || d.Vocab > 1<<24:
		return fmt.Errorf("%w: vocabulary of %d", ErrDims, d.Vocab)
	}
	return nil
}

// Group is the number of query heads that share a key head.
func (d Dims) Group() int { return d.Heads / d.KVHeads }

func (d Dims) defines() map[string]string {
	return defines("DIM_C", d.Hidden, "DIM_F", d.FFN, "DIM_HQ", d.Heads, "DIM_HK", d.KVHeads, "DIM_D", d.HeadDim,
		"DIM_P", d.PageSize, "DIM_V", d.Vocab)
}

// defines makes macros of name, value pairs.
func defines(pairs ...any) map[string]string {
	out := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		out[fmt.Sprint(pairs[i])] = fmt.Sprint(pairs[i+1])
	}
	return out
}

// Variant is one compilation of one kernel.
type Variant struct {
	Kernel  string
	Defines map[string]string
	// MaxRegisters is the limit per thread that the CI test holds the variant to; two blocks of its size then fit an SM
	// of 64 Ki registers.
	MaxRegisters int
}

// gemvWidths are the tokens for each reading of the weights. Beyond them, slim is the better product.
var gemvWidths = [...]int{1, 2}

// gemvRows are the rows of a warp of gemv.
const gemvRows = 2

// SlimForm is how a block of slim is cut. Forms with the same number of warps give the same bits.
type SlimForm int

const (
	// SlimDeep has many warps along K and few rows: for matrices with few rows.
	SlimDeep SlimForm = iota
	// SlimWide has more rows, which share the tokens.
	SlimWide
	// SlimThin has few of both, and a long ring.
	SlimThin
	slimForms
)

// slimWidths is the number of widths of slim: 8, 16 and 32 tokens.
const slimWidths = 3

// MaxSlim is the widest that slim is.
const MaxSlim = 8 << (slimWidths - 1)

type slimShape struct{ rows, warps, stages int } // rows in tiles of 16

// slimShapes by form and width; each ring fills at most 48 KiB.
var slimShapes = [slimForms][slimWidths]slimShape{
	SlimDeep: {{1, 8, 4}, {1, 8, 3}, {1, 8, 2}},
	SlimWide: {{2, 4, 4}, {2, 4, 4}, {2, 4, 3}},
	SlimThin: {{1, 4, 8}, {1, 4, 6}, {1, 4, 4}},
}

func slimVariant(form SlimForm, width, gate int) Variant {
	s := slimShapes[form][width]
	return Variant{"slim", defines("SLIM_M", s.rows, "SLIM_N", 1<<width, "SLIM_W", s.warps, "SLIM_S", s.stages, "SLIM_ACT", gate), 128}
}

func gemvVariant(width, gate int) Variant {
	return Variant{"gemv", defines("GEMV_T", width, "GEMV_R", gemvRows, "GEMV_U", 4, "GEMV_ACT", gate), 128}
}

// MaxBand is the most tokens of band.
const MaxBand = 8

// Constants of band.cu: the runs of a slice, tiles that a block keeps between slices, and the bytes of struct Shared.
const (
	bandRuns   = 10
	bandTiles  = 4
	bandShared = 5*4*256*16 + 2*8*8*20*4 + bandTiles*256*16 + 16
)

func bandVariant(gate int) Variant { return Variant{"band", defines("BAND_ACT", gate), 128} }

// tileSide is the rows and the tokens of a block of tile.
const tileSide = 128

// tilePasses are the variants of tile, for forms of slim with as many warps.
var tilePasses = [...]int{4, 8}

func tileVariant(passes, gate int) Variant {
	return Variant{"tile", defines("TILE_W", passes, "TILE_ACT", gate), 255}
}

// panelShape is how panel is cut: the tokens of a block, its stages of shared memory, blocks that fit a multiprocessor, and whether a block
// has but one pass over K. Direct ones read weights past the first cache: the better way while memory is the bottleneck.
type panelShape struct {
	tokens, stages, blocks int
	parts, direct          bool
}

// panelShapes are the variants of panel, those in parts and the narrowest first.
var panelShapes = [...]panelShape{
	{32, 4, 2, true, true}, {64, 4, 2, true, true}, {64, 3, 3, true, true}, {128, 3, 2, true, true},
	{64, 4, 2, false, true}, {128, 5, 1, false, false}, {192, 4, 1, false, false},
}

// panelRows are the rows of a block of panel, panelRun the elements of a run.
const (
	panelRows = 128
	panelRun  = 64
)

// shared is the bytes of struct Shared of panel.cu.
func (s panelShape) shared() int { return s.stages*(panelRows+s.tokens)*2*panelRun + 1024 }

func panelVariant(s panelShape, gate int) Variant {
	registers := [...]int{1: 255, 2: 128, 3: 80}[s.blocks]
	return Variant{"panel", defines("PANEL_T", s.tokens, "PANEL_S", s.stages, "PANEL_B", s.blocks, "PANEL_ACT", gate, "PANEL_PARTS", flag(s.parts), "PANEL_DIRECT", flag(s.direct)), registers}
}

// flag is a condition as kernels read it.
func flag(on bool) int {
	if on {
		return 1
	}
	return 0
}

// hopper says that an architecture has the tensor cores of panel.
func hopper(arch string) bool { return arch == "sm_90a" }

// attnRing is the spans in the ring of the wide form of attn: two blocks with three of them fit a multiprocessor of data centre GPUs
// since Hopper, and one with two fits every other one.
func attnRing(arch string) int {
	if strings.HasPrefix(arch, "sm_9") || strings.HasPrefix(arch, "sm_10") {
		return 3
	}
	return 2
}

// attnVariant is a form of attn. Four blocks of the narrow one and two of the wide one fit an SM.
func attnVariant(dims map[string]string, form AttnForm, ring int) Variant {
	d := defines("ATTN_ROWS", attnRows[form], "ATTN_FRESH", 1)
	if form == AttnWide {
		d = defines("ATTN_ROWS", attnRows[form], "ATTN_FRESH", 0, "ATTN_RING", ring)
	}
	maps.Copy(d, dims)
	return Variant{"attn", d, [AttnForms]int{128, 255}[form]}
}

// Variants lists what a model of these dimensions needs on an architecture, in a fixed order.
func Variants(d Dims, arch string) []Variant {
	dims, ring := d.defines(), attnRing(arch)
	vs := []Variant{
		attnVariant(dims, AttnNarrow, ring), attnVariant(dims, AttnWide, ring), {"embed", dims, 64}, {"logitpart", dims, 96}, {"logitstats", dims, 64},
		{"qkvpost", dims, 64}, {"rmsnorm", dims, 128}, {"sample", dims, 128}, {"silumul", dims, 64},
	}
	return append(vs, anyModel(arch)...)
}

// anyModel lists the variants that do not depend on a model's dimensions.
func anyModel(arch string) []Variant {
	vs := []Variant{{"adjust", nil, 64}, {"convert", nil, 64}, {"hashfill", nil, 64}, {"prep", nil, 64}, {"publish", nil, 64}}
	for _, w := range gemvWidths {
		vs = append(vs, gemvVariant(w, 0))
	}
	for _, w := range gemvWidths {
		vs = append(vs, gemvVariant(w, 1))
	}
	for gate := range 2 {
		for form := range slimForms {
			for width := range slimWidths {
				vs = append(vs, slimVariant(form, width, gate))
			}
		}
		vs = append(vs, bandVariant(gate))
		for _, passes := range tilePasses {
			vs = append(vs, tileVariant(passes, gate))
		}
		for _, shape := range panelShapes {
			if hopper(arch) {
				vs = append(vs, panelVariant(shape, gate))
			}
		}
	}
	return vs
}

// Programs lists the compilations of Variants for one architecture, in their order. options go to the compiler as they are.
func Programs(d Dims, arch string, options ...string) ([]nvrtc.Program, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	return programs(Variants(d, arch), arch, options)
}

// programs lists the compilations of variants.
func programs(variants []Variant, arch string, options []string) ([]nvrtc.Program, error) {
	headers := Headers()
	out := make([]nvrtc.Program, len(variants))
	for i, v := range variants {
		source, err := Source(v.Kernel)
		if err != nil {
			return nil, err
		}
		out[i] = nvrtc.Program{Name: v.Kernel + ".cu", Source: source, Headers: headers, Arch: arch, Defines: v.Defines, Options: options}
	}
	return out, nil
}
