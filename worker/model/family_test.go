package model

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// Configs as published, cut to the fields that matter. The shapes are the real ones.
const (
	llama2JSON = `{"_name_or_path":"meta-llama/Llama-2-7b-hf","architectures":["LlamaForCausalLM"],"bos_token_id":1,"eos_token_id":2,
		"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,"intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama",
		"num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":32,"pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":null,
		"tie_word_embeddings":false,"torch_dtype":"float16","use_cache":true,"vocab_size":32000}`
	llama31JSON = `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,
		"eos_token_id":[128001,128008,128009],"hidden_act":"silu","hidden_size":4096,"intermediate_size":14336,"max_position_embeddings":131072,
		"mlp_bias":false,"model_type":"llama","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,"pretraining_tp":1,
		"rms_norm_eps":1e-05,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
		"rope_theta":500000.0,"tie_word_embeddings":false,"torch_dtype":"bfloat16","vocab_size":128256}`
	llama32JSON = `{"architectures":["LlamaForCausalLM"],"attention_bias":false,"bos_token_id":128000,"dtype":"bfloat16","eos_token_id":128001,"head_dim":64,
		"hidden_act":"silu","hidden_size":2048,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,"num_attention_heads":32,
		"num_hidden_layers":16,"num_key_value_heads":8,"rms_norm_eps":1e-05,"rope_parameters":{"factor":32.0,"high_freq_factor":4.0,"low_freq_factor":1.0,
		"original_max_position_embeddings":8192,"rope_theta":500000.0,"rope_type":"llama3"},"tie_word_embeddings":true,"vocab_size":128256}`
	qwen25JSON = `{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151645,"hidden_act":"silu",
		"hidden_size":896,"intermediate_size":4864,"max_position_embeddings":32768,"max_window_layers":21,"model_type":"qwen2","num_attention_heads":14,
		"num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,"sliding_window":32768,"tie_word_embeddings":true,
		"torch_dtype":"bfloat16","use_sliding_window":false,"vocab_size":151936}`
	distillJSON = `{"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,"hidden_act":"silu",
		"hidden_size":1536,"intermediate_size":8960,"max_position_embeddings":131072,"max_window_layers":21,"model_type":"qwen2","num_attention_heads":12,
		"num_hidden_layers":28,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":10000,"sliding_window":4096,"tie_word_embeddings":false,
		"torch_dtype":"bfloat16","use_cache":true,"use_mrope":false,"use_sliding_window":false,"vocab_size":151936}`
)

func TestFamilies(t *testing.T) {
	tests := []struct {
		name, config   string
		arch           Architecture
		head, kvHeads  int
		theta          float64
		scale          *RopeScaling
		weights        int // elements of all parameters, as published
		perLayer       int // tensors
		eos            []int32
		tied, hasNorms bool
	}{
		{"Llama 2 7B", llama2JSON, Llama, 128, 32, 1e4, nil, 6_738_415_616, 9, []int32{2}, false, false},
		{"Llama 3.1 8B", llama31JSON, Llama, 128, 8, 5e5, &RopeScaling{8, 1, 4, 8192}, 8_030_261_248, 9, []int32{128001, 128008, 128009}, false, false},
		{"Llama 3.2 1B", llama32JSON, Llama, 64, 8, 5e5, &RopeScaling{32, 1, 4, 8192}, 1_235_814_400, 9, []int32{128001}, true, false},
		{"Qwen2.5 0.5B", qwen25JSON, Qwen2, 64, 2, 1e6, nil, 494_032_768, 12, []int32{151645}, true, false},
		{"R1 distill 1.5B", distillJSON, Qwen2, 128, 2, 1e4, nil, 1_777_088_000, 12, []int32{151643}, false, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			c, err := ParseConfig([]byte(tc.config))
			if err != nil {
				t.Fatal(err)
			}
			if c.Architecture != tc.arch || c.HeadDim != tc.head || c.KVHeads != tc.kvHeads || c.RopeTheta != tc.theta ||
				c.TieEmbeddings != tc.tied || c.QKNorm() != tc.hasNorms || c.QKVBias() != (tc.arch == Qwen2) || !slices.Equal(c.EOS, tc.eos) {
				t.Errorf("got %+v", c)
			}
			if (c.RopeScaling == nil) != (tc.scale == nil) || tc.scale != nil && *c.RopeScaling != *tc.scale {
				t.Errorf("scaling %+v, want %+v", c.RopeScaling, tc.scale)
			}
			sum, perLayer := 0, 0
			for _, p := range c.Params() {
				n := 1
				for _, d := range p.Shape {
					n *= d
				}
				sum += n
				if strings.HasPrefix(p.Name, "model.layers.0.") {
					perLayer++
				}
			}
			if sum != tc.weights || perLayer != tc.perLayer {
				t.Errorf("%d parameters and %d tensors a layer, want %d and %d", sum, perLayer, tc.weights, tc.perLayer)
			}
		})
	}
}

