package cpuexec

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// odd is a model whose sizes differ on every axis and fit no vector width: three
// query heads on one key head, heads of 6, an output head of its own.
const oddVocab = 37

// oddFamilies are the fields of config.json in which the families differ.
func oddFamilies() map[string]map[string]any {
	return map[string]map[string]any{
		"qwen3":  {"architectures": []string{"Qwen3ForCausalLM"}, "head_dim": 6, "tie_word_embeddings": false},
		"qwen2":  {"architectures": []string{"Qwen2ForCausalLM"}, "hidden_size": 36, "tie_word_embeddings": true},
		"llama2": {"architectures": []string{"LlamaForCausalLM"}, "head_dim": 6, "tie_word_embeddings": false},
		"llama3": {"architectures": []string{"LlamaForCausalLM"}, "head_dim": 6, "tie_word_embeddings": true,
			"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 24}},
	}
}

func oddModel(t testing.TB) *model.Checkpoint { return oddFamily(t, "qwen3") }

func oddFamily(t testing.TB, family string) *model.Checkpoint {
	t.Helper()
	fields := map[string]any{
		"vocab_size": 41, "hidden_size": 20, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2,
		"intermediate_size": 29, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 500, "hidden_act": "silu",
	}
	maps.Copy(fields, oddFamilies()[family])
	config, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	var tensors []model.Tensor
	for _, p := range c.Params() {
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		x := model.Tensor{Name: p.Name, DType: model.F32, Shape: p.Shape}
		for range n {
			v := rng.NormFloat64() / 2
			if len(p.Shape) == 1 && !strings.HasSuffix(p.Name, ".bias") {
				v = 1 + v/4
			}
			x.Bytes = binary.LittleEndian.AppendUint32(x.Bytes, math.Float32bits(float32(v)))
		}
		tensors = append(tensors, x)
	}
	data, err := model.EncodeShard(tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	k, err := model.OpenFS(fstest.MapFS{"config.json": {Data: config}, "model.safetensors": {Data: data}}, "odd")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func newOdd(t testing.TB, cfg Config) *Executor { return newOddFamily(t, "qwen3", cfg) }

func newOddFamily(t testing.TB, family string, cfg Config) *Executor {
	t.Helper()
	k := oddFamily(t, family)
	defer k.Close()
	cfg.Vocab = oddVocab
	return started(t, cfg, k)
}

// started loads a checkpoint and shuts the executor down after the test.
func started(t testing.TB, cfg Config, k *model.Checkpoint) *Executor {
	t.Helper()
	e, err := New(cfg, k)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Shutdown(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// plain is the whole model in float64 with no cache: it recomputes everything
// for all positions and is as close to the formulas as can be.
type plain struct {
	t *testing.T
	k *model.Checkpoint
}

func (p plain) weight(name string) []float64 {
	x, err := p.k.Tensor(name)
	if err != nil {
		p.t.Fatal(err)
	}
	f, err := x.Float32()
	if err != nil {
		p.t.Fatal(err)
	}
	out := make([]float64, len(f))
	for i, v := range f {
		out[i] = float64(v)
	}
	return out
}

func mulVec(w, x []float64) []float64 {
	out := make([]float64, len(w)/len(x))
	for r := range out {
		for i, v := range x {
			out[r] += w[r*len(x)+i] * v
		}
	}
	return out
}

func (p plain) norm(x, w []float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = v / math.Sqrt(sum/float64(len(x))+p.k.Config.NormEps) * w[i]
	}
	return out
}

func (p plain) rope(x []float64, pos int) []float64 {
	d := len(x)
	out := make([]float64, d)
	for i := range d / 2 {
		freq := math.Pow(p.k.Config.RopeTheta, -2*float64(i)/float64(d))
		if s := p.k.Config.RopeScaling; s != nil {
			// The blend is written as its authors do, by wave lengths in positions.
			wave := 2 * math.Pi / freq
			low, high := float64(s.OriginalContext)/s.LowFreq, float64(s.OriginalContext)/s.HighFreq
			if wave > low {
				freq /= s.Factor
			} else if wave >= high {
				smooth := (float64(s.OriginalContext)/wave - s.LowFreq) / (s.HighFreq - s.LowFreq)
				freq = (1-smooth)*freq/s.Factor + smooth*freq
			}
		}
		angle := float64(pos) * freq
		out[i] = x[i]*math.Cos(angle) - x[i+d/2]*math.Sin(angle)
		out[i+d/2] = x[i+d/2]*math.Cos(angle) + x[i]*math.Sin(angle)
	}
	return out
}

// logits returns the logits of every position, over all rows of the head.
func (p plain) logits(ids []int32) [][]float64 {
	c := p.k.Config
	xs := make([][]float64, len(ids))
	embed := p.weight("model.embed_tokens.weight")
	for t, id := range ids {
		xs[t] = append([]float64{}, embed[int(id)*c.Hidden:(int(id)+1)*c.Hidden]...)
	}
	for l := range c.Layers {
		p.layer(l, xs)
	}
	head, norm := embed, p.weight("model.norm.weight")
	if !c.TieEmbeddings {
		head = p.weight("lm_head.weight")
	}
	out := make([][]float64, len(ids))
	for t, x := range xs {
		out[t] = mulVec(head, p.norm(x, norm))
	}
	return out
}

func (p plain) layer(l int, xs [][]float64) {
	c := p.k.Config
	layer := "model.layers." + string(rune('0'+l)) + "."
	name := func(s string) []float64 { return p.weight(layer + s + ".weight") }
	project := func(s string, x []float64) []float64 {
		y := mulVec(name("self_attn."+s), x)
		if c.Architecture == model.Qwen2 {
			for i, v := range p.weight(layer + "self_attn." + s + ".bias") {
				y[i] += v
			}
		}
		return y
	}
	headNorm := func(s string, x []float64) []float64 {
		if c.Architecture != model.Qwen3 {
			return x
		}
		return p.norm(x, name("self_attn."+s))
	}
	var keys, values [][]float64 // [T·Hk][D]
	d, group := c.HeadDim, c.Heads/c.KVHeads
	for t := range xs {
		h := p.norm(xs[t], name("input_layernorm"))
		q, k, v := project("q_proj", h), project("k_proj", h), project("v_proj", h)
		for i := range c.KVHeads {
			keys = append(keys, p.rope(headNorm("k_norm", k[i*d:(i+1)*d]), t))
			values = append(values, v[i*d:(i+1)*d])
		}
		mixed := make([]float64, c.Heads*d)
		for i := range c.Heads {
			qi := p.rope(headNorm("q_norm", q[i*d:(i+1)*d]), t)
			total := 0.0
			for s := range t + 1 {
				score := mulVec(keys[s*c.KVHeads+i/group], qi)[0]
				e := math.Exp(score / math.Sqrt(float64(d)))
				total += e
				for j := range d {
					mixed[i*d+j] += e * values[s*c.KVHeads+i/group][j]
				}
			}
			for j := range d {
				mixed[i*d+j] /= total
			}
		}
		for i, v := range mulVec(name("self_attn.o_proj"), mixed) {
			xs[t][i] += v
		}
		h = p.norm(xs[t], name("post_attention_layernorm"))
		g, u := mulVec(name("mlp.gate_proj"), h), mulVec(name("mlp.up_proj"), h)
		for i := range g {
			g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
		}
		for i, v := range mulVec(name("mlp.down_proj"), g) {
			xs[t][i] += v
		}
	}
}

func TestFamiliesAgainstPlainReference(t *testing.T) {
	for family := range oddFamilies() {
		t.Run(family, func(t *testing.T) {
			k := oddFamily(t, family)
			defer k.Close()
			e := newOddFamily(t, family, Config{PageSize: 5, MaxSlots: 1, Pages: 20})
			ids := make([]int32, 39)
			for i := range ids {
				ids[i] = int32(i * i % oddVocab)
			}
			got, _ := allLogits(t, e, ids)
			for pos, want := range (plain{t, k}).logits(ids) {
				row := make([]float32, oddVocab)
				for i := range row {
					row[i] = float32(want[i])
				}
				if d := distance(got[pos*oddVocab:(pos+1)*oddVocab], row); !(d < 2e-5) {
					t.Errorf("position %d: distance %.2g", pos, d)
				}
			}
		})
	}
}
