package pair

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/tokenrouter/tokenrouter/models"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// side makes a model with zeros for weights. edit changes its files.
func side(t *testing.T, name, kind string, edit func(fstest.MapFS)) *Side {
	t.Helper()
	words, err := os.ReadFile("../tokenizer/testdata/small/" + kind + "/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	config := []byte(`{"architectures":["LlamaForCausalLM"],"vocab_size":800,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":2,"intermediate_size":6,
		"max_position_embeddings":64,"rms_norm_eps":1e-6,"hidden_act":"silu","eos_token_id":5}`)
	c, err := model.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var tensors []model.Tensor
	for _, p := range c.Params() {
		n := 2
		for _, d := range p.Shape {
			n *= d
		}
		tensors = append(tensors, model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape, Bytes: make([]byte, n)})
	}
	weights, err := model.EncodeShard(tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{"config.json": {Data: config}, "tokenizer.json": {Data: words}, "model.safetensors": {Data: weights},
		"chat_template.jinja": {Data: []byte("{{ messages }}")}}
	if edit != nil {
		edit(files)
	}
	return OpenFS(files, name)
}

// swapped replaces a text in a file.
func swapped(file, old, new string) func(fstest.MapFS) {
	return func(f fstest.MapFS) {
		s := string(f[file].Data)
		if !strings.Contains(s, old) {
			panic("no " + old)
		}
		f[file] = &fstest.MapFile{Data: []byte(strings.Replace(s, old, new, 1))}
	}
}

func kinds(r *Report) string {
	var out []string
	for _, d := range r.Differences {
		s := d.Kind
		switch {
		case d.Refuse:
			s += "!"
		case d.Mapped:
			s += "~"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestCheck(t *testing.T) {
	small := side(t, "small", "llama3", nil)
	if len(small.Faults) > 0 {
		t.Fatal(small.Faults)
	}
	for _, c := range []struct {
		name  string
		large *Side
		pairs []string
		want  string
		map_  bool
		plain bool
	}{
		{"the same", side(t, "large", "llama3", nil), nil, "", true, true},
		{"template", side(t, "large", "llama3", swapped("chat_template.jinja", "}}", "}} ")), nil, "template", true, true},
		{"context", side(t, "large", "llama3", swapped("config.json", `"max_position_embeddings":64`, `"max_position_embeddings":128`)), nil, "context", true, true},
		{"end", side(t, "large", "llama3", swapped("config.json", `"eos_token_id":5`, `"eos_token_id":[5,6]`)), nil, "end!", false, false},
		{"one token", side(t, "large", "llama3", swapped("tokenizer.json", "<|eot|>", "<|end|>")), nil, "vocabulary!", false, false},
		{"one token, mapped", side(t, "large", "llama3", swapped("tokenizer.json", "<|eot|>", "<|end|>")), []string{"<|eot|>=<|end|>"}, "vocabulary~", true, false},
		{"end, mapped", side(t, "large", "llama3", swapped("config.json", `"eos_token_id":5`, `"eos_token_id":6`)), []string{"5=6"}, "end~", true, false},
		{"special", side(t, "large", "llama3", swapped("tokenizer.json", `"normalized":false,"special":true`, `"normalized":false,"special":false`)), nil, "special!", false, false},
		{"split", side(t, "large", "llama3", swapped("tokenizer.json", `"ignore_merges":true`, `"ignore_merges":false`)), nil, "split!", false, false},
		{"no weights", side(t, "large", "llama3", func(f fstest.MapFS) { delete(f, "model.safetensors") }), nil, "fault! end! context", false, false},
		{"no tokenizer", side(t, "large", "llama3", func(f fstest.MapFS) { delete(f, "tokenizer.json") }), nil, "fault!", false, false},
		{"begin", side(t, "large", "llama3", func(f fstest.MapFS) {
			f["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(`{"add_bos_token":false}`)}
		}), nil, "begin", true, true},
	} {
		m, err := ParseMap(small, c.large, c.pairs)
		if err != nil {
			t.Fatal(err)
		}
		r := Check(small, c.large, m)
		if got := kinds(r); got != c.want || r.Compatible != c.plain || r.CompatibleWithMap != c.map_ {
			t.Errorf("%s: %s, compatible %t, with map %t", c.name, got, r.Compatible, r.CompatibleWithMap)
		}
		if _, err := json.Marshal(r); err != nil {
			t.Error(err)
		}
	}
	r := Check(small, side(t, "large", "llama2", nil), nil)
	if r.Compatible || r.More == 0 || len(r.Differences) > 2*maxListed {
		t.Errorf("other vocabularies: %d differences and %d more", len(r.Differences), r.More)
	}
}

func TestParseMap(t *testing.T) {
	s := side(t, "s", "llama3", nil)
	for _, bad := range []string{"", "=", "a=", "=b", "x", "<|nope|>=<|eot|>", "5=99999", "-1=5"} {
		if _, err := ParseMap(s, s, []string{bad}); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
	if _, err := ParseMap(s, s, []string{"5=6", "5=7"}); err == nil {
		t.Error("an id twice: no error")
	}
	if m, err := ParseMap(s, s, []string{"<|eot|>=<|eot_id|>", "5=5"}); err != nil || len(m) != 2 {
		t.Errorf("%v, %v", m, err)
	}
}

func TestDescribeTrio(t *testing.T) {
	for _, name := range models.Names() {
		files, _ := models.FS(name)
		s := OpenFS(files, name)
		if len(s.Faults) > 0 || s.Tokens != 749 || s.Rows != 1024 || len(s.End) != 1 || s.Template == 0 || s.Parameters == 0 {
			t.Errorf("%+v", s.Description)
		}
	}
}

func TestDescribeFaults(t *testing.T) {
	for name, edit := range map[string]func(fstest.MapFS){
		"quantization_config": swapped("config.json", `"hidden_act"`, `"quantization_config":{},"hidden_act"`), "vocab_size": swapped("config.json", `"vocab_size":800`, `"vocab_size":80`),
		"eos_token_id": swapped("config.json", `"eos_token_id":5`, `"x":5`), "template syntax": swapped("chat_template.jinja", "}}", ""), "tokenizer.json": swapped("tokenizer.json", "BPE", "WordPiece"),
	} {
		s := side(t, "s", "llama3", edit)
		if !strings.Contains(strings.Join(s.Faults, "\n"), name) {
			t.Errorf("%s: faults %q", name, s.Faults)
		}
	}
	if _, err := OpenDir("nowhere"); err == nil {
		t.Error("no directory: no error")
	}
}
