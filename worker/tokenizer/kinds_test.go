package tokenizer

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"
)

func kinds() []string { return []string{"llama3", "deepseek", "edges", "llama2", "metaspace"} }

// TestCutsChangeNothing has a vocabulary of characters cut text into words, which
// must give what merging the whole text, or all between two marks, gives.
func TestCutsChangeNothing(t *testing.T) {
	for kind, split := range map[string]splitter{"llama2": noSplitter{}, "metaspace": wordSplitter{"▁"}} {
		cut, whole := loadDir(t, "testdata/small/"+kind), loadDir(t, "testdata/small/"+kind)
		pairs, ok := cut.split.(*pairSplitter)
		if !ok || pairs.joins('a', '中') || !pairs.joins('t', 'h') || pairs.joins('e', '▁') || !pairs.joins('▁', 't') {
			t.Fatalf("%s: words are cut by %T", kind, cut.split)
		}
		whole.split = split
		rapid.Check(t, func(t *rapid.T) {
			s := soup().Draw(t, "text")
			if got, want := cut.Encode(nil, s, EncodeOptions{}), whole.Encode(nil, s, EncodeOptions{}); !slices.Equal(got, want) {
				t.Fatalf("%s: %q: got %v, want %v", kind, s, got, want)
			}
		})
	}
}

// TestCutsOfBytes has long words of a byte-level vocabulary cut, which must give what
// merging them as a whole gives.
func TestCutsOfBytes(t *testing.T) {
	for _, dir := range []string{tinyDir, "testdata/small/llama3", "testdata/small/deepseek", "testdata/small/edges"} {
		tok := loadDir(t, dir)
		cuts := 0
		rapid.Check(t, func(t *rapid.T) {
			word := rapid.StringOfN(rapid.SampledFrom([]rune("theanswrio12éß中文👍 \nqzQ")), 30, 300, -1).Draw(t, "word")
			if len(word) <= shortWord {
				return
			}
			if got, want := tok.encodeWord(nil, word), tok.mergeLong(nil, word); !slices.Equal(got, want) {
				t.Fatalf("%s: %q: got %v, want %v", dir, word, got, want)
			}
			if tok.cut(word, 0) < len(word) {
				cuts++
			}
		})
		if cuts == 0 {
			t.Errorf("%s: no word was cut", dir)
		}
	}
}

// TestPairsOfRules has rules over every kind of pair.
func TestPairsOfRules(t *testing.T) {
	rules := []mergeRule{{"a", "b"}, {"▁", "a"}, {"é", "▁"}, {"b", "▁"}, {"xé", "中y"}, {"▁", "▁"}, {"a", "é"}}
	p := newPairSplitter(rules, "▁", false)
	for _, r := range rules {
		left, right := []rune(r.left), []rune(r.right)
		if !p.joins(left[len(left)-1], right[0]) {
			t.Errorf("%v is cut", r)
		}
	}
	for _, r := range []string{"ba", "aa", "a▁", "é中y", "中é", "ya", "▁é", "▁b", "▁é"} {
		if c := []rune(r); p.joins(c[0], c[1]) != (r == "é中y") {
			t.Errorf("%s", r)
		}
	}
	if n, _ := p.next("ab▁▁ax", 0); n != len("ab▁▁a") {
		t.Error(n)
	}
	if n, _ := newPairSplitter(rules, "▁", true).next("ab▁▁a", 0); n != 2 {
		t.Error(n)
	}
	if mergesBytes(rules) || !mergesBytes([]mergeRule{{"a", "<0x0A>"}}) {
		t.Error("rules over bytes are not told from others")
	}
}

// TestMergesOfCharacters compares both ways to merge with the definition.
func TestMergesOfCharacters(t *testing.T) {
	tok := loadDir(t, "testdata/small/llama2")
	rng := rand.New(rand.NewPCG(1, 2))
	alphabet := []rune("▁▁▁theanswrio12é中👍")
	for range 300 {
		var b strings.Builder
		for range 1 + rng.IntN(16) {
			b.WriteRune(alphabet[rng.IntN(len(alphabet))])
		}
		word := b.String()
		ids := tok.symbols(nil, word)
		for {
			best, at := merge{rank: noMerge}, -1
			for i := 0; i+1 < len(ids); i++ {
				if m := tok.merges.get(ids[i], ids[i+1]); m.rank < best.rank {
					best, at = m, i
				}
			}
			if at < 0 {
				break
			}
			ids = slices.Replace(ids, at, at+2, best.id)
		}
		if short := tok.mergeShort(nil, word); len(word) <= shortWord && !slices.Equal(short, ids) {
			t.Errorf("%q: short %v, want %v", word, short, ids)
		}
		if long := tok.mergeLong(nil, word); !slices.Equal(long, ids) {
			t.Errorf("%q: long %v, want %v", word, long, ids)
		}
	}
}

