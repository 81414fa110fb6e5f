package model

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// weightsOf makes a tensor of zeros for every parameter.
func weightsOf(t *testing.T, config []byte) []Tensor {
	t.Helper()
	c, err := ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var out []Tensor
	for _, p := range c.Params() {
		n := 2
		for _, d := range p.Shape {
			n *= d
		}
		out = append(out, Tensor{p.Name, BF16, p.Shape, make([]byte, n)})
	}
	return out
}

func shard(t *testing.T, tensors []Tensor) *fstest.MapFile {
	t.Helper()
	b, err := EncodeShard(tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &fstest.MapFile{Data: b}
}

// sharded makes a model in two shards.
func sharded(t *testing.T) fstest.MapFS {
	config := configJSON(nil)
	all := weightsOf(t, config)
	half := len(all) / 2
	var index strings.Builder
	for i, x := range all {
		fmt.Fprintf(&index, "%q:\"part-%d.safetensors\",", x.Name, i/half)
	}
	last := all[2*half:] // an odd one goes to the second shard
	text := strings.ReplaceAll(strings.TrimSuffix(index.String(), ","), "part-2", "part-1")
	return fstest.MapFS{
		"config.json":                  {Data: config},
		"model.safetensors.index.json": {Data: []byte(`{"metadata":{"total_size":1},"weight_map":{` + text + `}}`)},
		"part-0.safetensors":           shard(t, all[:half]),
		"part-1.safetensors":           shard(t, append(all[half:2*half:2*half], last...)),
	}
}

func TestShardedModel(t *testing.T) {
	fsys := sharded(t)
	dir := t.TempDir()
	for name, f := range fsys {
		if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	opens := map[string]func() (*Checkpoint, error){
		"file system": func() (*Checkpoint, error) { return OpenFS(fsys, "m") },
		"directory":   func() (*Checkpoint, error) { return OpenDir(dir) },
	}
	for name, open := range opens {
		t.Run(name, func(t *testing.T) {
			k, err := open()
			if err != nil {
				t.Fatal(err)
			}
			if err := k.Check(); err != nil {
				t.Error(err)
			}
			if got, want := len(k.Names()), len(k.Config.Params()); got != want {
				t.Errorf("%d tensors, want %d", got, want)
			}
			if k.Bytes() == 0 {
				t.Error("no bytes")
			}
			if _, err := k.Tensor("nothing"); !errors.Is(err, ErrNoTensor) {
				t.Errorf("missing tensor: %v", err)
			}
			for range 2 {
				if err := k.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestOpenRefuses(t *testing.T) {
	index := func(data string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { m[indexFile] = &fstest.MapFile{Data: []byte(data)} }
	}
	only := func(file string) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			clear(m)
			m[configFile], m[file] = &fstest.MapFile{Data: configJSON(nil)}, &fstest.MapFile{Data: []byte{1}}
		}
	}
	tests := []struct {
		name   string
		change func(fstest.MapFS)
		want   string
	}{
		{"no config", func(m fstest.MapFS) { delete(m, configFile) }, configFile},
		{"config too large", func(m fstest.MapFS) { m[configFile].Data = make([]byte, maxConfig+1) }, "1048576"},
		{"config is a directory", func(m fstest.MapFS) { m[configFile] = &fstest.MapFile{Mode: fs.ModeDir} }, configFile},
		{"bad generation config", func(m fstest.MapFS) { m[generationFile] = &fstest.MapFile{Data: []byte("{")} }, generationFile},
		{"no weights", func(m fstest.MapFS) { clear(m); m[configFile] = &fstest.MapFile{Data: configJSON(nil)} }, singleFile},
		{"pickled weights", only("pytorch_model.bin"), "safe_serialization"},
		{"pickled weights, pt", only("consolidated.00.pth"), "safe_serialization"},
		{"an adapter", only("adapter_model.safetensors"), "merge_and_unload"},
		{"gguf", only("model-q4.gguf"), "original checkpoint"},
		{"shard outside", index(`{"weight_map":{"a":"../model.safetensors"}}`), `"../model.safetensors"`},
		{"shard absolute", index(`{"weight_map":{"a":"/tmp/model.safetensors"}}`), `"/tmp/model.safetensors"`},
		{"shard with a backslash", index(`{"weight_map":{"a":"..\\model.safetensors"}}`), `model.safetensors"`},
		{"shard in a folder", index(`{"weight_map":{"a":"x/model.safetensors"}}`), `"x/model.safetensors"`},
		{"shard of another kind", index(`{"weight_map":{"a":"config.json"}}`), `"config.json"`},
		{"shard missing", index(`{"weight_map":{"a":"part-9.safetensors"}}`), "part-9.safetensors"},
		{"tensor not in its shard", index(`{"weight_map":{"a":"part-0.safetensors"}}`), "tensor a"},
		{"no weight map", index(`{}`), "weight_map"},
		{"empty weight map", index(`{"weight_map":{}}`), "found 0"},
		{"broken index", index(`{`), indexFile},
		{"broken shard", func(m fstest.MapFS) { m["part-1.safetensors"].Data = m["part-1.safetensors"].Data[:99] }, "part-1.safetensors"},
		{"single file is preferred and broken", func(m fstest.MapFS) { m[singleFile] = &fstest.MapFile{Data: []byte{1}} }, singleFile},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			fsys := sharded(t)
			tc.change(fsys)
			_, err := OpenFS(fsys, "some-model")
			if err == nil {
				t.Fatal("no error")
			}
			if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "some-model") {
				t.Errorf("error %q does not mention %q and the model", err, tc.want)
			}
		})
	}
}

func TestOpenDirRefuses(t *testing.T) {
	if _, err := OpenDir(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
	file := filepath.Join(t.TempDir(), "model.safetensors")
	if err := os.WriteFile(file, []byte{1}, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenDir(file); err == nil || !strings.Contains(err.Error(), "directory") {
		t.Errorf("a file: %v", err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{configFile: configJSON(nil), singleFile: {}} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenDir(dir); !errors.Is(err, ErrCorrupt) {
		t.Errorf("empty weights: %v", err)
	}
}

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		change func([]Tensor) []Tensor
		want   string // empty: accepted
	}{
		{"complete", func(w []Tensor) []Tensor { return w }, ""},
		{"one missing", func(w []Tensor) []Tensor { return w[1:] }, "model.embed_tokens.weight"},
		{"shape", func(w []Tensor) []Tensor { w[1].Shape = []int{2, 4}; return w }, "expected shape [8], found [2 4]"},
		{"type", func(w []Tensor) []Tensor { w[1].DType = "I16"; return w }, "found I16"},
		{"a bias", func(w []Tensor) []Tensor {
			return append(w, Tensor{"model.layers.0.self_attn.q_proj.bias", BF16, []int{1}, make([]byte, 2)})
		}, "q_proj.bias"},
		{"copy of the tied head", func(w []Tensor) []Tensor {
			return append(w, Tensor{"lm_head.weight", BF16, []int{1}, make([]byte, 2)})
		}, ""},
		{"all missing", func([]Tensor) []Tensor { return nil }, "and 8 more"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			config := configJSON(nil)
			k, err := OpenFS(fstest.MapFS{configFile: {Data: config}, singleFile: shard(t, tc.change(weightsOf(t, config)))}, "m")
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			switch err := k.Check(); {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v does not mention %q", err, tc.want)
			}
		})
	}
}
