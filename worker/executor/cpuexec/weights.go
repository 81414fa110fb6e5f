package cpuexec

import (
	"fmt"
	"slices"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// weights are a whole model. Matrices are [out, in]; those that share their input
// are stacked, so that one pass over the input serves them all.
type weights struct {
	embed  matrix    // [rows, C]
	head   matrix    // [V, C], the first Vocab rows of the embedding if tied
	norm   []float32 // [C]
	layers []layer
	bytes  int64
}

type layer struct {
	attnNorm     []float32 // [C]
	qkv          matrix    // [(Hq+2Hk)·D, C]
	qkvBias      []float32 // [(Hq+2Hk)·D], nil if the family has none
	qNorm, kNorm []float32 // [D], nil if the family has none
	out          matrix    // [C, Hq·D]
	ffnNorm      []float32 // [C]
	gateUp       matrix    // [2F, C]
	down         matrix    // [C, F]
}

// loader converts tensors one after the other; the first error sticks.
type loader struct {
	from  *model.Checkpoint
	bytes int64
	err   error
}

// tensors finds tensors and the sum of their elements.
func (l *loader) tensors(names []string) (out []model.Tensor, total int) {
	for _, name := range names {
		if l.err != nil {
			return nil, 0
		}
		var t model.Tensor
		if t, l.err = l.from.Tensor(name); l.err == nil {
			out = append(out, t)
			total += t.Elems()
		}
	}
	return out, total
}

// vector reads tensors as float32 and lays them behind each other.
func (l *loader) vector(names ...string) []float32 {
	tensors, total := l.tensors(names)
	out := make([]float32, total)
	at := 0
	for i := range tensors {
		n := tensors[i].Elems()
		if err := tensors[i].CopyFloat32(out[at : at+n]); err != nil && l.err == nil {
			l.err = err
		}
		at += n
	}
	l.bytes += int64(total) * 4
	return out
}

// loadWeights converts a checkpoint that Check has accepted.
func loadWeights(k *model.Checkpoint, vocab int) (*weights, error) {
	c := &k.Config
	if !slices.Contains(model.Architectures(), c.Architecture) {
		return nil, fmt.Errorf("%w: architecture %s on the CPU", model.ErrUnsupported, c.Architecture)
	}
	l := &loader{from: k}
	q := c.Heads * c.HeadDim
	w := &weights{
		embed:  l.matrix(c.Hidden, "model.embed_tokens.weight"),
		norm:   l.vector("model.norm.weight"),
		layers: make([]layer, c.Layers),
	}
	for i := range w.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		w.layers[i] = layer{
			attnNorm: l.vector(p + "input_layernorm.weight"),
			qkv:      l.matrix(c.Hidden, p+"self_attn.q_proj.weight", p+"self_attn.k_proj.weight", p+"self_attn.v_proj.weight"),
			out:      l.matrix(q, p+"self_attn.o_proj.weight"),
			ffnNorm:  l.vector(p + "post_attention_layernorm.weight"),
			gateUp:   l.matrix(c.Hidden, p+"mlp.gate_proj.weight", p+"mlp.up_proj.weight"),
			down:     l.matrix(c.FFN, p+"mlp.down_proj.weight"),
		}
		if c.QKVBias() {
			w.layers[i].qkvBias = l.vector(p+"self_attn.q_proj.bias", p+"self_attn.k_proj.bias", p+"self_attn.v_proj.bias")
		}
		if c.QKNorm() {
			w.layers[i].qNorm = l.vector(p + "self_attn.q_norm.weight")
			w.layers[i].kNorm = l.vector(p + "self_attn.k_norm.weight")
		}
	}
	w.head = w.embed
	if !c.TieEmbeddings {
		w.head = l.matrix(c.Hidden, "lm_head.weight")
	}
	if l.err != nil {
		return nil, l.err
	}
	w.head = w.head.band(0, vocab)
	w.bytes = l.bytes
	return w, nil
}