// TestClassTable looks at characters that Go's own tables may not know yet.
func TestClassTable(t *testing.T) {
	table := newClassTable(false)
	for r, want := range map[rune]class{'a': letter, 'é': letter, '中': letter, '1': number, '½': number, 'Ⅷ': number, ' ': space, '\u00a0': space, '\u0085': space, '\u180e': other, '\u0301': mark,
		'!': punct, '、': punct, '+': sign, '👍': sign, '\x00': other, '\u0378': other, '\U000105C0': letter, '\U0010FFFF': other, 0x10FFFD: other} {
		if got := table.of(r); got != want {
			t.Errorf("%U is of class %d, want %d", r, got, want)
		}
	}
	folded := newClassTable(true)
	if folded.of('\u0301') != other || folded.of('!') != other || folded.of('+') != other || folded.of('a') != letter {
		t.Error("folded classes")
	}
}

func FuzzKinds(f *testing.F) {
	for _, s := range []string{"", "the answer", "<tool> x <left> y", "12345 か゚ な\u3099!a", "e\u0301!<both> ", "\xff\x00", "<｜User｜>1", "   ▁▁ \n"} {
		f.Add(s)
	}
	var all []*Tokenizer
	for _, kind := range kinds() {
		all = append(all, loadDir(f, "testdata/small/"+kind))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for i, tok := range all {
			ids := tok.Encode(nil, text, ParseAll())
			whole := tok.Decode(ids, false)
			if got := stream(tok, ids, false); got != whole {
				t.Errorf("%s: stream %q, whole %q", kinds()[i], got, whole)
			}
			plain := tok.Encode(nil, text, EncodeOptions{})
			if valid := RepairUTF8(text); len(valid) > 0 {
				spans := []Span{{len(valid), AllowNone}}
				if got := tok.EncodeSpans(nil, valid, spans); !slices.Equal(got, plain) {
					t.Errorf("%s: %q with nothing allowed gives %v, want %v", kinds()[i], text, got, plain)
				}
			}
			if tok.normal == nil && tok.meta == nil && utf8.ValidString(text) {
				if got := tok.Decode(plain, false); got != text {
					t.Errorf("%s: round trip of %q gives %q", kinds()[i], text, got)
				}
			}
		}
	})
}

// TestDamagedKinds edits the parts of the files that the kinds have of their own.
func TestDamagedKinds(t *testing.T) {
	for _, c := range []struct{ kind, old, new, want string }{
		{"llama2", `"prepend":"▁"`, `"prepend":"ab"`, "Prepend"}, {"llama2", `"content":"▁"`, `"content":"▁▁"`, "Replace"}, {"llama2", `"type":"Prepend"`, `"type":"Lowercase"`, "Lowercase"},
		{"llama2", `"<0x41>":`, `"<0xZZ>":`, "byte 0x41"}, {"llama2", `{"type":"ByteFallback"}`, `{"type":"Fuse"}`, "ByteFallback"}, {"llama2", `"start":1`, `"start":2`, "Strip"},
		{"llama2", `"byte_fallback":true`, `"byte_fallback":false`, "pre_tokenizer"}, {"llama2", `"ids":[1]`, `"ids":[]`, "special token"}, {"llama2", `"ids":[1]`, `"ids":[99999]`, "not in use"},
		{"metaspace", `"replacement":"▁"`, `"replacement":""`, "replacement"}, {"metaspace", `"prepend_scheme":"first"`, `"prepend_scheme":"last"`, "prepend_scheme"},
		{"deepseek", `\\p{N}{1,3}`, `\\p{N}{1,4}`, "split pattern"}, {"llama3", `"type":"TemplateProcessing"`, `"type":"RobertaProcessing"`, "RobertaProcessing"},
	} {
		text, err := os.ReadFile("testdata/small/" + c.kind + "/tokenizer.json")
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), c.old, c.new, 1)
		if changed == string(text) {
			t.Errorf("%s: no %s", c.kind, c.old)
			continue
		}
		if _, err := Parse([]byte(changed)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: error %v, want %q", c.kind, c.old, err, c.want)
		}
	}
}
