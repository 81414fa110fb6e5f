package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/model/modeltest"
)

// TestServeSpecialMap serves a pair whose large model has the same added tokens under
// other ids. Every answer must be that of the pair with equal ids.
func TestServeSpecialMap(t *testing.T) {
	const template = "{{ bos_token }}{% for m in messages %}<｜User｜>{{ m.content }}<｜Assistant｜><think>{% endfor %}"
	more := map[string]any{"eos_token_id": 520, "vocab_size": 528}
	small := familyCheckpoint(t, "Qwen2ForCausalLM", 1, "deepseek", template, more)
	large := familyCheckpoint(t, "LlamaForCausalLM", 2, "deepseek", template, more)
	other := modeltest.Renumber(t, os.DirFS(large), "other", map[int]int{520: 521, 521: 522, 522: 523, 523: 520}, 521)
	names := []string{filepath.Base(small), filepath.Base(large), "other"}
	dir := t.TempDir()
	file := filepath.Join(dir, "serve.yaml")
	text := fmt.Sprintf(`
listen: 127.0.0.1:0
device: cpu
kv_tokens: 8192
log_level: error
models:
  - {name: %s, dir: %q}
  - {name: %s, dir: %q}
  - {name: other, dir: %q}
deployments:
  - name: plain
    models: [%s, %s]
    policy: {name: random, threshold: 0.5}
  - name: mapped
    models: [%s, other]
    policy: {name: random, threshold: 0.5}
    special_map:
      other: ["<think>=<think>", "<｜User｜>=<｜User｜>", "<｜Assistant｜>=<｜Assistant｜>", "520=521"]
`, names[0], small, names[1], large, other, names[0], names[1], names[0])
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	set, err := parseServe(t, "-f", file)
	if err != nil {
		t.Fatal(err)
	}
	err = withNode(context.Background(), set.Config, func(ctx context.Context, n *node.Node) error {
		s := directory{t, ctx, "http://" + n.Addr().String()}
		thoughts, ends := 0, map[string]int{}
		for i := range 12 {
			ask := func(deployment string) answered {
				status, out := s.post("/v1/chat/completions", fmt.Sprintf(
					`{"model":%q,"messages":[{"role":"user","content":"the answer %d"}],"max_tokens":40,"temperature":0,"seed":%d,"logit_bias":{"523":%d,"521":1,"520":%d},"stop_token_ids":[%d],"logprobs":true,"top_logprobs":4,"frequency_penalty":1}`, deployment, i, i, 2+i/2, i%4, 100+i))
				if status != 200 {
					t.Errorf("%s: status %d: %+v", deployment, status, out.Error)
				}
				return out
			}
			plain, mapped := ask("plain"), ask("mapped")
			a, b := plain.Choices[0], mapped.Choices[0]
			if a.Message != b.Message || a.Finish != b.Finish || len(a.Logprobs.Content) != len(b.Logprobs.Content) {
				t.Fatalf("request %d: with a map %q, %s; without %q, %s", i, b.Message, b.Finish, a.Message, a.Finish)
			}
			for k, x := range a.Logprobs.Content {
				y := b.Logprobs.Content[k]
				// The sum over the vocabulary is in another order.
				if x.Token != y.Token || math.Abs(x.Logprob-y.Logprob) > 1e-4 {
					t.Errorf("request %d: token %d is %+v with a map, %+v without", i, k, y, x)
				}
				if x.Token == "<think>" {
					thoughts++
				}
			}
			ends[a.Finish]++
		}
		if thoughts == 0 {
			t.Error("no answer has a token that moves")
		}
		t.Logf("%d tokens that move, ends %v", thoughts, ends)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
