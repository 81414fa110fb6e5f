package model

import (
	"errors"
	"fmt"
)

// ErrUnsupported says that a model is well formed, but computes something that
// no executor here implements.
var ErrUnsupported = errors.New("unsupported model")

const (
	configFile     = "config.json"
	generationFile = "generation_config.json"
)

// Architecture names a model family, as in config.json.
type Architecture string

// The families. All have grouped-query attention, RMS norms, rotary positions
// and SwiGLU; the fields of Config say in what they differ.
const (
	// Qwen3 is the dense Qwen3 family: RMS norms on the queries and keys of each head.
	Qwen3 Architecture = "Qwen3ForCausalLM"
	// Qwen2 is Qwen2 and Qwen2.5, with what was made from them (QwQ, the R1
	// distills): biases on queries, keys and values.
	Qwen2 Architecture = "Qwen2ForCausalLM"
	// Llama is Llama 2 and 3, with what was made from them.
	Llama Architecture = "LlamaForCausalLM"
)

// Architectures lists the families that are known.
func Architectures() []Architecture { return []Architecture{Qwen3, Qwen2, Llama} }

// Config is a decoder's shape. Every field has been checked.
type Config struct {
	Architecture Architecture
	// VocabSize is the number of rows of the embedding. The tokenizer may have
	// fewer ids; the rows above are padding and must never be sampled.
	VocabSize int
	Hidden    int // C
	Layers    int // L
	Heads     int // Hq
	KVHeads   int // Hk, divides Heads
	HeadDim   int // D, even
	FFN       int // F
	// MaxContext is the number of positions the model was trained for.
	MaxContext int
	RopeTheta  float64
	// RopeScaling stretches the rotary frequencies; nil leaves them as they are.
	// Executors take them from InvFreq.
	RopeScaling   *RopeScaling `json:",omitempty"`
	NormEps       float64
	TieEmbeddings bool // the output head is the embedding
	// EOS are the ids that end a text; empty if the file has none.
	EOS []int32
	// DType is the type the weights were saved in, for display ("bfloat16").
	DType string
}

// QKNorm reports whether every query and key head passes an RMS norm of width D
// before the rotation.
func (c *Config) QKNorm() bool { return c.Architecture == Qwen3 }

// QKVBias reports whether queries, keys and values have biases, which are added
// before norm and rotation.
func (c *Config) QKVBias() bool { return c.Architecture == Qwen2 }

// ParseConfig reads config.json. Fields that change what the model computes and
// that we do not implement are refused by name.
func ParseConfig(data []byte) (Config, error) {
	f, err := parseFields(configFile, data)
	if err != nil {
		return Config{}, err
	}
	var archs []Architecture
	f.get("architectures", "a list of one architecture", &archs)
	if len(archs) != 1 {
		f.fail(ErrCorrupt, "architectures", "a list of one architecture")
		return Config{}, f.err
	}
	var c Config
	switch archs[0] {
	case Qwen3:
		c = parseQwen3(f)
	case Qwen2:
		c = parseQwen2(f)
	case Llama:
		c = parseLlama(f)
	default:
		f.fail(ErrUnsupported, "architectures", fmt.Sprintf("one of %q", Architectures()))
	}
	if f.err != nil {
		return Config{}, f.err
	}
	return c, nil
}

func parseQwen3(f *fields) Config {
	c := parseDecoder(f, Qwen3, 0, 128)
	f.only("attention_bias", "false")
	return c
}

func parseQwen2(f *fields) Config {
	c := parseDecoder(f, Qwen2, 0, 0)
	f.only("attention_bias", "true") // no known file has it; the biases are there anyway
	f.only("use_mrope", "false")
	return c
}

func parseLlama(f *fields) Config {
	c := parseDecoder(f, Llama, 1e4, 0)
	f.only("attention_bias", "false") // the output matrix would have one as well
	f.only("mlp_bias", "false")
	return c
}

// parseDecoder reads what all families share, with the defaults of this one. A
// theta of 0 has to be in the file; a head of 0 is the hidden size cut by the heads.
func parseDecoder(f *fields, a Architecture, theta float64, head int) Config {
	f.only("auto_map") // the model's own code
	c := Config{
		Architecture:  a,
		VocabSize:     f.integer("vocab_size", 1<<21),
		Hidden:        f.integer("hidden_size", 1<<16),
		Layers:        f.integer("num_hidden_layers", 512),
		Heads:         f.integer("num_attention_heads", 1024),
		FFN:           f.integer("intermediate_size", 1<<20),
		MaxContext:    f.integer("max_position_embeddings", 1<<24),
		NormEps:       f.number("rms_norm_eps", 1),
		TieEmbeddings: f.flag("tie_word_embeddings"),
	}
	c.KVHeads = c.Heads
	if f.has("num_key_value_heads") {
		c.KVHeads = f.integer("num_key_value_heads", 1024)
	}
	parseRope(f, &c, theta)
	parseHeads(f, &c, head)
	if f.err == nil {
		c.EOS = f.ids("eos_token_id", c.VocabSize)
	}
	f.only("hidden_act", `"silu"`)
	f.only("quantization_config")
	refuseWindow(f, c.Layers)
	for _, name := range []string{"dtype", "torch_dtype"} {
		if f.has(name) {
			f.get(name, "a string", &c.DType)
			break
		}
	}
	return c
}

// parseHeads reads the width of a head and checks that the heads fit together.
func parseHeads(f *fields, c *Config, head int) {
	if f.err != nil {
		return
	}
	switch {
	case f.has("head_dim"):
		c.HeadDim = f.integer("head_dim", 1024)
	case head != 0:
		c.HeadDim = head
	default:
		c.HeadDim = c.Hidden / c.Heads
		if c.Hidden%c.Heads != 0 || c.HeadDim > 1024 {
			f.fail(ErrCorrupt, "num_attention_heads", fmt.Sprintf("a divisor of hidden_size (%d), for heads of at most 1024", c.Hidden))
		}
	}
	if f.err == nil && c.Heads%c.KVHeads != 0 {
		f.fail(ErrCorrupt, "num_key_value_heads", fmt.Sprintf("a divisor of num_attention_heads (%d)", c.Heads))
	}
	if f.err == nil && c.HeadDim%2 != 0 {
		f.fail(ErrCorrupt, "head_dim", "an even number")
	}
}

// refuseWindow refuses layers with any attention but the full one.
func refuseWindow(f *fields, layers int) {
	f.only("use_sliding_window", "false")
	if !f.has("layer_types") {
		return
	}
	var types []string
	if !f.get("layer_types", "a list of strings", &types) {
		return
	}
	if f.err == nil && len(types) != layers {
		f.fail(ErrCorrupt, "layer_types", fmt.Sprintf("%d entries", layers))
	}
	for _, t := range types {
		if t != "full_attention" {
			f.fail(ErrUnsupported, "layer_types", `"full_attention" only`)
		}
	}
}