// replaced changes one place of a config.
func replaced(config, old, new string) string {
	if !strings.Contains(config, old) {
		panic("no " + old)
	}
	return strings.Replace(config, old, new, 1)
}

func TestFamiliesRefuse(t *testing.T) {
	scaling := `"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0`
	tests := []struct {
		name, config string
		kind         error
		want         string
	}{
		{"linear scaling", replaced(llama2JSON, `"rope_scaling":null`, `"rope_scaling":{"type":"linear","factor":2.0}`), ErrUnsupported, "type"},
		{"dynamic scaling", replaced(llama2JSON, `"rope_scaling":null`, `"rope_scaling":{"rope_type":"dynamic","factor":2.0}`), ErrUnsupported, "rope_type"},
		{"yarn", replaced(qwen25JSON, `"rope_theta"`, `"rope_scaling":{"factor":4.0,"original_max_position_embeddings":32768,"type":"yarn"},"rope_theta"`), ErrUnsupported, "yarn"},
		{"yarn, new form", replaced(llama32JSON, `"rope_type":"llama3"`, `"rope_type":"yarn"`), ErrUnsupported, "yarn"},
		{"factor missing", replaced(llama31JSON, `"factor":8.0,`, ``), ErrCorrupt, "factor"},
		{"factor below 1", replaced(llama31JSON, `"factor":8.0`, `"factor":0.5`), ErrCorrupt, "factor"},
		{"no blend", replaced(llama31JSON, scaling, `"factor":8.0,"low_freq_factor":4.0,"high_freq_factor":4.0`), ErrCorrupt, "high_freq_factor"},
		{"original context 0", replaced(llama31JSON, `"original_max_position_embeddings":8192`, `"original_max_position_embeddings":0`), ErrCorrupt, "original_max_position_embeddings"},
		{"unknown scaling field", replaced(llama31JSON, scaling, scaling+`,"beta_fast":32`), ErrUnsupported, "beta_fast"},
		{"scaling is a list", replaced(llama2JSON, `"rope_scaling":null`, `"rope_scaling":[]`), ErrCorrupt, "rope_scaling"},
		{"scaling in both forms", replaced(llama32JSON, `"rope_parameters"`, `"rope_scaling":{"rope_type":"llama3"},"rope_parameters"`), ErrUnsupported, "rope_scaling"},
		{"output bias", replaced(llama31JSON, `"attention_bias":false`, `"attention_bias":true`), ErrUnsupported, "attention_bias"},
		{"mlp bias", replaced(llama31JSON, `"mlp_bias":false`, `"mlp_bias":true`), ErrUnsupported, "mlp_bias"},
		{"three rotations", replaced(distillJSON, `"use_mrope":false`, `"use_mrope":true`), ErrUnsupported, "use_mrope"},
		{"sliding window", replaced(qwen25JSON, `"use_sliding_window":false`, `"use_sliding_window":true`), ErrUnsupported, "use_sliding_window"},
		{"heads do not divide", replaced(llama2JSON, `"hidden_size":4096`, `"hidden_size":4100`), ErrCorrupt, "num_attention_heads"},
		{"huge head", replaced(replaced(llama2JSON, `"num_attention_heads":32`, `"num_attention_heads":2`), `"num_key_value_heads":32`, `"num_key_value_heads":2`), ErrCorrupt, "num_attention_heads"},
		{"kv heads do not divide", replaced(llama31JSON, `"num_key_value_heads":8`, `"num_key_value_heads":7`), ErrCorrupt, "num_key_value_heads"},
		{"own code", replaced(llama2JSON, `"bos_token_id"`, `"auto_map":{"AutoModelForCausalLM":"modeling.Model"},"bos_token_id"`), ErrUnsupported, "auto_map"},
		{"quantised", replaced(qwen25JSON, `"rope_theta"`, `"quantization_config":{"quant_method":"awq"},"rope_theta"`), ErrUnsupported, "quantization_config"},
		{"mistral", replaced(llama2JSON, "LlamaForCausalLM", "MistralForCausalLM"), ErrUnsupported, "MistralForCausalLM"},
		{"qwen3 with experts", replaced(qwen25JSON, "Qwen2ForCausalLM", "Qwen3MoeForCausalLM"), ErrUnsupported, "Qwen3MoeForCausalLM"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			_, err := ParseConfig([]byte(tc.config))
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
}

// TestInvFreq compares with values of the reference implementation (Llama 3.2 1B).
func TestInvFreq(t *testing.T) {
	c, err := ParseConfig([]byte(llama32JSON))
	if err != nil {
		t.Fatal(err)
	}
	freq := c.InvFreq()
	plain := c
	plain.RopeScaling = nil
	unscaled := plain.InvFreq()
	if len(freq) != 32 || freq[0] != 1 {
		t.Fatalf("got %v", freq)
	}
	for i, f := range freq {
		wave := 2 * math.Pi / unscaled[i]
		switch {
		case wave < 8192/4.0 && f != unscaled[i]:
			t.Errorf("frequency %d: a short wave is stretched", i)
		case wave > 8192 && f != unscaled[i]/32:
			t.Errorf("frequency %d: a long wave is not divided by 32", i)
		case i > 0 && f >= freq[i-1]:
			t.Errorf("frequency %d is not below its neighbour", i)
		}
	}
}

// TestDamagedFamilies takes one tensor of each family away, or its shape, and looks
// for its name in the error.
func TestDamagedFamilies(t *testing.T) {
	small := map[string]string{
		"llama": `{"architectures":["LlamaForCausalLM"],"rope_theta":1e4`,
		"qwen2": `{"architectures":["Qwen2ForCausalLM"],"rope_theta":1e4`,
		"qwen3": `{"architectures":["Qwen3ForCausalLM"],"rope_theta":1e4,"head_dim":4`,
	}
	for family, head := range small {
		config := []byte(head + `,"vocab_size":16,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":6,
			"max_position_embeddings":32,"rms_norm_eps":1e-6,"hidden_act":"silu","tie_word_embeddings":false}`)
		all := weightsOf(t, config)
		open := func(tensors []Tensor) error {
			k, err := OpenFS(fstest.MapFS{"config.json": {Data: config}, "model.safetensors": shard(t, tensors)}, family)
			if err != nil {
				return err
			}
			defer k.Close()
			return k.Check()
		}
		if err := open(all); err != nil {
			t.Errorf("%s: %v", family, err)
		}
		for i, x := range all {
			missing := slices.Delete(slices.Clone(all), i, i+1)
			turned := slices.Clone(all)
			turned[i].Shape = append([]int{1}, x.Shape...)
			typed := slices.Clone(all)
			typed[i].DType = "I16"
			for kind, tensors := range map[string][]Tensor{"missing": missing, "turned": turned, "typed": typed} {
				if err := open(tensors); err == nil || !strings.Contains(err.Error(), x.Name) {
					t.Errorf("%s: %s %s: error %v", family, kind, x.Name, err)
				}
			}
		}
		extra := append(slices.Clone(all), Tensor{"model.layers.0.self_attn.o_proj.bias", F32, []int{1}, make([]byte, 4)})
		if err := open(extra); err == nil || !strings.Contains(err.Error(), "o_proj.bias") {
			t.Errorf("%s: extra tensor: error %v", family, err)
		}
		inert := append(slices.Clone(all), Tensor{"model.layers.0.self_attn.rotary_emb.inv_freq", F32, []int{2}, make([]byte, 8)})
		if err := open(inert); err != nil {
			t.Errorf("%s: %v", family, err)
		}
	}
}
