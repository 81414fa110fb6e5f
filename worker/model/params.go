package model

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Param is one weight that a model must have.
type Param struct {
	Name  string
	Shape []int
}

// maxFaults bounds the list that Check returns.
const maxFaults = 16

// Params lists the weights of a model in the order of use. Matrices are [out, in].
func (c *Config) Params() []Param {
	q, kv := c.Heads*c.HeadDim, c.KVHeads*c.HeadDim
	ps := make([]Param, 0, 3+14*c.Layers)
	add := func(name string, shape ...int) { ps = append(ps, Param{name, shape}) }
	add("model.embed_tokens.weight", c.VocabSize, c.Hidden)
	for l := range c.Layers {
		p := fmt.Sprintf("model.layers.%d.", l)
		add(p+"input_layernorm.weight", c.Hidden)
		add(p+"self_attn.q_proj.weight", q, c.Hidden)
		add(p+"self_attn.k_proj.weight", kv, c.Hidden)
		add(p+"self_attn.v_proj.weight", kv, c.Hidden)
		if c.QKVBias() {
			add(p+"self_attn.q_proj.bias", q)
			add(p+"self_attn.k_proj.bias", kv)
			add(p+"self_attn.v_proj.bias", kv)
		}
		if c.QKNorm() {
			add(p+"self_attn.q_norm.weight", c.HeadDim)
			add(p+"self_attn.k_norm.weight", c.HeadDim)
		}
		add(p+"self_attn.o_proj.weight", c.Hidden, q)
		add(p+"post_attention_layernorm.weight", c.Hidden)
		add(p+"mlp.gate_proj.weight", c.FFN, c.Hidden)
		add(p+"mlp.up_proj.weight", c.FFN, c.Hidden)
		add(p+"mlp.down_proj.weight", c.Hidden, c.FFN)
	}
	add("model.norm.weight", c.Hidden)
	if !c.TieEmbeddings {
		add("lm_head.weight", c.VocabSize, c.Hidden)
	}
	return ps
}

// ignored reports whether a tensor outside Params changes nothing: a copy of the
// tied head, or a table of rotary frequencies that older exporters saved.
func (c *Config) ignored(name string) bool {
	return c.TieEmbeddings && name == "lm_head.weight" || strings.HasSuffix(name, ".rotary_emb.inv_freq")
}

// Check compares all tensors with Params: name, shape and type. Tensors that the
// architecture does not have are faults too, because running without them would
// give wrong answers. It returns the first faults joined.
func (k *Checkpoint) Check() error {
	var faults []error
	n := 0
	fault := func(format string, args ...any) {
		if n++; n <= maxFaults {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	params := k.Config.Params()
	known := make(map[string]bool, len(params))
	for _, p := range params {
		known[p.Name] = true
		t, ok := k.tensors[p.Name]
		switch {
		case !ok:
			fault("%s: %w: tensor %s: expected shape %v, found nothing: the checkpoint is not complete, fetch it again", k.list, ErrNoTensor, p.Name, p.Shape)
		case !slices.Equal(t.Shape, p.Shape):
			fault("%s: %w: tensor %s: expected shape %v, found %v", k.where[p.Name], ErrCorrupt, p.Name, p.Shape, t.Shape)
		case t.DType != BF16 && t.DType != F16 && t.DType != F32:
			fault("%s: %w: tensor %s: expected type BF16, F16 or F32, found %s", k.where[p.Name], ErrUnsupported, p.Name, t.DType)
		}
	}
	for _, name := range k.Names() {
		if !known[name] && !k.Config.ignored(name) {
			fault("%s: %w: tensor %s: expected no such tensor in %s", k.where[name], ErrUnsupported, name, k.Config.Architecture)
		}
	}
	if n > maxFaults {
		faults = append(faults, fmt.Errorf("and %d more", n-maxFaults))
	}
	return errors.Join(faults...)
}
