package catalogue

import (
	"errors"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Parameter counts as published, from the shapes alone.
func TestShapes(t *testing.T) {
	c, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{
		"qwen3-0.6b": 596_049_920, "qwen3-1.7b": 1_720_574_976, "qwen3-4b": 4_022_468_096, "qwen3-8b": 8_190_735_360,
		"qwen3-14b": 14_768_307_200, "qwen3-32b": 32_762_123_264,
		"qwen2.5-0.5b": 494_032_768, "qwen2.5-1.5b": 1_543_714_304, "qwen2.5-7b": 7_615_616_512, "r1-distill-qwen-1.5b": 1_777_088_000,
		"r1-distill-qwen-7b": 7_615_616_512, "llama-3.2-1b": 1_235_814_400, "llama-3.1-8b": 8_030_261_248,
	}
	if len(c.Names()) != len(want) {
		t.Errorf("names %v", c.Names())
	}
	for name, params := range want {
		e, err := c.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.ParseConfig(e.Config)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		sum := 0
		for _, p := range m.Params() {
			n := 1
			for _, d := range p.Shape {
				n *= d
			}
			sum += n
		}
		if sum != params || e.RealVocab > m.VocabSize {
			t.Errorf("%s has %d parameters, want %d", name, sum, params)
		}
	}
}

func TestFind(t *testing.T) {
	c, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"qwen3-32b", "Qwen3-32B", "Qwen/Qwen3-32B"} {
		if e, err := c.Find(name); err != nil || e.Name != "qwen3-32b" || e.Hub != "Qwen/Qwen3-32B" {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
	if _, err := c.Find("gpt"); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "qwen3-8b") {
		t.Errorf("error %v", err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"unknown field": "models:\n  a:\n    hub: x/y\n    real_vocab: 1\n    size: 2\n    config: {a: 1}\n",
		"no hub":        "models:\n  a:\n    real_vocab: 1\n    config: {a: 1}\n",
		"bad hub":       "models:\n  a:\n    hub: x/y/z\n    real_vocab: 1\n    config: {a: 1}\n",
		"upper case":    "models:\n  A:\n    hub: x/y\n    real_vocab: 1\n    config: {a: 1}\n",
		"no config":     "models:\n  a:\n    hub: x/y\n    real_vocab: 1\n",
		"no vocabulary": "models:\n  a:\n    hub: x/y\n    config: {a: 1}\n",
		"not yaml":      "\t{",
		"too long":      strings.Repeat("#", maxFile+1),
	} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(file)
	f.Add([]byte("models: {a: {hub: x/y, real_vocab: 1, config: {b: [1, {c: null}]}}}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		for _, n := range c.Names() {
			if _, err := c.Find(n); err != nil {
				t.Error(err)
			}
		}
	})
}
