package model

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

// baseConfig is a small valid config.json as an object to change.
func baseConfig() map[string]any {
	return map[string]any{
		"architectures": []string{"Qwen3ForCausalLM"}, "vocab_size": 32, "hidden_size": 8, "num_hidden_layers": 2,
		"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4, "intermediate_size": 12,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "hidden_act": "silu",
		"tie_word_embeddings": true, "attention_bias": false, "eos_token_id": 3, "torch_dtype": "bfloat16",
		"sliding_window": nil, "use_sliding_window": false, "rope_scaling": nil,
	}
}

func configJSON(change func(map[string]any)) []byte {
	m := baseConfig()
	if change != nil {
		change(m)
	}
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func set(name string, v any) func(map[string]any) {
	return func(m map[string]any) { m[name] = v }
}

func without(name string) func(map[string]any) {
	return func(m map[string]any) { delete(m, name) }
}

func TestParseConfig(t *testing.T) {
	type obj = map[string]any
	base := Config{Architecture: Qwen3, VocabSize: 32, Hidden: 8, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 4, FFN: 12,
		MaxContext: 64, RopeTheta: 1e6, NormEps: 1e-6, TieEmbeddings: true, EOS: []int32{3}, DType: "bfloat16"}
	tests := []struct {
		name   string
		change func(map[string]any)
		want   func(*Config)
	}{
		{"as is", func(obj) {}, func(*Config) {}},
		{"theta under rope_parameters", func(m obj) {
			delete(m, "rope_theta")
			m["rope_parameters"] = obj{"rope_type": "default", "rope_theta": 5e5}
		}, func(c *Config) { c.RopeTheta = 5e5 }},
		{"theta in both places", set("rope_parameters", obj{"rope_theta": 1e6}), func(*Config) {}},
		{"head_dim absent", without("head_dim"), func(c *Config) { c.HeadDim = 128 }},
		{"kv heads absent", without("num_key_value_heads"), func(c *Config) { c.KVHeads = 4 }},
		{"own head", set("tie_word_embeddings", false), func(c *Config) { c.TieEmbeddings = false }},
		{"several eos", set("eos_token_id", []int{3, 5}), func(c *Config) { c.EOS = []int32{3, 5} }},
		{"no eos", set("eos_token_id", nil), func(c *Config) { c.EOS = nil }},
		{"window unused", set("sliding_window", 4096), func(*Config) {}},
		{"full attention listed", set("layer_types", []string{"full_attention", "full_attention"}), func(*Config) {}},
		{"unknown fields", set("use_cache", true), func(*Config) {}},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseConfig(configJSON(tc.change))
			if err != nil {
				t.Fatal(err)
			}
			want := base
			want.EOS = slices.Clone(base.EOS)
			tc.want(&want)
			if !slices.Equal(got.EOS, want.EOS) {
				t.Errorf("EOS %v, want %v", got.EOS, want.EOS)
			}
			got.EOS, want.EOS = nil, nil
			if !equalConfig(got, want) {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func equalConfig(a, b Config) bool {
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	return string(x) == string(y)
}

func TestParseConfigRefuses(t *testing.T) {
	type obj = map[string]any
	tests := []struct {
		name   string
		change func(map[string]any)
		kind   error
		want   string // in the message, with the file's name
	}{
		{"other architecture", set("architectures", []string{"MambaForCausalLM"}), ErrUnsupported, "MambaForCausalLM"},
		{"two architectures", set("architectures", []string{"a", "b"}), ErrCorrupt, "architectures"},
		{"no architecture", without("architectures"), ErrCorrupt, "architectures"},
		{"no hidden size", without("hidden_size"), ErrCorrupt, "hidden_size"},
		{"key in another case", func(m obj) { delete(m, "hidden_size"); m["Hidden_Size"] = 8 }, ErrCorrupt, "hidden_size"},
		{"zero layers", set("num_hidden_layers", 0), ErrCorrupt, "num_hidden_layers"},
		{"negative vocabulary", set("vocab_size", -1), ErrCorrupt, "vocab_size"},
		{"vocabulary of 2^31", set("vocab_size", 1<<31), ErrCorrupt, "2147483648"},
		{"vocabulary of 2^70", set("vocab_size", json.Number("1180591620717411303424")), ErrCorrupt, "vocab_size"},
		{"text for a number", set("intermediate_size", "12"), ErrCorrupt, "intermediate_size"},
		{"heads do not divide", set("num_key_value_heads", 3), ErrCorrupt, "divisor"},
		{"odd head", set("head_dim", 5), ErrCorrupt, "head_dim"},
		{"no theta", without("rope_theta"), ErrCorrupt, "rope_theta"},
		{"zero theta", set("rope_theta", 0), ErrCorrupt, "rope_theta"},
		{"thetas disagree", set("rope_parameters", obj{"rope_theta": 1e4}), ErrCorrupt, "rope_theta"},
		{"rope scaling", set("rope_scaling", obj{"rope_type": "yarn", "factor": 4}), ErrUnsupported, "rope_scaling"},
		{"rope type", set("rope_parameters", obj{"rope_theta": 1e6, "rope_type": "yarn"}), ErrUnsupported, "rope_type"},
		{"rope factor", set("rope_parameters", obj{"rope_theta": 1e6, "factor": 2}), ErrUnsupported, "factor"},
		{"partial rotary", set("rope_parameters", obj{"rope_theta": 1e6, "partial_rotary_factor": 0.5}), ErrUnsupported, "partial_rotary_factor"},
		{"activation", set("hidden_act", "gelu"), ErrUnsupported, `hidden_act: expected "silu", found "gelu"`},
		{"bias", set("attention_bias", true), ErrUnsupported, "attention_bias"},
		{"sliding window", func(m obj) { m["use_sliding_window"] = true; m["sliding_window"] = 128 }, ErrUnsupported, "sliding_window"},
		{"window layers", set("layer_types", []string{"full_attention", "sliding_attention"}), ErrUnsupported, "layer_types"},
		{"layer types short", set("layer_types", []string{"full_attention"}), ErrCorrupt, "layer_types"},
		{"quantised", set("quantization_config", obj{"quant_method": "fp8"}), ErrUnsupported, "quantization_config"},
		{"eos out of range", set("eos_token_id", 32), ErrCorrupt, "eos_token_id"},
		{"eos negative", set("eos_token_id", []int{-1}), ErrCorrupt, "eos_token_id"},
		{"zero epsilon", set("rms_norm_eps", 0), ErrCorrupt, "rms_norm_eps"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseConfig(configJSON(tc.change))
			if !errors.Is(err, tc.kind) {
				t.Fatalf("error %v, want %v", err, tc.kind)
			}
			for _, s := range []string{tc.want, "config.json", "expected", "found"} {
				if !strings.Contains(err.Error(), s) {
					t.Errorf("error %q does not mention %q", err, s)
				}
			}
		})
	}
	for _, data := range []string{"", "null", "[]", "{", `{"architectures":`} {
		if _, err := ParseConfig([]byte(data)); err == nil {
			t.Errorf("%q: no error", data)
		}
	}
}

func TestParseGeneration(t *testing.T) {
	c := &Config{VocabSize: 32, EOS: []int32{9}}
	g, err := ParseGeneration([]byte(`{"eos_token_id":[1,2],"temperature":0.6,"top_p":0.95,"top_k":20,"do_sample":true}`), c)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(g.EOS, []int32{1, 2}) || *g.Temperature != 0.6 || *g.TopP != 0.95 || *g.TopK != 20 {
		t.Errorf("got %+v", g)
	}
	if g, err = ParseGeneration([]byte(`{}`), c); err != nil || !slices.Equal(g.EOS, []int32{9}) || g.Temperature != nil || g.TopP != nil || g.TopK != nil {
		t.Errorf("empty file: %+v %v", g, err)
	}
	for _, data := range []string{`{"eos_token_id":32}`, `{"eos_token_id":"x"}`, `{"temperature":-1}`, `{"temperature":"hot"}`,
		`{"top_p":0}`, `{"top_p":1.5}`, `{"top_k":-1}`, `{"top_k":1.5}`, `[]`, ``} {
		if _, err := ParseGeneration([]byte(data), c); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), generationFile) {
			t.Errorf("%s: error %v", data, err)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add(configJSON(nil))
	f.Add(configJSON(set("rope_parameters", map[string]any{"rope_type": "default", "rope_theta": 1e6})))
	f.Add(configJSON(set("eos_token_id", []int{1, 2})))
	for _, s := range []string{llama2JSON, llama31JSON, llama32JSON, qwen25JSON, distillJSON} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data)
		if err != nil {
			return
		}
		if c.Heads < 1 || c.KVHeads < 1 || c.Heads%c.KVHeads != 0 || c.HeadDim%2 != 0 || !(c.RopeTheta > 0) || !(c.NormEps > 0) {
			t.Fatalf("accepted %+v", c)
		}
		for _, p := range c.Params() {
			for _, d := range p.Shape {
				if d < 1 || d > 1<<24 {
					t.Fatalf("%s: shape %v", p.Name, p.Shape)
				}
			}
		}
	})
}
