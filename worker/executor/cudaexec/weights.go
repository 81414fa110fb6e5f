package cudaexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/cuda/tensor"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// layer is one decoder layer's weights. Matrices are [out, in], row-major.
type layer struct {
	inputNorm tensor.View // [C] bf16
	qkv       tensor.View // [(Hq + 2 Hk) D, C] bf16: queries, keys, values
	qkvBias   tensor.View // [(Hq + 2 Hk) D] bf16, none in some families
	qNorm     tensor.View // [D] bf16, none in some families
	kNorm     tensor.View // [D] bf16, the same
	o         tensor.View // [C, Hq D] bf16
	postNorm  tensor.View // [C] bf16
	gateUp    tensor.View // [2 F, C] bf16: gate, up
	down      tensor.View // [C, F] bf16
}

// weights are a model's, in one allocation.
type weights struct {
	embed  tensor.View // [rows, C] bf16
	layers []layer
	norm   tensor.View // [C] bf16
	head   tensor.View // [rows, C] bf16, the embedding when tied
	nets   []net
	rope   tensor.View // [positions, D/2, 2] f32

	// parts maps each parameter of the checkpoint to where it goes.
	parts map[string]tensor.View
	bytes int64
}

// carver takes views from an arena; the first error sticks.
type carver struct {
	arena *tensor.Arena
	err   error
}

func (c *carver) take(d tensor.DType, dims ...int) tensor.View {
	if c.err != nil {
		return tensor.View{}
	}
	v, err := c.arena.View(d, dims...)
	if err != nil {
		c.err = fmt.Errorf("carve %v %v: %w", dims, d, err)
	}
	return v
}

// rows is a sub-view of a matrix.
func (c *carver) rows(v tensor.View, start, end int) tensor.View {
	if c.err != nil {
		return tensor.View{}
	}
	r, err := v.Rows(start, end)
	if err != nil {
		c.err = err
	}
	return r
}

// layoutWeights places all weights in an arena. The same code measures and allocates, so that sizes cannot differ.
func layoutWeights(arena *tensor.Arena, cfg *Config, m *model.Config) (*weights, error) {
	c := &carver{arena: arena}
	w := &weights{layers: make([]layer, m.Layers), parts: make(map[string]tensor.View, 14*m.Layers+3)}
	start := arena.Used()
	w.embed = c.take(tensor.BF16, m.VocabSize, m.Hidden)
	w.parts["model.embed_tokens.weight"] = w.embed
	q, kv := m.Heads*m.HeadDim, m.KVHeads*m.HeadDim
	for i := range w.layers {
		l, p := &w.layers[i], fmt.Sprintf("model.layers.%d.", i)
		l.inputNorm = c.take(tensor.BF16, m.Hidden)
		l.qkv = c.take(tensor.BF16, q+2*kv, m.Hidden)
		l.o = c.take(tensor.BF16, m.Hidden, q)
		l.postNorm = c.take(tensor.BF16, m.Hidden)
		l.gateUp = c.take(tensor.BF16, 2*m.FFN, m.Hidden)
		l.down = c.take(tensor.BF16, m.Hidden, m.FFN)
		parts := map[string]tensor.View{
			"input_layernorm.weight": l.inputNorm, "self_attn.q_proj.weight": c.rows(l.qkv, 0, q),
			"self_attn.k_proj.weight": c.rows(l.qkv, q, q+kv), "self_attn.v_proj.weight": c.rows(l.qkv, q+kv, q+2*kv),
			"self_attn.o_proj.weight": l.o, "post_attention_layernorm.weight": l.postNorm,
			"mlp.gate_proj.weight": c.rows(l.gateUp, 0, m.FFN), "mlp.up_proj.weight": c.rows(l.gateUp, m.FFN, 2*m.FFN),
			"mlp.down_proj.weight": l.down,
		}
		if m.QKVBias() {
			l.qkvBias = c.take(tensor.BF16, q+2*kv)
			parts["self_attn.q_proj.bias"] = c.rows(l.qkvBias, 0, q)
			parts["self_attn.k_proj.bias"] = c.rows(l.qkvBias, q, q+kv)
			parts["self_attn.v_proj.bias"] = c.rows(l.qkvBias, q+kv, q+2*kv)
		}
		if m.QKNorm() {
			l.qNorm, l.kNorm = c.take(tensor.BF16, m.HeadDim), c.take(tensor.BF16, m.HeadDim)
			parts["self_attn.q_norm.weight"], parts["self_attn.k_norm.weight"] = l.qNorm, l.kNorm
		}
		for name, v := range parts {
			w.parts[p+name] = v
		}
	}
	w.norm = c.take(tensor.BF16, m.Hidden)
	w.parts["model.norm.weight"] = w.norm
	w.head = w.embed
	if !m.TieEmbeddings {
		w.head = c.take(tensor.BF16, m.VocabSize, m.Hidden)
		w.parts["lm_head.weight"] = w.head
	}
	w.head = c.rows(w.head, 0, headWidth(cfg, m))
	w.nets = layoutNets(c, cfg.Nets)
	w.rope = c.take(tensor.F32, cfg.MaxContext, m.HeadDim/2, 2)
	w.bytes = int64(arena.Used() - start)
	return w, c.err
}

// headWidth is the number of head rows computed: the real vocabulary, rounded up so that rows of logits stay aligned,
// where the checkpoint has that many rows. Features and sampling read the real ones alone.
func headWidth(cfg *Config, m *model.Config) int {
	if n := roundUp(cfg.Vocab, 64); n <= m.VocabSize {
		return n
	}
	return cfg.Vocab
}
