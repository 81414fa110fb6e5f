package tokenizer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const tinyDir = "../../models/tiny-s"

// realDirEnv names directories with large tokenizer.json files, parted as in PATH,
// each with what testdata/differential.py (or make.py) writes to golden/ below it.
const realDirEnv = "TRCTL_TEST_TOKENIZER"

type encodeCase struct {
	Text    string  `json:"s"`
	Repeat  int     `json:"n"`
	IDs     []int32 `json:"ids"`
	Digest  string  `json:"sha"`
	Decoded *string `json:"text"`
	Prompt  int     `json:"prompt"` // ids that the reference puts in front
}

type decodeCase struct {
	IDs  []int32 `json:"ids"`
	Skip string  `json:"skip"`
	All  string  `json:"all"`
}

func readJSON[T any](t testing.TB, path string) []T {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows []T
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

func loadDir(t testing.TB, dir string) *Tokenizer {
	t.Helper()
	tok, err := Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestReferenceIDs(t *testing.T) {
	checkReference(t, loadDir(t, tinyDir), "testdata")
}

func TestReferenceIDsOfLargeVocabulary(t *testing.T) {
	dirs := os.Getenv(realDirEnv)
	if dirs == "" {
		t.Skipf("%s names no directory with a large tokenizer.json", realDirEnv)
	}
	for _, dir := range filepath.SplitList(dirs) {
		t.Run(filepath.Base(dir), func(t *testing.T) { checkReference(t, loadDir(t, dir), filepath.Join(dir, "golden")) })
	}
}

func checkReference(t *testing.T, tok *Tokenizer, dir string) {
	wrong, n := 0, 0
	fault := func(format string, args ...any) {
		if wrong++; wrong <= 20 {
			t.Errorf(format, args...)
		}
	}
	for _, c := range readJSON[encodeCase](t, filepath.Join(dir, "encode.json")) {
		text := strings.Repeat(c.Text, max(c.Repeat, 1))
		ids := tok.Encode(nil, text, ParseAll())
		n++
		if c.Digest != "" {
			if got := digestIDs(ids); got != c.Digest {
				fault("%.40q × %d: digest of %d ids is %s", c.Text, c.Repeat, len(ids), got)
			}
			continue
		}
		if !slices.Equal(ids, c.IDs) {
			fault("%q:\n got %v\nwant %v", text, ids, c.IDs)
			continue
		}
		want := text
		if c.Decoded != nil {
			want = *c.Decoded
		}
		if got := tok.Decode(ids, true); got != want {
			fault("decode of %q: got %q, want %q", text, got, want)
		}
		if got := stream(tok, ids, true); got != want {
			fault("stream of %q: got %q, want %q", text, got, want)
		}
	}
	for _, c := range readJSON[decodeCase](t, filepath.Join(dir, "decode.json")) {
		if !tok.byteLevel && strings.Contains(c.All, replacement) {
			continue // the reference gives up whole runs of bytes, here each bad part is one U+FFFD
		}
		if got := stream(tok, c.IDs, true); got != c.Skip {
			fault("stream of %v: got %q, want %q", c.IDs, got, c.Skip)
		}
		if got := stream(tok, c.IDs, false); got != c.All {
			fault("stream of %v with special tokens: got %q, want %q", c.IDs, got, c.All)
		}
		n++
	}
	t.Logf("%d cases, %d wrong", n, wrong)
}

func digestIDs(ids []int32) string {
	h := sha256.New()
	for i, id := range ids {
		if i > 0 {
			h.Write([]byte{','})
		}
		fmt.Fprint(h, id)
	}
	return hex.EncodeToString(h.Sum(nil))
}

func stream(tok *Tokenizer, ids []int32, skip bool) string {
	var b strings.Builder
	d := tok.NewDecoder(skip)
	for _, id := range ids {
		b.WriteString(d.Next(id))
	}
	b.WriteString(d.Flush())
	return b.String()
}

func TestPromptsOfTheTrio(t *testing.T) {
	type row struct {
		Question  string  `json:"question"`
		PromptIDs []int32 `json:"prompt_ids"`
		OutputIDs []int32 `json:"output_ids"`
		Text      string  `json:"text"`
	}
	for _, name := range []string{"tiny-s", "tiny-m", "tiny-l"} {
		tok := loadDir(t, "../../models/"+name)
		for _, r := range readJSON[row](t, "../../models/testdata/golden/"+name+".greedy.json") {
			prompt := "<|im_start|>user\n" + r.Question + "<|im_end|>\n<|im_start|>assistant\n"
			if got := tok.Encode(nil, prompt, ParseAll()); !slices.Equal(got, r.PromptIDs) {
				t.Errorf("%s %q: got %v, want %v", name, r.Question, got, r.PromptIDs)
			}
			if got := stream(tok, r.OutputIDs, false); got != r.Text {
				t.Errorf("%s %q: got %q, want %q", name, r.Question, got, r.Text)
			}
		}
	}
}

// TestReferenceIDsOfSmallKinds covers one small tokenizer of each kind, which
// testdata/small.py has trained.
func TestReferenceIDsOfSmallKinds(t *testing.T) {
	for _, kind := range []string{"llama3", "deepseek", "edges", "llama2", "metaspace"} {
		t.Run(kind, func(t *testing.T) {
			dir := "testdata/small/" + kind
			checkReference(t, loadDir(t, dir), dir+"/golden")
		})
	}
}
