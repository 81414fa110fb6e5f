package modeltest

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/model"
)

// Renumber copies a checkpoint of one file of weights into a directory of the test and
// gives its added tokens other ids: from becomes to. The rows of the embedding and of the
// head move along, so that the copy writes the same text with other ids. end is the id
// that then ends an answer.
func Renumber(tb testing.TB, files fs.FS, name string, moves map[int]int, end int) (dir string) {
	tb.Helper()
	dir = filepath.Join(tb.TempDir(), name)
	if err := os.CopyFS(dir, files); err != nil {
		tb.Fatal(err)
	}
	// What is embedded is read-only.
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		tb.Fatal(err)
	}
	EditJSON(tb, filepath.Join(dir, "tokenizer.json"), func(words map[string]any) {
		for _, a := range words["added_tokens"].([]any) {
			entry := a.(map[string]any)
			if to, ok := moves[int(entry["id"].(float64))]; ok {
				entry["id"] = to
			}
		}
	})
	for _, file := range []string{"config.json", "generation_config.json"} {
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			EditJSON(tb, filepath.Join(dir, file), func(c map[string]any) { c["eos_token_id"] = end })
		}
	}
	weights, err := model.EncodeShard(moved(tb, dir, moves), nil)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "model.safetensors"), weights, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return dir
}

// moved are a checkpoint's tensors with the rows of ids moved.
func moved(tb testing.TB, dir string, moves map[int]int) (tensors []model.Tensor) {
	tb.Helper()
	k, err := model.OpenDir(dir)
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = k.Close() }() // it was only read
	for _, p := range k.Config.Params() {
		x, err := k.Tensor(p.Name)
		if err != nil {
			tb.Fatal(err)
		}
		x.Bytes = slices.Clone(x.Bytes)
		if p.Shape[0] == k.Config.VocabSize {
			row := len(x.Bytes) / p.Shape[0]
			old := slices.Clone(x.Bytes)
			for from, to := range moves {
				copy(x.Bytes[to*row:(to+1)*row], old[from*row:])
			}
		}
		tensors = append(tensors, x)
	}
	return tensors
}

// EditJSON changes a file that is one object.
func EditJSON(tb testing.TB, path string, change func(map[string]any)) {
	tb.Helper()
	var value map[string]any
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &value)
	}
	if err != nil {
		tb.Fatal(err)
	}
	change(value)
	if text, err = json.MarshalIndent(value, "", " "); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		tb.Fatal(err)
	}
}
