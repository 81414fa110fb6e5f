package gateway

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

const (
	chatPath = "/v1/chat/completions"
	textPath = "/v1/completions"
	hi       = `"model":"tiny","messages":[{"role":"user","content":"hi"}]`
)

// chunk is what a client reads from a stream.
type chunk struct {
	Object  string
	Choices []struct {
		Index int
		Text  string
		Delta struct {
			Role    string
			Content *string
		}
		Logprobs     json.RawMessage
		FinishReason *string `json:"finish_reason"`
	}
	Usage *struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	Error *struct {
		Message, Type string
		Param, Code   *string
	}
	Trctl struct {
		Model      string
		Tokens     map[string]int
		LargeShare float64 `json:"large_share"`
		Provenance [][2]any
		Epoch      int
		Ignored    []string
	}
}

// events splits a stream and checks its framing.
func events(t *testing.T, body string) []chunk {
	t.Helper()
	if strings.Contains(body, "\r") || !strings.HasSuffix(body, "data: [DONE]\n\n") {
		t.Fatalf("stream does not end well: %.300q", body)
	}
	var out []chunk
	parts := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	for _, p := range parts[:len(parts)-1] {
		if strings.HasPrefix(p, ":") {
			continue
		}
		data, ok := strings.CutPrefix(p, "data: ")
		var c chunk
		if !ok || json.Unmarshal([]byte(data), &c) != nil {
			t.Fatalf("event %q", p)
		}
		out = append(out, c)
	}
	return out
}

// joined returns the text of one choice of a stream.
func joined(chunks []chunk, index int) string {
	var b strings.Builder
	for _, c := range chunks {
		for _, ch := range c.Choices {
			if ch.Index != index {
				continue
			}
			b.WriteString(ch.Text)
			if ch.Delta.Content != nil {
				b.WriteString(*ch.Delta.Content)
			}
		}
	}
	return b.String()
}

// stable replaces what differs between runs.
func stable(s string) string {
	s = regexp.MustCompile(`cmpl-[0-9a-f]+`).ReplaceAllString(s, "cmpl-ID")
	return regexp.MustCompile(`"created":\d+`).ReplaceAllString(s, `"created":0`)
}

// unicorn is a script in which characters span tokens and the last token is special.
func unicorn() *sessiontest.Script {
	return &sessiontest.Script{Finish: generate.FinishStop, Tokens: []generate.TokenEvent{
		{ID: 5, Text: "Hé"},
		{ID: 6, Model: 1, Text: "", Bytes: []byte("\xf0\x9f")},
		{ID: 7, Model: 1, Text: "🦄", Bytes: []byte("\xa6\x84")},
		{ID: 8, Text: "\n\"<b>"},
		{ID: 2, Text: ""},
	}}
}

func TestChatStreamGolden(t *testing.T) {
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: unicorn()})
	resp, body := f.post(chatPath, `{`+hi+`,"stream":true,"stream_options":{"include_usage":true},"foo":1}`)
	for k, want := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"} {
		if got := resp.Header.Get(k); got != want {
			t.Errorf("%s: %q", k, got)
		}
	}
	const head = `data: {"id":"chatcmpl-ID","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[`
	want := head + `{"index":0,"delta":{"role":"assistant","content":"Hé"},"logprobs":null,"finish_reason":null}],"trctl":{"model":"tiny-s"}}

` + head + `{"index":0,"delta":{"content":"🦄"},"logprobs":null,"finish_reason":null}],"trctl":{"model":"tiny-l"}}

` + head + `{"index":0,"delta":{"content":"\n\"<b>"},"logprobs":null,"finish_reason":null}],"trctl":{"model":"tiny-s"}}

` + head + `{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"trctl":{"policy":"r2r","models":["tiny-s","tiny-l"],"tokens":{"tiny-s":3,"tiny-l":2},"large_share":0.4000,"provenance":[["tiny-s",1],["tiny-l",2],["tiny-s",2]],"epoch":1,"ignored":["foo"]}}

` + head + `],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":0}}}

data: [DONE]

`
	if got := stable(body); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// An answer whose end the entry model has written alone says so, in a stream and in a body.
