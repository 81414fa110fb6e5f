package node

import (
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/sourcegraph/conc/pool"
	"go.uber.org/goleak"

	"github.com/tokenrouter/tokenrouter/internal/leaktest"
)

// answers asks everything, several at a time.
func (r *running) answers(list []ask, atOnce int) []answer {
	r.t.Helper()
	out := make([]answer, len(list))
	group := pool.New().WithErrors().WithMaxGoroutines(atOnce)
	for i, a := range list {
		group.Go(func() (err error) {
			out[i], err = r.chat(a)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		r.t.Fatal(err)
	}
	return out
}

// TestCutStreamsFreeEverything cuts streams at random points. Pages, slots,
// sequences of both models and goroutines must come back.
func TestCutStreamsFreeEverything(t *testing.T) {
	n := 500
	if testing.Short() {
		n = 50
	}
	r := start(t, nil)
	list := questions(100, "tiny", 300)
	if _, err := r.chat(list[0]); err != nil {
		t.Fatal(err)
	}
	http.DefaultClient.CloseIdleConnections()
	baseline := goleak.IgnoreCurrent()
	rng := rand.New(rand.NewPCG(1, 2))
	group := pool.New().WithErrors().WithMaxGoroutines(16)
	for i := range n {
		a, events := list[i%len(list)], rng.IntN(60)
		group.Go(func() error { return r.cut(a, events) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	r.awaitIdle()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(baseline, leaktest.Late()); err != nil {
		t.Error(err)
	}
	if _, err := r.chat(list[0]); err != nil {
		t.Errorf("after the cuts: %v", err)
	}
}

// A node without a drain timeout cuts the requests in flight when it stops.
func TestNoDrain(t *testing.T) {
	r := start(t, func(c *Config) { c.DrainTimeout = 0 })
	body := `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stream":true,"ignore_eos":true,"max_tokens":4000}`
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	r.stop()
	rest, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(rest), `"code":"draining"`) {
		t.Errorf("the stream ended with %q, %v", rest[max(0, len(rest)-200):], err)
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		want   string // "" if nothing is wrong
	}{
		"defaults":      {func(*Config) {}, ""},
		"no listener":   {func(c *Config) { c.Listen = "" }, ""},
		"any interface": {func(c *Config) { c.Listen = ":8000" }, ""},
		"no drain":      {func(c *Config) { c.DrainTimeout = 0 }, ""},
		"negative":      {func(c *Config) { c.DrainTimeout = -1 }, "drain_timeout:"},
		"no port":       {func(c *Config) { c.Listen = "localhost" }, "listen:"},
		"high port":     {func(c *Config) { c.Listen = "127.0.0.1:99999" }, "listen:"},
		"engine":        {func(c *Config) { c.PageSize = 0 }, "page_size:"},
		"large pages":   {func(c *Config) { c.PageSize = 1 << 40 }, "page_size: is 1099511627776, must be at most 4096"},
		"many rows":     {func(c *Config) { c.MaxRows = 1e12 }, "max_rows: is 1000000000000, must be at most "},
		"many tokens":   {func(c *Config) { c.ChunkTokens = 1 << 16 }, "chunk_tokens: is 65536, must be at most "},
		"long queue":    {func(c *Config) { c.MaxQueue = 1e12 }, "max_queue: is 1000000000000, must be at most "},
		"threads":       {func(c *Config) { c.Workers = 1e8 }, "workers: is 100000000, must be 1 to 1024"},
		"no threads":    {func(c *Config) { c.Workers = -1 }, "workers: is -1, must be 1 to 1024"},
		"large pool":    {func(c *Config) { c.KVTokens = 1e14 }, "kv_tokens: is 100000000000000, must be at most "},
		"at the bounds": {func(c *Config) { c.PageSize, c.MaxRows, c.ChunkTokens, c.Workers = 4096, 8<<10, 48<<10, 1024 }, ""},
	} {
		cfg := Defaults()
		c.change(&cfg)
		err := cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

// TestBadRequestsDisturbNothing sends requests that must be refused, each with
// the field at fault, while good ones run.
func TestBadRequestsDisturbNothing(t *testing.T) {
	r := start(t, nil)
	good := questions(4, "tiny", 200)
	want := r.answers(good, 4)
	for _, c := range []struct{ name, body, param, code string }{
		{"no messages", `{"model":"tiny","messages":[]}`, "messages", ""},
		{"null content", `{"model":"tiny","messages":[{"role":"user","content":null}]}`, "messages", ""},
		{"invalid UTF-8", "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "messages", ""},
		{"max_tokens", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"max_tokens":1000000000}`, "max_tokens", ""},
		{"long prompt", `{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("1 ", 5000) + `"}]}`, "messages", "context_length_exceeded"},
		{"truncated", `{"model":"tiny","messages":[{"role":"user"`, "messages", ""},
		{"empty stop", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop":[""]}`, "stop", ""},
		{"unknown bias", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"logit_bias":{"191222999":-100}}`, "logit_bias", ""},
		{"B23", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"min_tokens":10,"max_tokens":5}`, "min_tokens", ""},
		{"stop ids", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"stop_token_ids":[191222999]}`, "stop_token_ids", ""},
		{"n", `{"model":"tiny","messages":[{"role":"user","content":"hi"}],"n":1000000}`, "n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, e := r.refused(c.body)
			if status != http.StatusBadRequest || !strings.HasPrefix(e.Param, c.param) || c.code != "" && e.Code != c.code {
				t.Errorf("status %d, error %+v", status, e)
			}
		})
	}
	if status, e := r.refused(`{"model":"tiney","messages":[{"role":"user","content":"hi"}]}`); status != http.StatusNotFound || e.Code != "model_not_found" {
		t.Errorf("unknown model: status %d, error %+v", status, e)
	}
	for i, got := range r.answers(good, 4) {
		if got.Text != want[i].Text {
			t.Errorf("request %d changed", i)
		}
	}
	r.awaitIdle()
}

// An assistant turn may have null content beside tool calls.
func TestNullContentBesideToolCalls(t *testing.T) {
	r := start(t, nil)
	resp, err := http.Post(r.url+"/v1/chat/completions", "application/json", strings.NewReader(
		`{"model":"tiny","max_tokens":8,"messages":[{"role":"user","content":"t?"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"12:00"},{"role":"user","content":"2 + 2?"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d", resp.StatusCode)
	}
}

// reports are bodies that broke other servers, each with a text that its answer
// must contain. Streamed and not, they must give the same text.
func reports() []struct{ name, path, fields, want string } {
	const text, talk = "/v1/completions", "/v1/chat/completions"
	return []struct{ name, path, fields, want string }{
		{"B01", text, `"prompt":"A B C D E F G","temperature":0,"max_tokens":30,"stop":["K L M N O"]`, `"finish_reason":"`},
		{"B07", talk, `"messages":[{"role":"user","content":"Hello"}],"stop":[],"temperature":0`, `"finish_reason":"stop"`},
		{"B11", talk, `"messages":[{"role":"user","content":"Reply only with: 🦄👩‍👩‍👧‍👦漢字"}],"temperature":0,"max_tokens":60`, `"finish_reason"`},
		{"B17", text, `"prompt":"Answer: Yes","max_tokens":0,"echo":true,"logprobs":1`, `"token_logprobs":[null,-`},
		{"B24", talk, `"messages":[{"role":"user","content":"What is 48 + 72 * 29?"}],"max_tokens":20`, `"completion_tokens":20`},
		{"B26", talk, `"messages":[{"role":"user","content":""}],"max_tokens":8`, `"finish_reason"`},
		{"B28", text, `"prompt":" ","max_tokens":4`, `"finish_reason"`},
		{"B30", talk, `"messages":[{"role":"system","content":"A"},{"role":"system","content":"B"},{"role":"user","content":"hi"}],"max_tokens":8`, `"finish_reason"`},
		{"B44", talk, `"messages":[{"role":"user","content":"joke"}],"seed":123,"temperature":0.8,"max_tokens":64`, `"finish_reason"`},
		{"B48", text, `"prompt":"The capital","temperature":0.01,"top_p":0.3,"max_tokens":50,"logprobs":5`, `"top_logprobs":[{`},
		{"B49", text, `"prompt":"correct horse","echo":true,"logprobs":1,"temperature":1,"top_k":1,"max_tokens":4`, `"text":"correct horse`},
		{"B54", talk, `"messages":[{"role":"user","content":"one word"}],"n":3,"max_tokens":16`, `"index":2`},
		{"bench", talk, `"messages":[{"role":"user","content":"hi"}],"max_completion_tokens":40,"ignore_eos":true,"repetition_penalty":1.0,"logprobs":null`, `"completion_tokens":40`},
	}
}

// TestReports sends them. Answers are valid JSON, and seeds make them repeatable.
func TestReports(t *testing.T) {
	r := start(t, nil)
	for _, c := range reports() {
		t.Run(c.name, func(t *testing.T) {
			fields := `{"model":"tiny",` + c.fields
			if !strings.Contains(c.fields, `"seed"`) {
				fields += `,"seed":1`
			}
			whole := r.raw(t, c.path, fields+`}`)
			var body struct {
				Choices []struct {
					Text    string
					Message struct{ Content string }
				}
			}
			if err := json.Unmarshal([]byte(whole), &body); err != nil || !strings.Contains(whole, c.want) {
				t.Fatalf("no %s in %s (%v)", c.want, whole, err)
			}
			stream := r.raw(t, c.path, fields+`,"stream":true,"stream_options":{"include_usage":true}}`)
			texts, finishes := streamed(t, stream)
			for i, choice := range body.Choices {
				if want := choice.Text + choice.Message.Content; texts[i] != want {
					t.Errorf("choice %d:\nstream %q\nbody   %q", i, texts[i], want)
				}
				if finishes[i] != 1 {
					t.Errorf("choice %d has %d ends", i, finishes[i])
				}
			}
			if strings.Contains(stream, "�") != strings.Contains(whole, "�") {
				t.Error("a character was broken")
			}
		})
	}
	r.awaitIdle()
}

// raw posts a body and returns the answer's.
func (r *running) raw(t *testing.T, path, body string) string {
	t.Helper()
	resp, err := http.Post(r.url+path, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d, %v: %s", resp.StatusCode, err, b)
	}
	return string(b)
}

// streamed joins the texts of a stream, and counts the ends, by choice.
func streamed(t *testing.T, stream string) (texts map[int]string, finishes map[int]int) {
	t.Helper()
	texts, finishes = map[int]string{}, map[int]int{}
	for line := range strings.Lines(stream) {
		data, ok := strings.CutPrefix(line, "data: {")
		if !ok {
			continue
		}
		var chunk struct {
			Choices []struct {
				Index  int
				Text   string
				Delta  struct{ Content string }
				Finish *string `json:"finish_reason"`
			}
		}
		if err := json.Unmarshal([]byte("{"+data), &chunk); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		for _, c := range chunk.Choices {
			texts[c.Index] += c.Text + c.Delta.Content
			if c.Finish != nil {
				finishes[c.Index]++
			}
		}
	}
	return texts, finishes
}
