package tokenizer

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/sourcegraph/conc/pool"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"github.com/tokenrouter/tokenrouter/internal/jsonscan"
)

// soup draws texts that are rich in what the splitter and the merges treat specially.
func soup() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.SampledFrom([]string{" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "'", "'s", "'LL", "'ſ", "1", "٣", "½", "a", "The", "answer", "é", "e\u0301", "\u0323\u0301",
			"中", "가", "👍🏽", "!", "-", "<", "|>", "<|im_end|>", "<think>", "</think", "\x00", "\xff", "\xe2\x82", "\xed\xa0\x80", "\xf0\x9f\x91"}),
		rapid.StringN(0, 4, -1),
	)
	return rapid.Custom(func(t *rapid.T) string {
		return strings.Join(rapid.SliceOfN(part, 0, 24).Draw(t, "parts"), "")
	})
}

// dumbSplit is the split pattern written with Go's regexp; the look-ahead is
// done by hand.
func dumbSplit(s string) []string {
	const blank = `[\t-\r \x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]`
	notBlank := strings.Replace(blank, "[", `[^\pL\pN`, 1)
	first := regexp.MustCompile(`^(?:(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\pL\pN]?\pL+|\pN| ?` + notBlank + `+[\r\n]*|` + blank + `*[\r\n]+)`)
	blanks := regexp.MustCompile(`^` + blank + `+`)
	var words []string
	for s != "" {
		n := len(first.FindString(s))
		if n == 0 {
			n = len(blanks.FindString(s))
			if _, w := utf8.DecodeLastRuneInString(s[:n]); n < len(s) && n > w {
				n -= w
			}
		}
		words = append(words, s[:n])
		s = s[n:]
	}
	return words
}

func TestSplitAgainstRegexp(t *testing.T) {
	qwen := splitterFor(patternQwen)
	rapid.Check(t, func(t *rapid.T) {
		s := RepairUTF8(soup().Draw(t, "text"))
		want := dumbSplit(s)
		var got []string
		for rest := s; rest != ""; {
			n, _ := qwen.next(rest, 0)
			got = append(got, rest[:n])
			rest = rest[n:]
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", s, got, want)
		}
	})
}

// dumbMerge joins the pair of the lowest rank until none is left.
func dumbMerge(tok *Tokenizer, word string) []int32 {
	var ids []int32
	for i := range len(word) {
		ids = append(ids, tok.bytes[word[i]])
	}
	for {
		best, at := merge{rank: noMerge}, -1
		for i := 0; i+1 < len(ids); i++ {
			if m := tok.merges.get(ids[i], ids[i+1]); m.rank < best.rank {
				best, at = m, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.id)
	}
}

func TestMergeLoopsAgree(t *testing.T) {
	tok := loadDir(t, tinyDir)
	parts := rapid.SampledFrom([]string{"a", "e", "t", "h", "the", "together", "question", " an", "swer", "answer", "\n", "\n\n", "é", "\xff", "ing", "is", "oxes"})
	rapid.Check(t, func(t *rapid.T) {
		word := strings.Join(rapid.SliceOfN(parts, 1, 12).Draw(t, "parts"), "")
		want := dumbMerge(tok, word)
		if len(word) <= shortWord {
			if got := tok.mergeShort(nil, word); !slices.Equal(got, want) {
				t.Fatalf("short %q: got %v, want %v", word, got, want)
			}
		}
		if got := tok.mergeLong(nil, word); !slices.Equal(got, want) {
			t.Fatalf("long %q: got %v, want %v", word, got, want)
		}
		if got := tok.encodeWord([]int32{7}, word); !slices.Equal(got[1:], want) {
			t.Fatalf("word %q: got %v, want %v", word, got, want)
		}
	})
}

func TestExactNormalForm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := RepairUTF8(soup().Draw(t, "text"))
		if hasMarkRun(s) {
			t.Skip("x/text breaks long runs of marks")
		}
		if got, want := exactNFC(s), norm.NFC.String(s); got != want {
			t.Fatalf("%+q: got %+q, want %+q", s, got, want)
		}
	})
	long := "a" + strings.Repeat("\u0323\u0301", 40)
	want := "\u1ea1" + strings.Repeat("\u0323", 39) + strings.Repeat("\u0301", 40)
	if got := newMarkRules().nfc(long); got != want {
		t.Errorf("long run of marks: got %+q", got)
	}
}

func TestRepairUTF8(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""}, {"ok é", "ok é"}, {"\xff", "\ufffd"}, {"\xff\xfe", "\ufffd\ufffd"},
		{"\xe2\x82", "\ufffd"}, {"\xe2\x82a", "\ufffda"}, {"\xe2\x82\xe2\x82\xac", "\ufffd€"},
		{"\xf0\x9f\x91", "\ufffd"}, {"\xf0\x9f\x91\xf0", "\ufffd\ufffd"}, {"\xf0\x80\x80", "\ufffd\ufffd\ufffd"},
		{"\xed\xa0\x80", "\ufffd\ufffd\ufffd"}, {"\xc0\xaf", "\ufffd\ufffd"}, {"\xe0\x9f\x80", "\ufffd\ufffd\ufffd"},
		{"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"}, {"a\x80b", "a\ufffdb"}, {"\xc3", "\ufffd"},
		{"\xf4\x8f\xbf", "\ufffd"}, {"\ufffd", "\ufffd"},
	} {
		if got := RepairUTF8(c.in); got != c.want {
			t.Errorf("%q: got %q, want %q", c.in, got, c.want)
		}
	}
}