func TestFallbackIsTold(t *testing.T) {
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: unicorn(), Edit: func(_ *generate.Request, at int, e *generate.Event) ([]*generate.Event, error) {
		e.Alone = e.Kind == generate.EventTokens && at == 3
		return []*generate.Event{e}, nil
	}})
	for _, stream := range []string{"true", "false"} {
		_, body := f.post(chatPath, `{`+hi+`,"stream":`+stream+`}`)
		if want := `"epoch":1,"fallback":"small-only","ignored":[]}`; strings.Count(body, want) != 1 {
			t.Errorf("stream %s: %s", stream, body)
		}
	}
}

func TestChatBodyGolden(t *testing.T) {
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: unicorn()})
	_, body := f.post(chatPath, `{`+hi+`,"logprobs":true}`)
	want := `{"id":"chatcmpl-ID","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hé🦄\n\"<b>","refusal":null},"logprobs":{"content":[` +
		`{"token":"Hé","logprob":0,"bytes":null,"top_logprobs":[]},{"token":"\ufffd\ufffd","logprob":0,"bytes":[240,159],"top_logprobs":[]},` +
		`{"token":"\ufffd\ufffd","logprob":0,"bytes":[166,132],"top_logprobs":[]},{"token":"\n\"<b>","logprob":0,"bytes":null,"top_logprobs":[]},` +
		`{"token":"","logprob":0,"bytes":null,"top_logprobs":[]}],"refusal":null},"finish_reason":"stop"}],` +
		`"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":0}},` +
		`"trctl":{"policy":"r2r","models":["tiny-s","tiny-l"],"tokens":{"tiny-s":3,"tiny-l":2},"large_share":0.4000,"provenance":[["tiny-s",1],["tiny-l",2],["tiny-s",2]],"epoch":1,"ignored":[]}}`
	if got := stable(body); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestStreamShapes(t *testing.T) {
	tail := sessiontest.Words(3)
	tail.Tail = "�"
	for _, tc := range []struct {
		name, path, fields string
		script             *sessiontest.Script
		chunks             int // events with a choice
		text, finish       string
		completion         int
	}{
		{"plain", chatPath, ``, sessiontest.Words(4), 5, " w0 w1 w2 w3", "stop", 4},
		{"B24 length", chatPath, `"max_tokens":2`, sessiontest.Words(4), 3, " w0 w1", "length", 2},
		{"B37 both names", chatPath, `"max_completion_tokens":1`, sessiontest.Words(4), 2, " w0", "length", 1},
		{"tail", chatPath, ``, tail, 5, " w0 w1 w2�", "stop", 3},
		{"only the end token", chatPath, ``, &sessiontest.Script{Finish: generate.FinishStop, Tokens: []generate.TokenEvent{{ID: 2}}}, 1, "", "stop", 1},
		{"logprobs keep empty tokens", chatPath, `"logprobs":true,"top_logprobs":2`, unicorn(), 6, "Hé🦄\n\"<b>", "stop", 5},
		{"text", textPath, ``, sessiontest.Words(4), 5, " w0 w1 w2 w3", "stop", 4},
		{"text logprobs", textPath, `"logprobs":1`, unicorn(), 6, "Hé🦄\n\"<b>", "stop", 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: tc.script})
			fields := hi
			if tc.path == textPath {
				fields = `"model":"tiny","prompt":"A"`
			}
			if tc.fields != "" {
				fields += "," + tc.fields
			}
			resp, body := f.post(tc.path, `{`+fields+`,"stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true}}`)
			if resp.StatusCode != http.StatusOK {
				t.Fatal(body)
			}
			chunks := events(t, body)
			last := chunks[len(chunks)-1]
			if len(last.Choices) != 0 || last.Usage == nil || last.Usage.Completion != tc.completion || last.Usage.Total != 3+tc.completion {
				t.Errorf("usage chunk %+v", last)
			}
			chunks = chunks[:len(chunks)-1]
			if got := joined(chunks, 0); got != tc.text || len(chunks) != tc.chunks {
				t.Errorf("%d chunks, text %q\n%s", len(chunks), got, body)
			}
			for i, c := range chunks {
				ch := c.Choices[0]
				end := i == len(chunks)-1
				if (ch.FinishReason != nil) != end || c.Usage == nil || !strings.Contains(body, `"finish_reason":null`) && !end {
					t.Errorf("chunk %d: %+v", i, c)
				}
				if tc.path == chatPath && (ch.Delta.Role != "") != (i == 0) {
					t.Errorf("chunk %d: role %q", i, ch.Delta.Role)
				}
			}
			if got := *chunks[len(chunks)-1].Choices[0].FinishReason; got != tc.finish {
				t.Errorf("finish %q", got)
			}
			// The same answer without a stream (B11).
			_, body = f.post(tc.path, `{`+fields+`}`)
			var whole struct {
				Choices []struct {
					Text    string
					Message struct{ Content string }
				}
			}
			if err := json.Unmarshal([]byte(body), &whole); err != nil || whole.Choices[0].Text+whole.Choices[0].Message.Content != tc.text {
				t.Errorf("not streamed: %s", body)
			}
		})
	}
}

