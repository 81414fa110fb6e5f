package cudaexec

import (
	"unsafe"

	"github.com/tokenrouter/tokenrouter/cuda/kernels"
	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// buffers are what a step works in, in one allocation. T is MaxTokens rounded up to the largest padding of a product.
type buffers struct {
	x      tensor.View // [T, C] f32, the residual stream
	h      tensor.View // [T, C] bf16, normalised
	qkv    tensor.View // [T, (Hq + 2 Hk) D] f32
	q      tensor.View // [T, Hq D] bf16
	attn   tensor.View // [T, Hq D] bf16
	delta  tensor.View // [T, C] f32, what the next norm adds to x
	gateUp tensor.View // [T, 2 F] f32
	act    tensor.View // [T, F] bf16
	partO  tensor.View // [8 partials, Hk, D] f32
	partML tensor.View // [8 partials, Hk, 2] f32
	// activations end here; the rest keeps state or is small.
	headIn   tensor.View // [64, C] bf16
	hidden   tensor.View // [64, C] f32
	logits   tensor.View // [64, head width] f32
	netV     tensor.View // [64, D] f32, of router nets
	netInner tensor.View // [64, F] f32, inside their blocks
	parts    tensor.View // [64, 32] LogitPart
	stats    tensor.View // [samples] Stat
	top      tensor.View // [samples, 128] TopEntry
	table    tensor.View // [slots, pages of MaxContext] i32
	slots    tensor.View // [T] i32
	desc     tensor.View // the step's descriptor, as bytes
	arrived  tensor.View // [2] u32: of publish, and the number of steps so far
	joined   tensor.View // [partials, Hk] u32, of attn
	claims   tensor.View // [claimCounters] u32, of products
	parted   tensor.View // [tiles] u32, of panel
	last     tensor.View // [slots] i32, what was last sampled
	saved    tensor.View // [adjustments of a step] f32, logits as they were

	workspace tensor.View // for cuBLASLt, or the partial sums of panel, as bytes
}

// workspaceBytes is what one product may use.
const workspaceBytes = max(32<<20, 4*kernels.PanelRoom)

// paddedTokens is the number of tokens that a step of n is computed for: graphs exist for few sizes, and cuBLASLt chooses
// an algorithm for each.
func paddedTokens(n int) int {
	for _, size := range bodySizes {
		if n <= size {
			return size
		}
	}
	return roundUp(n, 128)
}

// bodySizes are the tokens of the graphs of the layers, headSizes the sampled positions of those of the head.
var (
	bodySizes = [...]int{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256}
	headSizes = [...]int{1, 2, 4, 8, 16, 32, headRows}
)

func layoutBuffers(arena *tensor.Arena, cfg *Config, m *model.Config) (*buffers, error) {
	c := &carver{arena: arena}
	d := descriptorLayout(cfg)
	t, q, kv := paddedTokens(cfg.MaxTokens), m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	width, inner := netWidths(cfg.Nets)
	partRows := cfg.Partials * kernels.PartialRows * m.KVHeads
	b := &buffers{
		x: c.take(tensor.F32, t, m.Hidden), h: c.take(tensor.BF16, t, m.Hidden), qkv: c.take(tensor.F32, t, q+2*kv),
		q: c.take(tensor.BF16, t, q), attn: c.take(tensor.BF16, t, q), delta: c.take(tensor.F32, t, m.Hidden),
		gateUp: c.take(tensor.F32, t, 2*m.FFN), act: c.take(tensor.BF16, t, m.FFN),
		partO: c.take(tensor.F32, partRows, m.HeadDim), partML: c.take(tensor.F32, partRows, 2),
		headIn: c.take(tensor.BF16, headRows, m.Hidden), hidden: c.take(tensor.F32, headRows, m.Hidden),
		logits: c.take(tensor.F32, headRows, headWidth(cfg, m)),
		netV:   c.take(tensor.F32, headRows, width), netInner: c.take(tensor.F32, headRows, inner),
		parts: c.take(tensor.U8, headRows*kernels.LogitParts*int(unsafe.Sizeof(kernels.LogitPart{}))),
		stats: c.take(tensor.U8, cfg.MaxTokens*int(unsafe.Sizeof(kernels.Stat{}))),
		top:   c.take(tensor.U8, cfg.MaxTokens*kernels.MaxTop*int(unsafe.Sizeof(kernels.TopEntry{}))),
		table: c.take(tensor.I32, cfg.MaxSlots, pagesFor(cfg.MaxContext, cfg.PageSize)),
		slots: c.take(tensor.I32, t), desc: c.take(tensor.U8, d.bytes), arrived: c.take(tensor.U32, 2),
		joined: c.take(tensor.U32, cfg.Partials, m.KVHeads), last: c.take(tensor.I32, cfg.MaxSlots), claims: c.take(tensor.U32, claimCounters),
		parted:    c.take(tensor.U32, kernels.PanelTiles),
		saved:     c.take(tensor.F32, maxAdjusts(cfg)),
		workspace: c.take(tensor.U8, workspaceBytes),
	}
	return b, c.err
}

// activations lists the buffers that hold nothing between steps, for poisoning.
func (b *buffers) activations() []tensor.View {
	return []tensor.View{
		b.x, b.h, b.qkv, b.q, b.attn, b.delta, b.gateUp, b.act, b.partO, b.partML, b.headIn, b.hidden, b.logits, b.netV, b.netInner, b.parts, b.stats, b.top,
	}
}
