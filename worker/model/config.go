package model

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"sort"
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

// Qwen3 is the dense Qwen3 family: grouped-query attention with RMS norms on
// the queries and keys of each head, rotary positions, SwiGLU.
const Qwen3 Architecture = "Qwen3ForCausalLM"

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
	MaxContext    int
	RopeTheta     float64
	NormEps       float64
	TieEmbeddings bool // the output head is the embedding
	// EOS are the ids that end a text; empty if the file has none.
	EOS []int32
	// DType is the type the weights were saved in, for display ("bfloat16").
	DType string
}

// fields is a JSON object with exact-case keys. The first error sticks, so that
// a caller reads all fields and checks once.
type fields struct {
	file string
	raw  map[string]json.RawMessage
	err  error
}

func parseFields(file string, data []byte) (*fields, error) {
	f := &fields{file: file}
	if err := json.Unmarshal(data, &f.raw); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, ErrCorrupt, err)
	}
	return f, nil
}

// has reports whether a field is present and not null.
func (f *fields) has(name string) bool {
	v, ok := f.raw[name]
	return ok && string(v) != "null"
}

func (f *fields) fail(kind error, name, expected string) {
	if f.err == nil {
		found := string(f.raw[name])
		if len(found) > 80 {
			found = found[:80] + "..."
		}
		if found == "" {
			found = "nothing"
		}
		f.err = fmt.Errorf("%s: %w: %s: expected %s, found %s", f.file, kind, name, expected, found)
	}
}

// get decodes a field that must be present, or reports false.
func (f *fields) get(name, expected string, v any) bool {
	if !f.has(name) || json.Unmarshal(f.raw[name], v) != nil {
		f.fail(ErrCorrupt, name, expected)
		return false
	}
	return true
}

// integer reads a required integer in [1, limit].
func (f *fields) integer(name string, limit int) int {
	expected := fmt.Sprintf("an integer from 1 to %d", limit)
	var n int
	if f.get(name, expected, &n) && (n < 1 || n > limit) {
		f.fail(ErrCorrupt, name, expected)
	}
	return n
}

// number reads a required number in (0, limit].
func (f *fields) number(name string, limit float64) float64 {
	expected := fmt.Sprintf("a number above 0, at most %g", limit)
	var x float64
	if f.get(name, expected, &x) && !(x > 0 && x <= limit) {
		f.fail(ErrCorrupt, name, expected)
	}
	return x
}

// flag reads an optional boolean.
func (f *fields) flag(name string) bool {
	var b bool
	if f.has(name) {
		f.get(name, "true or false", &b)
	}
	return b
}

// only refuses a field that is present with any value but the given ones.
func (f *fields) only(name string, values ...string) {
	if !f.has(name) {
		return
	}
	for _, v := range values {
		if string(f.raw[name]) == v {
			return
		}
	}
	expected := "nothing"
	if len(values) > 0 {
		expected = values[0]
	}
	f.fail(ErrUnsupported, name, expected)
}

// ids reads an optional id or list of at most 64 ids below vocab.
func (f *fields) ids(name string, vocab int) []int32 {
	if !f.has(name) {
		return nil
	}
	expected := fmt.Sprintf("an id below %d or a list of at most 64", vocab)
	var out []int32
	var one int32
	if json.Unmarshal(f.raw[name], &one) == nil {
		out = []int32{one}
	} else if !f.get(name, expected, &out) {
		return nil
	}
	if len(out) > 64 {
		f.fail(ErrCorrupt, name, expected)
		return nil
	}
	for _, id := range out {
		if id < 0 || int(id) >= vocab {
			f.fail(ErrCorrupt, name, expected)
			return nil
		}
	}
	return out
}

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
	default:
		f.fail(ErrUnsupported, "architectures", fmt.Sprintf("[%q]", Qwen3))
	}
	if f.err != nil {
		return Config{}, f.err
	}
	return c, nil
}