func TestCompletionsOfManyPrompts(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(6)}
	f := start(t, nil, e)
	_, body := f.post(textPath, `{"model":"tiny","prompt":["a","b","c"],"stream":true,"stream_options":{"include_usage":true}}`)
	chunks := events(t, body)
	finishes := 0
	for _, c := range chunks {
		for _, ch := range c.Choices {
			if ch.FinishReason != nil {
				finishes++
			}
		}
	}
	for i := range 3 {
		if got := joined(chunks, i); got != e.Script.Text() {
			t.Errorf("choice %d: %q", i, got)
		}
	}
	if last := chunks[len(chunks)-1]; finishes != 3 || last.Usage.Completion != 18 || last.Usage.Prompt != 9 {
		t.Errorf("%d finishes, %+v", finishes, last.Usage)
	}
	_, body = f.post(textPath, `{"model":"tiny","prompt":[[4,5],[6]],"max_tokens":2}`)
	if got := strings.Count(body, `"text":" w0 w1"`); got != 2 || !strings.Contains(body, `"index":1`) {
		t.Errorf("ids: %s", body)
	}
	for _, r := range e.Requests() {
		if r.Chat || r.Prompt == "" && len(r.PromptIDs) == 0 {
			t.Errorf("request %+v", r)
		}
	}
}

// TestRequestReachesEntry checks defaults, overrides and the minted values.
func TestRequestReachesEntry(t *testing.T) {
	e := &sessiontest.Entry{ID: "e1", Script: sessiontest.Words(1)}
	f := start(t, nil, e)
	f.post(chatPath, `{`+hi+`}`)
	f.post(chatPath, `{"model":"tiny","messages":[{"role":"developer","content":"d"},{"role":"user","content":[{"type":"text","text":"x"}]}],"temperature":0,"top_p":0,"top_k":-1,"seed":7,"max_tokens":5,"logprobs":true,"top_logprobs":3,"chat_template_kwargs":{"enable_thinking":false}}`)
	seen := e.Requests()
	if len(seen) != 2 {
		t.Fatalf("%d requests", len(seen))
	}
	a, b := seen[0], seen[1]
	if p := a.Sampling; p.Temperature != 0.6 || p.TopP != 0.95 || p.TopK != 20 || p.MaxTokens != 512 || p.Logprobs != -1 || p.Seed == 0 || !a.DefaultMaxTokens {
		t.Errorf("defaults: %+v", a)
	}
	if p := b.Sampling; !p.Greedy() || !(p.TopP > 0) || p.TopK != 0 || p.MaxTokens != 5 || p.Logprobs != 3 || p.Seed != 7 || b.DefaultMaxTokens {
		t.Errorf("overrides: %+v", b)
	}
	if a.ID == b.ID || a.ID == 0 || a.Epoch != 1 || !a.Chat || a.Deployment != "tiny" || a.Resume != nil {
		t.Errorf("identity: %+v", a)
	}
	if b.Messages[0].Role != "system" || b.Messages[1].Content != "x" || string(b.TemplateArgs) != `{"enable_thinking":false}` {
		t.Errorf("messages: %+v", b)
	}
}
