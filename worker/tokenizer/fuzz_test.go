package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

func FuzzEncode(f *testing.F) {
	for _, s := range []string{"", "The answer is 4.", "<|im_end|>", "\xff\xe2\x82", "a\u0301\u0323", strings.Repeat("together", 20), " \n x", "'ſ"} {
		f.Add(s)
	}
	tok := loadDir(f, tinyDir)
	f.Fuzz(func(t *testing.T, text string) {
		for _, plain := range []bool{true, false} {
			opt := EncodeOptions{Special: !plain, Added: !plain}
			ids := tok.Encode(nil, text, opt)
			got := tok.Decode(ids, false)
			if utf8.ValidString(text) && norm.NFC.IsNormalString(text) && got != text {
				t.Errorf("round trip of %q gives %q", text, got)
			}
			if s := stream(tok, ids, false); s != got {
				t.Errorf("stream %q, whole %q", s, got)
			}
			if plain && slices.ContainsFunc(ids, func(id int32) bool { return id >= 744 }) {
				t.Errorf("plain text %q gives an added token: %v", text, ids)
			}
		}
	})
}

func FuzzDecoder(f *testing.F) {
	f.Add([]byte("\xf0\x9f\x91\x8d"), true)
	f.Add([]byte("a\xe2\x82\xe2"), false)
	f.Add([]byte{0xED, 0xA0, 0x80, 0xC2}, false)
	tok := loadDir(f, tinyDir)
	f.Fuzz(func(t *testing.T, text []byte, skip bool) {
		var ids []int32
		for i, b := range text {
			ids = append(ids, tok.bytes[b])
			if b%16 == 15 {
				ids = append(ids, int32(i%760))
			}
		}
		if got, want := stream(tok, ids, skip), tok.Decode(ids, skip); got != want {
			t.Errorf("%v: stream %q, whole %q", ids, got, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{"a":0},"merges":["a a"]},"decoder":{"type":"ByteLevel"}}`))
	f.Add([]byte(`{"added_tokens":[{"id":4194304,"content":"x"}]}`))
	f.Add([]byte(tinyText(f)))
	f.Fuzz(func(t *testing.T, text []byte) {
		if tok, err := Parse(text); err == nil {
			tok.Encode(nil, "a b", ParseAll())
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	b.Run("trio", func(b *testing.B) { benchEncode(b, loadDir(b, tinyDir)) })
	b.Run("large", func(b *testing.B) {
		dirs := os.Getenv(realDirEnv)
		if dirs == "" {
			b.Skipf("%s names no directory with a large tokenizer.json", realDirEnv)
		}
		for _, dir := range filepath.SplitList(dirs) {
			b.Run(filepath.Base(dir), func(b *testing.B) { benchEncode(b, loadDir(b, dir)) })
		}
	})
}

func benchEncode(b *testing.B, tok *Tokenizer) {
	for _, c := range []struct{ name, text string }{
		{"prompts", questions(b)},
		{"documents", documents(b)},
		{"mixed", strings.Repeat("Isn't it 2904?\n\nfunc main() {\n\tfmt.Println(\"hello\")\n}\n中文 и русский текст.\n", 400)},
		{"one-word", strings.Repeat("questiontogetherantidisestablishment", 7000)},
		{"marks", "a" + strings.Repeat("\u0301\u0323\u0327", 40000)},
	} {
		b.Run(c.name, func(b *testing.B) {
			dst := tok.Encode(nil, c.text, ParseAll())
			b.SetBytes(int64(len(c.text)))
			b.ReportAllocs()
			for b.Loop() {
				dst = tok.Encode(dst[:0], c.text, ParseAll())
			}
		})
	}
}

// documents are those of this repository, prose, tables and code, as one text.
func documents(tb testing.TB) string {
	var b strings.Builder
	for _, pattern := range []string{"../../docs/*.md", "../../*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			tb.Fatal(err, len(files))
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				tb.Fatal(err)
			}
			b.Write(text)
		}
	}
	return b.String()
}

// questions are the prompts of the trio's evaluation set, as one text.
func questions(tb testing.TB) string {
	text, err := os.ReadFile("../../models/eval/problems.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		var row struct{ Question string }
		if err := json.Unmarshal([]byte(line), &row); err != nil {
			tb.Fatal(err)
		}
		b.WriteString("<|im_start|>user\n" + row.Question + "<|im_end|>\n<|im_start|>assistant\n")
	}
	return b.String()
}

func BenchmarkDecoder(b *testing.B) {
	tok := loadDir(b, tinyDir)
	ids := tok.Encode(nil, strings.Repeat("The answer is 2904 eggs 👍.\n", 40), ParseAll())
	b.ReportAllocs()
	for b.Loop() {
		d := tok.NewDecoder(true)
		for _, id := range ids {
			d.Next(id)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(ids)), "ns/token")
}
