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

// TestSpansDecideTokens has texts become tokens where they may, and nowhere else.
func TestSpansDecideTokens(t *testing.T) {
	type part struct {
		text  string
		allow Allow
	}
	for _, c := range []struct {
		kind  string
		parts []part
		want  []string // added tokens found
	}{
		{"llama3", []part{{"<|eot|>", AllowAll}, {"<|eot|>", AllowNone}, {"<|eot|>", AllowPlain}}, []string{"<|eot|>"}},
		{"llama3", []part{{"<|eo", AllowAll}, {"t|>", AllowNone}}, nil},
		{"llama3", []part{{"<|eo", AllowNone}, {"t|>", AllowNone}, {"<|eot|", AllowAll}, {">", AllowPlain}}, nil},
		{"llama3", []part{{"<|eo", AllowAll}, {"t|>", AllowAll}}, []string{"<|eot|>"}},
		{"llama3", []part{{"", AllowNone}, {"<|eot|>", AllowAll}, {"", AllowNone}}, []string{"<|eot|>"}},
		{"deepseek", []part{{"<｜User｜>", AllowAll}, {"a <｜User｜><think>", AllowNone}, {"<think>", AllowPlain}, {"<｜begin▁of▁sentence｜>", AllowPlain}}, []string{"<｜User｜>", "<think>"}},
		{"llama2", []part{{"<tool>", AllowAll}, {" <tool>", AllowNone}, {" <tool>", AllowAll}, {"<s>", AllowPlain}}, []string{"<tool>", "<tool>"}},
		{"edges", []part{{"<both> ", AllowAll}, {"<both>", AllowNone}, {"ế!", AllowPlain}, {"<left>", AllowNone}}, []string{"<both>", "e\u0302\u0301!"}},
	} {
		tok := loadDir(t, "testdata/small/"+c.kind)
		text, parts := "", []Span{}
		for _, p := range c.parts {
			text += p.text
			parts = append(parts, Span{len(text), p.allow})
		}
		var got, want []int32
		for _, id := range tok.EncodeSpans(nil, text, parts) {
			if slices.ContainsFunc(tok.added, func(a AddedToken) bool { return a.ID == id }) {
				got = append(got, id)
			}
		}
		for _, s := range c.want {
			id, ok := tok.AddedID(s)
			if !ok {
				t.Fatalf("no token %q", s)
			}
			want = append(want, id)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s %q: found %v, want %v", c.kind, c.parts, got, want)
		}
		if all := tok.EncodeSpans(nil, text, []Span{{len(text), AllowAll}}); !slices.Equal(all, tok.Encode(nil, text, ParseAll())) && c.kind != "edges" {
			t.Errorf("%s %q: all allowed gives %v", c.kind, text, all)
		}
	}
}
