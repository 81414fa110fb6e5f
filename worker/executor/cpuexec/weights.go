package cpuexec

import (
	"fmt"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// weights are a whole model in float32. Matrices are [out, in]; those that share
// their input are stacked, so that one pass over the input serves them all.
type weights struct {
	embed  []float32 // [rows, C]
	head   []float32 // [V, C], the first Vocab rows of the embedding if tied
	norm   []float32 // [C]
	layers []layer
	bytes  int64
}

type layer struct {
	attnNorm     []float32 // [C]
	qkv          []float32 // [(Hq+2Hk)·D, C]
	qNorm, kNorm []float32 // [D]
	out          []float32 // [C, Hq·D]
	ffnNorm      []float32 // [C]
	gateUp       []float32 // [2F, C]
	down         []float32 // [C, F]
}

// loader converts tensors one after the other; the first error sticks.
type loader struct {
	from  *model.Checkpoint
	bytes int64
	err   error
}

// stack reads tensors and lays them behind each other.
func (l *loader) stack(names ...string) []float32 {
	if l.err != nil {
		return nil
	}
	total := 0
	tensors := make([]model.Tensor, len(names))
	for i, name := range names {
		if tensors[i], l.err = l.from.Tensor(name); l.err != nil {
			return nil
		}
		total += tensors[i].Elems()
	}
	out := make([]float32, total)
	at := 0
	for i := range tensors {
		n := tensors[i].Elems()
		if l.err = tensors[i].CopyFloat32(out[at : at+n]); l.err != nil {
			return nil
		}
		at += n
	}
	l.bytes += int64(total) * 4
	return out
}

// loadWeights converts a checkpoint that Check has accepted.
func loadWeights(k *model.Checkpoint, vocab int) (*weights, error) {
	c := &k.Config
	if c.Architecture != model.Qwen3 {
		return nil, fmt.Errorf("%w: architecture %s on the CPU", model.ErrUnsupported, c.Architecture)
	}
	l := &loader{from: k}
	w := &weights{
		embed:  l.stack("model.embed_tokens.weight"),
		norm:   l.stack("model.norm.weight"),
		layers: make([]layer, c.Layers),
	}
	for i := range w.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		w.layers[i] = layer{
			attnNorm: l.stack(p + "input_layernorm.weight"),
			qkv:      l.stack(p+"self_attn.q_proj.weight", p+"self_attn.k_proj.weight", p+"self_attn.v_proj.weight"),
			qNorm:    l.stack(p + "self_attn.q_norm.weight"),
			kNorm:    l.stack(p + "self_attn.k_norm.weight"),
			out:      l.stack(p + "self_attn.o_proj.weight"),
			ffnNorm:  l.stack(p + "post_attention_layernorm.weight"),
			gateUp:   l.stack(p+"mlp.gate_proj.weight", p+"mlp.up_proj.weight"),
			down:     l.stack(p + "mlp.down_proj.weight"),
		}
	}
	w.head = w.embed
	if !c.TieEmbeddings {
		w.head = l.stack("lm_head.weight")
	}
	if l.err != nil {
		return nil, l.err
	}
	w.head = w.head[:vocab*c.Hidden]
	w.bytes = l.bytes
	return w, nil
}
