package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/hub"
	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/model"
	"github.com/tokenrouter/tokenrouter/worker/pair"
)

const smallTokenizers = "../../worker/tokenizer/testdata/small/"

// familyCheckpoint writes a random checkpoint of a family with one of the small tokenizers.
func familyCheckpoint(t *testing.T, family string, layers int, kind, template string, more map[string]any) string {
	t.Helper()
	fields := map[string]any{
		"architectures": []string{family}, "vocab_size": 768, "hidden_size": 32 * layers, "num_hidden_layers": layers, "num_attention_heads": 4,
		"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "hidden_act": "silu", "eos_token_id": 2,
	}
	maps.Copy(fields, more)
	config, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	c, err := model.ParseConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(uint64(layers), 1))
	var tensors []model.Tensor
	for _, p := range c.Params() {
		x := model.Tensor{Name: p.Name, DType: model.BF16, Shape: p.Shape}
		n := 1
		for _, d := range p.Shape {
			n *= d
		}
		for range n {
			v := float32(rng.NormFloat64() / 6)
			if len(p.Shape) == 1 && !strings.HasSuffix(p.Name, "bias") {
				v++
			}
			x.Bytes = binary.LittleEndian.AppendUint16(x.Bytes, uint16(math.Float32bits(v)>>16))
		}
		tensors = append(tensors, x)
	}
	weights, err := model.EncodeShard(tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	words, err := os.ReadFile(smallTokenizers + kind + "/tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), fmt.Sprintf("%s-%d", strings.ToLower(family[:5]), layers))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"config.json": config, "model.safetensors": weights, "tokenizer.json": words, "chat_template.jinja": []byte(template),
		"tokenizer_config.json": []byte(`{"bos_token":"<s>"}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestServeFamilies serves pairs of Llama and Qwen2 checkpoints on the CPU, both ways
// in: chat through the template, and text with the id that begins it.
func TestServeFamilies(t *testing.T) {
	const llama = "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('No system here') }}{% endif %}[INST] {{ m.content }} [/INST]{% endfor %}"
	scaled := map[string]any{"rope_scaling": map[string]any{"rope_type": "llama3", "factor": 4, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 128}}
	for _, c := range []struct {
		name, small, large string
	}{
		{"llama", familyCheckpoint(t, "LlamaForCausalLM", 1, "llama2", llama, nil), familyCheckpoint(t, "LlamaForCausalLM", 2, "llama2", llama, scaled)},
		{"qwen2", familyCheckpoint(t, "Qwen2ForCausalLM", 1, "llama3", llama, map[string]any{"tie_word_embeddings": true}), familyCheckpoint(t, "Qwen2ForCausalLM", 2, "llama3", llama, nil)},
		{"across families", familyCheckpoint(t, "Qwen2ForCausalLM", 1, "deepseek", llama, nil), familyCheckpoint(t, "LlamaForCausalLM", 2, "deepseek", llama, scaled)},
	} {
		t.Run(c.name, func(t *testing.T) {
			set, err := parseServe(t, "--models="+c.small+","+c.large, "--policy=random", "--threshold=0.5", "--listen=127.0.0.1:0", "--kv-tokens=4096", "--device=cpu")
			if err != nil {
				t.Fatal(err)
			}
			err = withNode(context.Background(), set.Config, func(ctx context.Context, n *node.Node) error {
				askFamily(t, ctx, "http://"+n.Addr().String())
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

func askFamily(t *testing.T, ctx context.Context, url string) {
	post := func(path string, body map[string]any) (int, map[string]any) {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, out
	}
	user := []map[string]any{{"role": "user", "content": "the answer is twelve </s>"}}
	chat := map[string]any{"model": "default", "messages": user, "max_tokens": 24, "temperature": 0.8, "seed": 3}
	var texts []string
	for range 2 {
		status, out := post("/v1/chat/completions", chat)
		choices, ok := out["choices"].([]any)
		if status != http.StatusOK || !ok {
			t.Fatalf("status %d: %v", status, out)
		}
		texts = append(texts, fmt.Sprint(choices[0].(map[string]any)["message"]))
		if usage := out["usage"].(map[string]any); usage["completion_tokens"].(float64) < 1 {
			t.Errorf("usage %v", usage)
		}
	}
	if texts[0] != texts[1] {
		t.Errorf("the same seed gives %q", texts)
	}
	status, out := post("/v1/chat/completions", map[string]any{"model": "default", "messages": []map[string]any{{"role": "system", "content": "x"}, user[0]}, "max_tokens": 4})
	if text := fmt.Sprint(out["error"]); status != http.StatusBadRequest || !strings.Contains(text, "No system here") {
		t.Errorf("a template that refuses: status %d, %s", status, text)
	}
	status, out = post("/v1/completions", map[string]any{"model": "default", "prompt": "the answer", "max_tokens": 8, "temperature": 0, "ignore_eos": true})
	if status != http.StatusOK || out["usage"].(map[string]any)["completion_tokens"].(float64) != 8 {
		t.Errorf("text: status %d, %v", status, out)
	}
}

// trctlRun runs a command line and returns what it printed.
func trctlRun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(context.Background(), args, process{in: strings.NewReader(""), out: &out, err: &errs})
	return code, out.String(), errs.String()
}

func TestModelInspectAndCheck(t *testing.T) {
	small := familyCheckpoint(t, "LlamaForCausalLM", 1, "llama2", "x", nil)
	large := familyCheckpoint(t, "LlamaForCausalLM", 2, "llama2", "y", nil)
	other := familyCheckpoint(t, "Qwen2ForCausalLM", 2, "llama3", "y", nil)
	code, out, _ := trctlRun(t, "model", "inspect", small, "-o", "json")
	var d pair.Description
	if err := json.Unmarshal([]byte(out), &d); code != exitDone || err != nil || d.Architecture != model.Llama || len(d.Begin) != 1 || d.Begin[0].Text != "<s>" {
		t.Errorf("inspect: %d, %v, %s", code, err, out)
	}
	if code, out, _ = trctlRun(t, "model", "inspect", "tiny-l"); code != exitDone || !strings.Contains(out, `746 "<|im_end|>"`) {
		t.Errorf("inspect: %d, %s", code, out)
	}
	if code, out, errs := trctlRun(t, "model", "check", small, large); code != exitDone || !strings.Contains(out, "note     template") || !strings.Contains(out, "can write one answer") {
		t.Errorf("check: %d, %s, %s", code, out, errs)
	}
	code, out, errs := trctlRun(t, "model", "check", small, other, "-o", "json")
	var r pair.Report
	if err := json.Unmarshal([]byte(out), &r); code != exitFailed || err != nil || r.Compatible || len(r.Differences) == 0 || !strings.Contains(errs, "refused") {
		t.Errorf("check: %d, %v, %s, %s", code, err, out, errs)
	}
	ends := familyCheckpoint(t, "LlamaForCausalLM", 3, "llama2", "x", map[string]any{"eos_token_id": []int{1, 2}})
	for _, c := range []struct{ large, want string }{
		{other, "hint     these are different vocabularies"}, {ends, "hint     if both know all of these ids, give both the same eos_token_id"},
		{familyCheckpoint(t, "Qwen3ForCausalLM", 1, "llama2", "x", map[string]any{"vocab_size": 600}), "REFUSED  fault of "},
	} {
		code, out, _ := trctlRun(t, "model", "check", small, c.large)
		if code != exitFailed || !strings.Contains(out, "\n"+c.want) && !strings.HasPrefix(out, c.want) {
			t.Errorf("check: %d, %s", code, out)
		}
	}
	if code, _, errs := trctlRun(t, "model", "inspect", "tiny-x"); code != exitUsage || strings.Contains(errs, "--models") || !strings.Contains(errs, "did you mean") {
		t.Errorf("inspect: %d, %s", code, errs)
	}
	if code, _, _ = trctlRun(t, "model", "check", small, large, "--map", "nope=5"); code != exitUsage {
		t.Errorf("a map of nothing: %d", code)
	}
	if err := os.Remove(filepath.Join(large, "model.safetensors")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(large, "pytorch_model.bin"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, out, _ = trctlRun(t, "model", "inspect", large); code != exitFailed || !strings.Contains(out, "pickled") {
		t.Errorf("pickled weights: %d, %s", code, out)
	}
	if code, _, errs = trctlRun(t, "model", "inspect", "no/where"); code != exitUsage || !strings.Contains(errs, "no/where") {
		t.Errorf("nothing: %d, %s", code, errs)
	}
}

// TestModelPull downloads a checkpoint from a server of our own and serves its cache by name.
func TestModelPull(t *testing.T) {
	dir := familyCheckpoint(t, "LlamaForCausalLM", 1, "llama2", "x", nil)
	const commit = "0123456789abcdef0123456789abcdef01234567"
	mux := http.NewServeMux()
	mux.HandleFunc("/api/models/org/name/revision/main", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		entries, _ := os.ReadDir(dir)
		var siblings []map[string]any
		for _, e := range entries {
			b, _ := os.ReadFile(filepath.Join(dir, e.Name()))
			sum := sha256.Sum256(b)
			siblings = append(siblings, map[string]any{"rfilename": e.Name(), "lfs": map[string]any{"sha256": hex.EncodeToString(sum[:]), "size": len(b)}})
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": commit, "siblings": siblings})
	})
	mux.Handle("/org/name/resolve/"+commit+"/", http.StripPrefix("/org/name/resolve/"+commit+"/", http.FileServer(http.Dir(dir))))
	server := httptest.NewServer(mux)
	defer server.Close()
	cache := t.TempDir()
	t.Setenv("TRCTL_MODEL_CACHE", cache)
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_TOKEN", "")
	t.Setenv("HF_TOKEN_PATH", filepath.Join(cache, "none"))
	if code, _, errs := trctlRun(t, "model", "pull", "org/name"); code != exitUsage || !strings.Contains(errs, "https") {
		t.Errorf("plain HTTP: %d, %s", code, errs)
	}
	if code, _, errs := trctlRun(t, "model", "pull", "org/name", "--allow-private"); code != exitServer || !strings.Contains(errs, "token") {
		t.Errorf("no token: %d, %s", code, errs)
	}
	token := filepath.Join(cache, "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := trctlRun(t, "model", "pull", "org/name", "--allow-private", "--token-file", token, "-o", "json")
	var p hub.Pulled
	if err := json.Unmarshal([]byte(out), &p); code != exitDone || err != nil || len(p.Files) != 5 || !strings.Contains(errs, "model.safetensors ") || strings.Contains(errs, "secret") {
		t.Fatalf("pull: %d, %v, %s, %s", code, err, out, errs)
	}
	for _, args := range [][]string{{"model", "inspect", "org/name"}, {"model", "check", "org/name", dir}, {"model", "list"}} {
		if code, out, errs := trctlRun(t, args...); code != exitDone || !strings.Contains(out, "snapshots") && args[1] != "check" {
			t.Errorf("%v: %d, %s, %s", args, code, out, errs)
		}
	}
	set, err := parseServe(t, "--models=org/name")
	if err != nil || set.Models[0].Name != "name" || set.Models[0].Dir != p.Dir {
		t.Errorf("serve: %v, %+v", err, set.Models)
	}
	if code, out, errs := trctlRun(t, "model", "import", dir, "me/mine", "-o", "json"); code != exitDone {
		t.Errorf("import: %d, %s, %s", code, out, errs)
	}
	if code, out, _ := trctlRun(t, "model", "list", "-o", "json"); code != exitDone || !strings.Contains(out, `"me/mine"`) {
		t.Errorf("list: %d, %s", code, out)
	}
	for _, bad := range []string{"org", "a/b/c", "../x"} {
		if code, _, _ := trctlRun(t, "model", "pull", bad); code != exitUsage {
			t.Errorf("%s: %d", bad, code)
		}
	}
}