func TestEncodeOptions(t *testing.T) {
	tok := loadDir(t, tinyDir)
	const text = "<|im_end|><think>x"
	end, _ := tok.AddedID("<|im_end|>")
	think, _ := tok.AddedID("<think>")
	for _, c := range []struct {
		name       string
		opt        EncodeOptions
		end, think bool
	}{
		{"plain", EncodeOptions{}, false, false},
		{"special", EncodeOptions{Special: true}, true, false},
		{"added", EncodeOptions{Added: true}, false, true},
		{"all", ParseAll(), true, true},
	} {
		ids := tok.Encode(nil, text, c.opt)
		if slices.Contains(ids, end) != c.end || slices.Contains(ids, think) != c.think {
			t.Errorf("%s: got %v", c.name, ids)
		}
		if got := tok.Decode(ids, false); got != text {
			t.Errorf("%s: decodes to %q", c.name, got)
		}
	}
}

func TestTokens(t *testing.T) {
	tok := loadDir(t, tinyDir)
	if tok.Size() != 749 {
		t.Errorf("size %d", tok.Size())
	}
	end, ok := tok.AddedID("<|im_end|>")
	if !ok || end != 746 || !tok.IsSpecial(end) || string(tok.TokenBytes(end)) != "<|im_end|>" {
		t.Errorf("<|im_end|> is %d", end)
	}
	think, _ := tok.AddedID("<think>")
	if tok.IsSpecial(think) || think != 747 {
		t.Errorf("<think> is %d, special %t", think, tok.IsSpecial(think))
	}
	for _, id := range []int32{-1, 749, 1 << 30, -1 << 31} {
		if tok.TokenBytes(id) != nil || tok.IsSpecial(id) || tok.NewDecoder(true).Next(id) != "" {
			t.Errorf("id %d stands for something", id)
		}
	}
	if len(tok.AddedTokens()) != 5 || tok.AddedTokens()[0].ID != 744 {
		t.Errorf("added tokens %v", tok.AddedTokens())
	}
}

func TestLeftmostLongest(t *testing.T) {
	var tokens []pattern
	for i, s := range []string{"ab", "abcd", "b", "cde", "xyz", "xy"} {
		tokens = append(tokens, pattern{id: int32(i), text: s})
	}
	m := newMatcher(tokens)
	for _, c := range []struct {
		text string
		n    int
		id   int32
	}{{"abcde", 4, 1}, {"abc", 2, 0}, {"bcde", 1, 2}, {"cdx", 0, 0}, {"", 0, 0}, {"xyz", 3, 4}, {"xyab", 2, 5}, {"zz", 0, 0}} {
		p := m.longest(c.text, 0, nil)
		if (p == nil) != (c.n == 0) || p != nil && (len(p.text) != c.n || p.id != c.id) {
			t.Errorf("%q: got %+v", c.text, p)
		}
	}
	if m.next("..x", 0) != 2 || m.next("..", 0) != 2 || m.next("", 0) != 0 {
		t.Error("next is wrong")
	}
}

// TestFingerprint wants the trio to share one, and any change of ids to change it.
func TestFingerprint(t *testing.T) {
	small, large := loadDir(t, tinyDir), loadDir(t, "../../models/tiny-l")
	if small.Fingerprint() != large.Fingerprint() || len(small.Fingerprint()) != 64 {
		t.Errorf("fingerprints %s and %s", small.Fingerprint(), large.Fingerprint())
	}
	changed := strings.Replace(tinyText(t), `"content": "<think>"`, `"content": "<thimk>"`, 1)
	tok, err := Parse([]byte(changed))
	if err != nil {
		t.Fatal(err)
	}
	if tok.Fingerprint() == small.Fingerprint() {
		t.Error("another added token, the same fingerprint")
	}
}

// tinyText is the trio's tokenizer.json, indented by json.MarshalIndent so that tests can edit it.
func tinyText(t testing.TB) string {
	t.Helper()
	text, err := os.ReadFile(tinyDir + "/" + FileName)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if text, err = json.MarshalIndent(file, "", " "); err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(text))
}

