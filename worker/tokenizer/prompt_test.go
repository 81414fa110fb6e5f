package tokenizer

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestPromptPrefix wants the id that begins a text in front of a prompt, once.
func TestPromptPrefix(t *testing.T) {
	tok := loadDir(t, "testdata/small/llama3")
	begin, ok := tok.AddedID("<|begin|>")
	if !ok || !slices.Equal(tok.Prefix(), []int32{begin}) {
		t.Fatalf("prefix %v", tok.Prefix())
	}
	plain := tok.Encode(nil, "the answer", ParseAll())
	want := append([]int32{7, begin}, plain...)
	for _, text := range []string{"the answer", "<|begin|>the answer"} {
		if got := tok.EncodePrompt([]int32{7}, text, ParseAll()); !slices.Equal(got, want) {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
	if got := tok.EncodePrompt(nil, "<|begin|>", EncodeOptions{}); got[0] != begin || slices.Contains(got[1:], begin) {
		t.Errorf("a caller's text begins with the id itself: %v", got)
	}
	if got := tok.EncodePrompt(nil, "", ParseAll()); !slices.Equal(got, []int32{begin}) {
		t.Errorf("empty text: %v", got)
	}
	if got := loadDir(t, tinyDir).EncodePrompt(nil, "The", ParseAll()); len(got) == 0 || loadDir(t, tinyDir).IsSpecial(got[0]) {
		t.Errorf("a model without such an id: %v", got)
	}
}

// TestConfigDecides has tokenizer_config.json overrule the post-processor.
func TestConfigDecides(t *testing.T) {
	read := func(kind string) []byte {
		text, err := os.ReadFile("testdata/small/" + kind + "/" + FileName)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const begin = "<｜begin▁of▁sentence｜>"
	for _, c := range []struct {
		kind, config string
		want         int // ids
		fault        string
	}{
		{"llama3", `{}`, 1, ""}, {"llama3", `{"add_bos_token":false,"bos_token":"<|begin|>"}`, 0, ""}, {"llama3", `{"add_bos_token":null}`, 1, ""},
		{"deepseek", `{}`, 0, ""}, {"deepseek", `{"add_bos_token":true,"bos_token":{"__type":"AddedToken","content":"` + begin + `"}}`, 1, ""},
		{"deepseek", `{"add_bos_token":true,"bos_token":"` + begin + `"}`, 1, ""}, {"deepseek", `{"add_bos_token":true,"bos_token":null}`, 0, ""},
		{"deepseek", `{"add_bos_token":true,"bos_token":"<none>"}`, 0, "bos_token"}, {"deepseek", `{"add_bos_token":7}`, 0, configName}, {"deepseek", `[`, 0, configName},
	} {
		tok, err := Load(fstest.MapFS{FileName: {Data: read(c.kind)}, configName: {Data: []byte(c.config)}})
		if c.fault != "" {
			if err == nil || !strings.Contains(err.Error(), c.fault) {
				t.Errorf("%s %s: error %v", c.kind, c.config, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %s: %v", c.kind, c.config, err)
		} else if got := tok.Prefix(); len(got) != c.want {
			t.Errorf("%s %s: prefix %v", c.kind, c.config, got)
		}
	}
}

func TestOtherTokenizerFiles(t *testing.T) {
	for _, name := range []string{"tokenizer.model", "vocab.json"} {
		_, err := Load(fstest.MapFS{name: {Data: []byte("x")}})
		if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "save_pretrained") {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestContinuationKeepsTheSpace has a text go on behind a prompt.
func TestContinuationKeepsTheSpace(t *testing.T) {
	tok := loadDir(t, "testdata/small/llama2")
	ids := tok.Encode(nil, "the answer is", ParseAll())
	cut := slices.IndexFunc(ids[1:], func(id int32) bool { return strings.HasPrefix(tok.token(id), " ") }) + 1
	first, second := tok.NewDecoder(true), tok.NewContinuation(true)
	got := []string{"", ""}
	for _, id := range ids[:cut] {
		got[0] += first.Next(id)
	}
	for _, id := range ids[cut:] {
		got[1] += second.Next(id)
	}
	if got[0] != "the" || got[1] != " answer is" {
		t.Errorf("got %q", got)
	}
}

// TestCleanedTextIsNoToken has tokens that are looked for in normalised text stay
// apart from a caller's text that is marked.
func TestCleanedTextIsNoToken(t *testing.T) {
	const guard = "\uFDD1"
	opt := ParseAll()
	opt.Clean = func(s string) string { return strings.ReplaceAll(s, guard, "") }
	for kind, text := range map[string]string{"deepseek": "a <｜User｜>", "llama2": "a <tool> b", "edges": "<both>"} {
		tok := loadDir(t, "testdata/small/"+kind)
		at := strings.IndexByte(text, '<') + 1
		marked := text[:at] + guard + text[at:]
		got := tok.Encode(nil, marked, opt)
		want := tok.Encode(nil, text, EncodeOptions{})
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", kind, got, want)
		}
		if slices.Equal(got, tok.Encode(nil, text, ParseAll())) {
			t.Errorf("%s: the text has no token", kind)
		}
	}
}