func parseQwen3(f *fields) Config {
	c := Config{
		Architecture:  Qwen3,
		VocabSize:     f.integer("vocab_size", 1<<21),
		Hidden:        f.integer("hidden_size", 1<<16),
		Layers:        f.integer("num_hidden_layers", 512),
		Heads:         f.integer("num_attention_heads", 1024),
		FFN:           f.integer("intermediate_size", 1<<20),
		MaxContext:    f.integer("max_position_embeddings", 1<<24),
		NormEps:       f.number("rms_norm_eps", 1),
		TieEmbeddings: f.flag("tie_word_embeddings"),
		RopeTheta:     ropeTheta(f),
		HeadDim:       128, // the family's default
	}
	c.KVHeads = c.Heads
	if f.has("num_key_value_heads") {
		c.KVHeads = f.integer("num_key_value_heads", 1024)
	}
	if f.has("head_dim") {
		c.HeadDim = f.integer("head_dim", 1024)
	}
	if f.err == nil && c.Heads%c.KVHeads != 0 {
		f.fail(ErrCorrupt, "num_key_value_heads", fmt.Sprintf("a divisor of num_attention_heads (%d)", c.Heads))
	}
	if f.err == nil && c.HeadDim%2 != 0 {
		f.fail(ErrCorrupt, "head_dim", "an even number")
	}
	if f.err == nil {
		c.EOS = f.ids("eos_token_id", c.VocabSize)
	}
	f.only("hidden_act", `"silu"`)
	f.only("attention_bias", "false")
	f.only("use_sliding_window", "false")
	if f.flag("use_sliding_window") {
		f.only("sliding_window")
	}
	f.only("quantization_config")
	layerTypes(f, c.Layers)
	for _, name := range []string{"dtype", "torch_dtype"} {
		if f.has(name) {
			f.get(name, "a string", &c.DType)
			break
		}
	}
	return c
}

// ropeTheta reads the rotary base, which newer files keep under rope_parameters
// and older ones at the top, and refuses every scaled variant.
func ropeTheta(f *fields) float64 {
	const limit = 1e12
	f.only("rope_scaling")
	if !f.has("rope_parameters") {
		return f.number("rope_theta", limit)
	}
	var sub map[string]json.RawMessage
	if !f.get("rope_parameters", "an object", &sub) {
		return 0
	}
	p := &fields{file: f.file + ": rope_parameters", raw: sub}
	p.only("rope_type", `"default"`)
	p.only("partial_rotary_factor", "1.0", "1")
	theta := p.number("rope_theta", limit)
	names := make([]string, 0, len(sub))
	for name := range sub {
		names = append(names, name)
	}
	sort.Strings(names) // one error message for one file
	for _, name := range names {
		switch name {
		case "rope_type", "rope_theta", "partial_rotary_factor":
		default:
			p.only(name)
		}
	}
	if p.err == nil && f.has("rope_theta") && f.number("rope_theta", limit) != theta {
		f.fail(ErrCorrupt, "rope_theta", fmt.Sprintf("%g as in rope_parameters", theta))
	}
	if f.err == nil {
		f.err = p.err
	}
	return theta
}

// layerTypes refuses layers with any attention but the full one.
func layerTypes(f *fields, layers int) {
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

// Generation is generation_config.json: what the authors suggest. A nil pointer
// means that the file is silent.
type Generation struct {
	// EOS are the ids that end an answer (from config.json if this file has none).
	EOS         []int32
	Temperature *float32
	TopP        *float32
	TopK        *int32
}

// ParseGeneration reads generation_config.json for a model with the given config.
func ParseGeneration(data []byte, c *Config) (Generation, error) {
	f, err := parseFields(generationFile, data)
	if err != nil {
		return Generation{}, err
	}
	g := Generation{EOS: f.ids("eos_token_id", c.VocabSize)}
	if g.EOS == nil {
		g.EOS = c.EOS
	}
	number := func(name, expected string, ok func(float32) bool) *float32 {
		if !f.has(name) {
			return nil
		}
		var x float32
		if f.get(name, expected, &x) && !ok(x) {
			f.fail(ErrCorrupt, name, expected)
		}
		return &x
	}
	g.Temperature = number("temperature", "a number from 0 to 100", func(x float32) bool { return x >= 0 && x <= 100 })
	g.TopP = number("top_p", "a number above 0, at most 1", func(x float32) bool { return x > 0 && x <= 1 })
	if f.has("top_k") {
		var k int32
		const expected = "an integer from 0 to 2147483647"
		if f.get("top_k", expected, &k) && (k < 0 || k > math.MaxInt32) {
			f.fail(ErrCorrupt, "top_k", expected)
		}
		g.TopK = &k
	}
	if f.err != nil {
		return Generation{}, f.err
	}
	return g, nil
}