func TestLoadRefuses(t *testing.T) {
	whole := tinyText(t)
	for _, c := range []struct{ name, old, new, want string }{
		{"unknown field", `"version"`, `"colour": 1, "version"`, "colour"},
		{"model type", `"type": "BPE"`, `"type": "Unigram"`, "model.type"},
		{"dropout", `"dropout": null`, `"dropout": 0.1`, "model.dropout"},
		{"prefix", `"continuing_subword_prefix": null`, `"continuing_subword_prefix": "##"`, "continuing_subword_prefix"},
		{"suffix", `"end_of_word_suffix": null`, `"end_of_word_suffix": "</w>"`, "end_of_word_suffix"},
		{"byte fallback", `"byte_fallback": false`, `"byte_fallback": true`, `pre_tokenizer "Sequence"`},
		{"normalizer", `"type": "NFC"`, `"type": "NFKC"`, "NFKC"},
		{"pattern", `'s|`, `'x|`, "split pattern"},
		{"behavior", `"Isolated"`, `"Removed"`, "behavior"},
		{"invert", `"invert": false`, `"invert": true`, "invert"},
		{"use_regex", `"use_regex": false`, `"use_regex": true`, "use_regex"},
		{"post processor", `"TemplateProcessing"`, `"BertProcessing"`, "BertProcessing"},
		{"decoder", `"decoder": {`, `"decoder": null, "padding": {`, "decoder"},
		{"missing byte", `"!": 0`, `"!!!!": 0`, "0x21"},
		{"id twice", `"!": 0`, `"!": 1`, "two tokens"},
		{"negative id", `"!": 0`, `"!": -1`, "non-negative integer"},
		{"huge id", `"!": 0`, `"!": 2000000000`, "out of range"},
		{"added twice", `"content": "<think>"`, `"content": "</think>"`, "twice"},
		{"taken id", `"id": 747`, `"id": 5`, "taken"},
		{"empty added", `"content": "<think>"`, `"content": ""`, "bad text"},
		{"tail", "", "{}", "parse"},
		{"not JSON", "{", "[", "parse"},
	} {
		text := strings.Replace(whole, c.old, c.new, 1)
		if c.old == "" {
			text = whole + c.new
		} else if text == whole {
			t.Fatalf("%s: the edit changes nothing", c.name)
		}
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.name, err, c.want)
		}
	}
	if _, err := Load(fstest.MapFS{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("empty directory: %v", err)
	}
}

func TestMergeForms(t *testing.T) {
	for _, c := range []struct {
		text        string
		left, right string
		bad         bool
	}{
		{`["a","b"]`, "a", "b", false}, {`"a b"`, "a", "b", false}, {`["a b","c"]`, "a b", "c", false},
		{`"a"`, "", "", true}, {`"a b c"`, "", "", true}, {`["a"]`, "", "", true}, {`7`, "", "", true}, {`[1,2]`, "", "", true}, {`["a","b","c"]`, "", "", true}, {`[]`, "", "", true},
	} {
		scan, err := jsonscan.New([]byte(c.text))
		if err != nil {
			t.Fatal(err)
		}
		r, err := readMerge(scan)
		if (err != nil) != c.bad || err == nil && (r.left != c.left || r.right != c.right) {
			t.Errorf("%s: got %+v, %v", c.text, r, err)
		}
	}
}

func TestIgnoreMerges(t *testing.T) {
	text := tinyText(t)
	// A token that no merge makes is found as a whole word only with the flag.
	text = strings.Replace(text, `"!": 0`, `"!": 0, "zqzq": 749`, 1)
	for _, flag := range []string{"false", "true"} {
		tok, err := Parse([]byte(strings.Replace(text, `"ignore_merges": false`, `"ignore_merges": `+flag, 1)))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			ids := tok.Encode(nil, "zqzq", EncodeOptions{})
			if whole := len(ids) == 1 && ids[0] == 749; whole != (flag == "true") {
				t.Errorf("ignore_merges %s: got %v", flag, ids)
			}
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := loadDir(t, tinyDir)
	const text = "The 28 bags hold 70 * 28 = 1960 eggs together.\n\nThe answer is 2904 eggs.<|im_end|>"
	want := loadDir(t, tinyDir).Encode(nil, text, ParseAll())
	p := pool.New().WithErrors()
	for range 8 {
		p.Go(func() error {
			if got := tok.Encode(nil, text, ParseAll()); !slices.Equal(got, want) {
				return errors.New("ids differ under concurrency")
			}
			return nil
		})
	}
	if err := p.Wait(); err != nil {
		t.Error(err)
	}
}

func TestDecoderHoldsBack(t *testing.T) {
	tok := loadDir(t, tinyDir)
	d := tok.NewDecoder(true)
	end, _ := tok.AddedID("<|im_end|>")
	thumb := "👍"
	var got []string
	for i := range len(thumb) {
		got = append(got, d.Next(tok.bytes[thumb[i]]))
		// A skipped token adds no bytes, so it does not cut the character.
		got = append(got, d.Next(end))
	}
	if want := []string{"", "", "", "", "", "", thumb, ""}; !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	d.Next(tok.bytes[0xE2])
	copied := *d
	if d.Held() != 1 || d.Next(tok.bytes['a']) != "\ufffda" || d.Flush() != "" {
		t.Error("a broken character is not replaced at once")
	}
	if copied.Flush() != "\ufffd" || copied.Flush() != "" {
		t.Error("flush of a copy")
	}
}
