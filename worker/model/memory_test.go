package model_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/executor/cpuexec"
	"github.com/tokenrouter/tokenrouter/worker/model"
)

// slack is what may be allocated besides twice the files, tables what the tables of as
// many tensors as a checkpoint may have take.
const (
	slack  = 1 << 20
	tables = 8 << 20
)

// allocated is the bytes that f allocates on the heap, garbage included, so no peak
// can be above it.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

const wideConfig = `{"architectures":["LlamaForCausalLM"],"vocab_size":4096,"hidden_size":384,"num_hidden_layers":2,"num_attention_heads":6,
	"intermediate_size":1024,"max_position_embeddings":64,"rms_norm_eps":1e-6,"hidden_act":"silu","eos_token_id":5,"tie_word_embeddings":false}`

// writeShard writes a file of zeros for some weights; the zeros take no room on most
// disks. It returns the file's size.
func writeShard(t *testing.T, file string, dtype model.DType, params []model.Param) int64 {
	t.Helper()
	var header strings.Builder
	at := 0
	for i, p := range params {
		n := dtype.Size()
		for _, d := range p.Shape {
			n *= d
		}
		if i > 0 {
			header.WriteByte(',')
		}
		fmt.Fprintf(&header, `%q:{"dtype":%q,"shape":[%s],"data_offsets":[%d,%d]}`, p.Name, dtype, strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Shape), " ", ","), "[]"), at, at+n)
		at += n
	}
	text := "{" + header.String() + "}"
	size := int64(8 + len(text) + at)
	write(t, file, append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...))
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	return size
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMemoryOfLoading opens, checks and loads weights for the CPU: all that is
// allocated stays within twice the files. Files are mapped, so they count apart.
func TestMemoryOfLoading(t *testing.T) {
	config, err := model.ParseConfig([]byte(wideConfig))
	if err != nil {
		t.Fatal(err)
	}
	params := config.Params()
	for _, dtype := range []model.DType{model.F32, model.F16, model.BF16} {
		for _, shards := range []int{1, 3} {
			t.Run(fmt.Sprintf("%s in %d", dtype, shards), func(t *testing.T) {
				dir := t.TempDir()
				write(t, filepath.Join(dir, "config.json"), []byte(wideConfig))
				size := int64(0)
				if shards == 1 {
					size = writeShard(t, filepath.Join(dir, "model.safetensors"), dtype, params)
				} else {
					var index []string
					for i := range shards {
						name := fmt.Sprintf("model-%d.safetensors", i)
						part := params[len(params)*i/shards : len(params)*(i+1)/shards]
						for _, p := range part {
							index = append(index, fmt.Sprintf("%q:%q", p.Name, name))
						}
						size += writeShard(t, filepath.Join(dir, name), dtype, part)
					}
					write(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{`+strings.Join(index, ",")+`}}`))
				}
				got := allocated(func() {
					k, err := model.OpenDir(dir)
					if err != nil {
						t.Fatal(err)
					}
					defer k.Close()
					if err := k.Check(); err != nil {
						t.Fatal(err)
					}
					e, err := cpuexec.New(cpuexec.Config{Vocab: 4096, MaxSlots: 1, MaxTokens: 8}, k)
					if err != nil {
						t.Fatal(err)
					}
					if err := e.Shutdown(); err != nil {
						t.Error(err)
					}
				})
				t.Logf("%d bytes allocated for %d in files, %.2f times", got, size, float64(got)/float64(size))
				if got > 2*size+slack {
					t.Errorf("%d bytes allocated for %d in files", got, size)
				}
			})
		}
	}
}

// repeated is n copies of a text with its number in place of "#", between commas.
func repeated(n int, text string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strings.ReplaceAll(text, "#", strconv.Itoa(i))
	}
	return strings.Join(parts, ",")
}

// TestMemoryOfDamage opens what was made to cost memory. Each is refused, or taken,
// within twice its size.
func TestMemoryOfDamage(t *testing.T) {
	const mega = 1 << 20
	const zero = `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`
	long := strings.Repeat("a", 2*mega)
	escaped := strings.Repeat(`\u0061`, mega/4)
	header := func(text string) string {
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(text)))) + text
	}
	const weights, index = "model.safetensors", "model.safetensors.index.json"
	tests := []struct{ name, file, text, want string }{
		{"a header that is not there", weights, string(binary.LittleEndian.AppendUint64(nil, 1<<40)) + long, "header length"},
		{"a name of megabytes", weights, header(`{"` + long + `":{}}`), "at most 1024 bytes"},
		{"an escaped name", weights, header(`{"` + escaped + `":{}}`), "at most 1024 bytes"},
		{"a dtype of megabytes", weights, header(`{"a":{"dtype":"` + long + `"}}`), "at most 1024 bytes"},
		{"a number of megabytes", weights, header(`{"a":{"shape":[` + strings.Repeat("1", mega) + `]}}`), "non-negative integer"},
		{"a shape of megabytes", weights, header(`{"a":{"shape":[` + repeated(mega/8, "#") + `]}}`), "more than 8"},
		{"nesting", weights, header(strings.Repeat("[", mega)), "JSON"},
		{"deep nesting that closes", weights, header(strings.Repeat(`{"a":`, 5000) + "1" + strings.Repeat("}", 5000)), "unknown key"},
		{"many tensors", weights, header("{" + repeated(1<<14, zero) + "}"), "more than 8192 tensors"},
		{"as many tensors as may be", weights, header("{" + repeated(1<<13, zero) + "}"), "no such tensor"},
		{"much metadata", weights, header(`{"__metadata__":{` + repeated(1<<16, `"#":"text"`) + "}}"), "more than 4096"},
		{"metadata of megabytes", weights, header(`{"__metadata__":{"a":"` + long + `","b":"` + escaped + `"}}`), "no such tensor"},
		{"metadata many times", weights, header("{" + strings.TrimSuffix(strings.Repeat(`"__metadata__":{},`, mega/16), ",") + "}"), "duplicate name"},
		{"a huge shape", weights, header(`{"a":{"dtype":"F32","shape":[2147483647,2147483647],"data_offsets":[0,0]}}`), "more than the file"},
		{"many entries of an index", index, `{"weight_map":{` + repeated(1<<16, `"#":"a.safetensors"`) + "}}", "8192"},
		{"many files of an index", index, `{"weight_map":{` + repeated(1<<15, `"x#":"#.safetensors"`) + "}}", "1 to 1024 files"},
		{"other things in an index", index, `{"metadata":{` + repeated(1<<16, `"#":[{},"x"]`) + `},"weight_map":{}}`, "found 0"},
		{"a long key of an index", index, `{"` + long + `":1}`, "at most 1024 bytes"},
		{"a config of one key", "config.json", `{"` + long[:mega-8] + `":1}`, "at most 1024 bytes"},
		{"a config of many keys", "config.json", "{" + repeated(70000, `"#":1`) + "}", "at most 4096 keys"},
		{"a config that is too long", "config.json", `{"` + long + `":1}`, "1048576"},
		{"a long list of ends", "config.json", strings.Replace(wideConfig, `"eos_token_id":5`, `"eos_token_id":[`+repeated(100000, "#")+"]", 1), "eos_token_id"},
		{"a million layers", "config.json", strings.Replace(wideConfig, `layers":2`, `layers":1000000`, 1), "num_hidden_layers"},
		{"a long rope scaling", "config.json", strings.Replace(wideConfig, `"eos_token_id":5`, `"rope_scaling":{`+repeated(50000, `"#":0`)+"}", 1), "at most 4096 keys"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "config.json"), []byte(wideConfig))
			write(t, filepath.Join(dir, tc.file), []byte(tc.text))
			for kind, open := range map[string]func() (*model.Checkpoint, error){
				"mapped": func() (*model.Checkpoint, error) { return model.OpenDir(dir) },
				"read":   func() (*model.Checkpoint, error) { return model.OpenFS(os.DirFS(dir), dir) },
			} {
				var err error
				got := allocated(func() {
					var k *model.Checkpoint
					if k, err = open(); err == nil {
						err = k.Check()
						k.Close()
					}
				})
				if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 4096 {
					t.Errorf("%s: error %.300v", kind, err)
				}
				limit := 2*len(tc.text) + slack
				if strings.Contains(tc.name, "tensors") || strings.Contains(tc.name, "index") {
					limit += tables
				}
				if got > int64(limit) {
					t.Errorf("%s: %d bytes allocated for %d in the file", kind, got, len(tc.text))
				}
				t.Logf("%s: %d bytes allocated for %d", kind, got, len(tc.text))
			}
		})
	}
}

// TestMemoryOfManyShards has each of many files hold as many tensors as one may.
func TestMemoryOfManyShards(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config.json"), []byte(wideConfig))
	text := "{" + repeated(1<<13, `"#":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`) + "}"
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	const n = 3
	for i := range n {
		write(t, filepath.Join(dir, fmt.Sprintf("%d.safetensors", i)), file)
	}
	write(t, filepath.Join(dir, "model.safetensors.index.json"), []byte(`{"weight_map":{`+repeated(n, `"x#":"0.safetensors"`)+`,`+repeated(n, `"#":"1.safetensors"`)+"}}"))
	got := allocated(func() {
		if k, err := model.OpenDir(dir); err == nil || !strings.Contains(err.Error(), "8192") {
			t.Errorf("%v, error %v", k, err)
		}
	})
	if got > int64(2*n*len(file)+tables) {
		t.Errorf("%d bytes allocated for %d", got, n*len(file))
	}
}
