package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/internal/node"
	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

// templatesEnv names a folder of chat templates with what renders.py of package chat
// has written beside them.
const templatesEnv = "TRCTL_TEST_TEMPLATES"

// rendered is a conversation with what the reference renderer makes of it.
type rendered struct {
	Messages json.RawMessage `json:"messages"`
	Gen      bool            `json:"gen"`
	Tools    json.RawMessage `json:"tools"`
	Args     json.RawMessage `json:"args"`
	Out      string          `json:"out"`
	Error    string          `json:"error"`
	Raised   bool            `json:"raised"`
}

// fits reports whether a conversation can come over HTTP and has one prompt: an answer
// is asked for, the template is given its date, and no text looks like a control token.
func (r *rendered) fits(words *tokenizer.Tokenizer) bool {
	for _, a := range words.AddedTokens() {
		if bytes.Contains(r.Messages, []byte(a.Text)) {
			return false
		}
	}
	return r.Gen && strings.Contains(string(r.Args), "date_string") && string(r.Messages) != "[]"
}

// directory is one model behind HTTP.
type directory struct {
	t   *testing.T
	ctx context.Context
	url string
}

// serveAlone serves one directory while f runs.
func serveAlone(t *testing.T, dir string, f func(s directory)) {
	t.Helper()
	set, err := parseServe(t, "--models="+dir, "--listen=127.0.0.1:0", "--kv-tokens=16384", "--device=cpu", "--log-level=error")
	if err != nil {
		t.Fatal(err)
	}
	err = withNode(context.Background(), set.Config, func(ctx context.Context, n *node.Node) error {
		f(directory{t, ctx, "http://" + n.Addr().String()})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// answered is what a test looks at in an answer.
type answered struct {
	Usage struct {
		Prompt int `json:"prompt_tokens"`
	}
	Choices []struct {
		Finish   string `json:"finish_reason"`
		Message  struct{ Content string }
		Text     string
		Logprobs struct {
			Content []struct {
				Token   string
				Logprob float64
			}
			Token []float64 `json:"token_logprobs"`
		}
	}
	Error struct{ Message, Param, Code string }
}

func (s directory) post(path, body string) (status int, out answered) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, out
}

// TestServeTemplates asks over HTTP with tools, calls, results, null content and
// variables. The prompt must be the reference renderer's: the model answers it just as
// it answers the ids of that text, with equal log-probabilities.
func TestServeTemplates(t *testing.T) {
	folders := []string{"../../worker/tokenizer/chat/testdata"}
	if dir := os.Getenv(templatesEnv); dir != "" {
		folders = append(folders, dir)
	}
	for _, folder := range folders {
		paths, err := filepath.Glob(folder + "/*.jinja")
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s has no templates: %v", folder, err)
		}
		for _, path := range paths {
			name := strings.TrimSuffix(path, ".jinja")
			t.Run(filepath.Base(name), func(t *testing.T) { askRendered(t, path, name+".renders.json") })
		}
	}
}

func askRendered(t *testing.T, template, renders string) {
	source, err := os.ReadFile(template)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(renders)
	if err != nil {
		t.Fatal(err)
	}
	var rows []rendered
	if err := json.Unmarshal(text, &rows); err != nil {
		t.Fatal(err)
	}
	dir := familyCheckpoint(t, "Qwen2ForCausalLM", 1, "llama3", string(source), map[string]any{"max_position_embeddings": 8192})
	names := []byte(`{"bos_token":"<BOS>","eos_token":"<EOS>"}`)
	if err := os.WriteFile(filepath.Join(dir, "tokenizer_config.json"), names, 0o644); err != nil {
		t.Fatal(err)
	}
	words, err := tokenizer.Load(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	knowsTools := bytes.Contains(source, []byte("tools"))
	asked, tools := 0, 0
	serveAlone(t, dir, func(s directory) {
		for i, r := range rows {
			if !r.fits(words) {
				continue
			}
			asked++
			if r.Tools == nil {
				r.Tools = json.RawMessage("null")
			} else if tools++; !knowsTools {
				status, out := s.chat(&r)
				if status != http.StatusBadRequest || out.Error.Param != "tools" || !strings.Contains(out.Error.Message, "knows no tools") {
					t.Errorf("case %d: a template without tools: status %d, %+v", i, status, out.Error)
				}
				r.Tools = json.RawMessage("null")
			}
			s.compare(i, &r, words)
		}
	})
	t.Logf("%d conversations, %d with tools", asked, tools)
	if asked < 20 || tools < 5 {
		t.Errorf("%d conversations, %d with tools", asked, tools)
	}
}

func (s directory) chat(r *rendered) (int, answered) {
	return s.post("/v1/chat/completions", fmt.Sprintf(
		`{"model":"qwen2-1","messages":%s,"tools":%s,"chat_template_kwargs":%s,"max_tokens":2,"temperature":0,"logprobs":true,"top_logprobs":3}`, r.Messages, r.Tools, r.Args))
}

// compare asks for one conversation and then for the reference's prompt.
func (s directory) compare(i int, r *rendered, words *tokenizer.Tokenizer) {
	s.t.Helper()
	status, got := s.chat(r)
	if r.Error != "" {
		if status != http.StatusBadRequest || got.Error.Code != "template_error" || r.Raised && got.Error.Message != "chat template: "+r.Error {
			s.t.Errorf("case %d: status %d, %+v; the reference says %q", i, status, got.Error, r.Error)
		}
		return
	}
	ids, err := json.Marshal(words.Encode(nil, r.Out, tokenizer.ParseAll()))
	if err != nil {
		s.t.Fatal(err)
	}
	wantStatus, want := s.post("/v1/completions", fmt.Sprintf(`{"model":"qwen2-1","prompt":%s,"max_tokens":2,"temperature":0,"logprobs":3}`, ids))
	switch {
	case status != http.StatusOK || wantStatus != http.StatusOK:
		s.t.Errorf("case %d: status %d and %d: %+v, %+v", i, status, wantStatus, got.Error, want.Error)
	case got.Usage != want.Usage:
		s.t.Errorf("case %d: a prompt of %d tokens, the reference's has %d", i, got.Usage.Prompt, want.Usage.Prompt)
	case got.Choices[0].Message.Content != want.Choices[0].Text:
		s.t.Errorf("case %d: the answer is %q, to the reference's prompt %q", i, got.Choices[0].Message.Content, want.Choices[0].Text)
	case len(got.Choices[0].Logprobs.Content) == 0:
		s.t.Errorf("case %d: no log-probabilities", i)
	default:
		for k, x := range got.Choices[0].Logprobs.Content {
			if y := want.Choices[0].Logprobs.Token[k]; x.Logprob != y {
				s.t.Errorf("case %d: token %d has log-probability %v, after the reference's prompt %v", i, k, x.Logprob, y)
			}
		}
	}
}
