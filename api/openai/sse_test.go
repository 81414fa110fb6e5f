package openai

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"unicode/utf8"
)

// The reference: the same chunks as plain structs, written by encoding/json.
type (
	refDelta struct {
		Role    string  `json:"role,omitempty"`
		Content *string `json:"content,omitempty"`
	}
	refEntry struct {
		Token   string  `json:"token"`
		Logprob float32 `json:"logprob"`
		Bytes   []int   `json:"bytes"`
	}
	refToken struct {
		refEntry
		Top []refEntry `json:"top_logprobs"`
	}
	refLogprobs struct {
		Content []refToken `json:"content"`
		Refusal *string    `json:"refusal"`
	}
	refChoice struct {
		Index    int          `json:"index"`
		Delta    refDelta     `json:"delta"`
		Logprobs *refLogprobs `json:"logprobs"`
		Finish   *string      `json:"finish_reason"`
	}
	refUsage struct {
		Prompt     int            `json:"prompt_tokens"`
		Completion int            `json:"completion_tokens"`
		Total      int            `json:"total_tokens"`
		Details    map[string]int `json:"prompt_tokens_details"`
	}
	refModel struct {
		Model string `json:"model"`
	}
	refChunk struct {
		ID      string      `json:"id"`
		Object  string      `json:"object"`
		Created int64       `json:"created"`
		Model   string      `json:"model"`
		Choices []refChoice `json:"choices"`
		Usage   *refUsage   `json:"usage,omitempty"`
		Trctl   *refModel   `json:"trctl,omitempty"`
	}
)

func refInts(b []byte) []int {
	var out []int
	for _, c := range b {
		out = append(out, int(c))
	}
	return out
}

func refOwn(text string, raw []byte, lp float32) refEntry {
	if len(raw) > 0 {
		text = string(raw)
	}
	if math.IsNaN(float64(lp)) || lp < -9999 {
		lp = -9999
	}
	return refEntry{Token: text, Logprob: min(lp, 9999), Bytes: refInts(raw)}
}

// reference writes a chat chunk with encoding/json.
func reference(t testing.TB, id, model string, created int64, c *Chunk) []byte {
	out := refChunk{ID: id, Object: "chat.completion.chunk", Created: created, Model: model, Choices: []refChoice{}}
	if !c.UsageOnly {
		ch := refChoice{Index: c.Index}
		if c.Role {
			ch.Delta.Role = "assistant"
		}
		if c.Content {
			ch.Delta.Content = &c.Text
		}
		if c.Finish != "" {
			ch.Finish = &c.Finish
		}
		if len(c.Logprobs) > 0 {
			ch.Logprobs = &refLogprobs{}
			for _, tok := range c.Logprobs {
				r := refToken{refEntry: refOwn(tok.Text, tok.Bytes, tok.Logprob), Top: []refEntry{}}
				for _, a := range tok.Top {
					r.Top = append(r.Top, refOwn(a.Text, a.Bytes, a.Logprob))
				}
				ch.Logprobs.Content = append(ch.Logprobs.Content, r)
			}
		}
		out.Choices = append(out.Choices, ch)
	}
	if c.Usage != nil {
		out.Usage = &refUsage{c.Usage.Prompt, c.Usage.Completion, c.Usage.Prompt + c.Usage.Completion, map[string]int{"cached_tokens": 0}}
	}
	if c.Model != "" {
		out.Trctl = &refModel{c.Model}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		t.Fatal(err)
	}
	return []byte("data: " + strings.TrimSuffix(buf.String(), "\n") + "\n\n")
}

func FuzzChunk(f *testing.F) {
	f.Add("id", "tiny", "Hi <b>&\u2028 \x00\b\f\n\r\t\"\\ 🦄", []byte{0xc3}, float32(-0.25), 3, true, true, "stop")
	f.Add("", "", "\xff\xfe half \xe2\x82", []byte{}, float32(math.Inf(-1)), 0, false, true, "")
	f.Add("x", "y", "", []byte("ok"), float32(-1e-9), -1, false, false, "length")
	f.Add("x", "y", "z", []byte("ok"), float32(math.NaN()), 1<<30, true, false, "")
	f.Fuzz(func(t *testing.T, id, model, text string, raw []byte, lp float32, n int, flag, logprobs bool, finish string) {
		c := &Chunk{Index: n, Role: flag, Content: !flag || text != "", Text: text, Finish: finish, Model: model}
		if logprobs {
			c.Logprobs = []Token{{Text: text, Bytes: raw, Logprob: lp, Top: []Alternative{{Text: id, Logprob: lp / 3}, {Text: text, Bytes: raw, Logprob: lp * 1e-7}}}}
		}
		if n%2 == 0 {
			c.Usage = &Usage{Prompt: n / 2, Completion: 7}
		}
		c.UsageOnly = n%3 == 0 && finish == ""
		got := NewChunkWriter(Chat, id, int64(n), model).Append(nil, c)
		if want := reference(t, id, model, int64(n), c); !bytes.Equal(got, want) {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		checkEvent(t, got)
		// The older form has no reference; it must be JSON all the same.
		checkEvent(t, NewChunkWriter(Text, id, int64(n), model).Append(nil, c))
		checkEvent(t, AppendErrorEvent(nil, &Error{Message: text, Type: model, Param: id, Code: finish}))
	})
}

// checkEvent checks the framing: one data line, valid JSON without raw line
// ends, one blank line.
func checkEvent(t *testing.T, event []byte) {
	t.Helper()
	payload, ok := bytes.CutPrefix(event, []byte("data: "))
	payload, ok2 := bytes.CutSuffix(payload, []byte("\n\n"))
	if !ok || !ok2 || bytes.ContainsAny(payload, "\r\n") || !json.Valid(payload) || !utf8.Valid(payload) {
		t.Fatalf("event %q", event)
	}
}

func TestChunkGolden(t *testing.T) {
	chat := NewChunkWriter(Chat, "chatcmpl-1", 1700000000, "tiny")
	text := NewChunkWriter(Text, "cmpl-1", 1700000000, "tiny")
	ext := &Extension{Policy: "r2r", Models: []string{"tiny-s", "tiny-l"}, Epoch: 1, Ignored: []string{"x\"y"}}
	ext.Add(0, 2)
	ext.Add(0, 1)
	ext.Add(1, 1)
	tokens := []Token{{Text: "né", Logprob: -0.5, Top: []Alternative{{Text: "né", Logprob: -0.5}, {Text: "no", Logprob: -2}}}}
	for _, tc := range []struct {
		name string
		w    *ChunkWriter
		c    *Chunk
		want string
	}{
		{"first", chat, &Chunk{Role: true, Content: true, Text: "Hi", Model: "tiny-s"},
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":null}],"trctl":{"model":"tiny-s"}}`},
		{"last", chat, &Chunk{Finish: "stop", Extension: ext},
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],"trctl":{"policy":"r2r","models":["tiny-s","tiny-l"],"tokens":{"tiny-s":3,"tiny-l":1},"large_share":0.2500,"provenance":[["tiny-s",3],["tiny-l",1]],"epoch":1,"ignored":["x\"y"]}}`},
		{"usage", chat, &Chunk{UsageOnly: true, Usage: &Usage{Prompt: 3, Completion: 4}},
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"tiny","choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":0}}}`},
		{"text", text, &Chunk{Index: 2, Text: "né", Logprobs: tokens, Offset: 4},
			`{"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"tiny","choices":[{"index":2,"text":"né","logprobs":{"tokens":["né"],"token_logprobs":[-0.5],"top_logprobs":[{"né":-0.5,"no":-2}],"text_offset":[4]},"finish_reason":null}]}`},
	} {
		if got := string(tc.w.Append(nil, tc.c)); got != "data: "+tc.want+"\n\n" {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

func TestResponseGolden(t *testing.T) {
	ext := &Extension{Policy: "random", Models: []string{"tiny-s"}}
	ext.Add(0, 2)
	one := []Choice{{Text: "Hi", Finish: "length", Extension: ext}}
	got := string(AppendResponse(nil, Chat, "chatcmpl-1", 5, "tiny", one, Usage{Prompt: 1, Completion: 2}))
	want := `{"id":"chatcmpl-1","object":"chat.completion","created":5,"model":"tiny","choices":[{"index":0,"message":{"role":"assistant","content":"Hi","refusal":null},"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}},"trctl":{"policy":"random","models":["tiny-s"],"tokens":{"tiny-s":2},"large_share":0.0000,"provenance":[["tiny-s",2]],"epoch":0,"ignored":[]}}`
	if got != want {
		t.Errorf("chat:\n got %s\nwant %s", got, want)
	}
	two := append(one, Choice{Text: "", Finish: "stop", Extension: &Extension{}, Logprobs: []Token{}})
	got = string(AppendResponse(nil, Text, "cmpl-1", 5, "tiny", two, Usage{Prompt: 1, Completion: 2}))
	want = `{"id":"cmpl-1","object":"text_completion","created":5,"model":"tiny","choices":[{"index":0,"text":"Hi","logprobs":null,"finish_reason":"length","trctl":{"policy":"random","models":["tiny-s"],"tokens":{"tiny-s":2},"large_share":0.0000,"provenance":[["tiny-s",2]],"epoch":0,"ignored":[]}},{"index":1,"text":"","logprobs":{"tokens":[],"token_logprobs":[],"top_logprobs":[],"text_offset":[]},"finish_reason":"stop","trctl":{"policy":"","models":[],"tokens":{},"large_share":0.0000,"provenance":[],"epoch":0,"ignored":[]}}],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"prompt_tokens_details":{"cached_tokens":0}}}`
	if got != want {
		t.Errorf("text:\n got %s\nwant %s", got, want)
	}
	got = string(AppendModels(nil, []Model{{ID: "tiny", Created: 5, MaxContext: 512}}))
	if want := `{"object":"list","data":[{"id":"tiny","object":"model","created":5,"owned_by":"tokenrouter","max_model_len":512}]}`; got != want {
		t.Errorf("models: %s", got)
	}
}

// TestTopLogprobsOnce checks that look-alike alternatives do not repeat a key,
// and that the token itself is always there.
func TestTopLogprobsOnce(t *testing.T) {
	tokens := []Token{{Text: "a", Logprob: -3, Top: []Alternative{
		{Bytes: []byte{0xc3}, Logprob: -1}, {Bytes: []byte{0xc4}, Logprob: -2}, {Text: "a", Logprob: -3}}}}
	got := string(appendTextLogprobs(nil, tokens, 0))
	if want := `{"tokens":["a"],"token_logprobs":[-3],"top_logprobs":[{"a":-3,"\ufffd":-1}],"text_offset":[0]}`; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	w := NewChunkWriter(Chat, "chatcmpl-0123456789abcdef", 1700000000, "tiny")
	buf := make([]byte, 0, 4096)
	c := &Chunk{Content: true, Text: " wörd\n\u2028", Model: "tiny-s", Logprobs: []Token{{Text: " wörd", Bytes: []byte(" w\xc3"), Logprob: -1.25}}}
	if n := testing.AllocsPerRun(100, func() { buf = w.Append(buf[:0], c) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAppendChunk(b *testing.B) {
	w := NewChunkWriter(Chat, "chatcmpl-0123456789abcdef", 1700000000, "tiny")
	buf := make([]byte, 0, 4096)
	c := &Chunk{Content: true, Text: " word", Model: "tiny-s"}
	b.ReportAllocs()
	for b.Loop() {
		buf = w.Append(buf[:0], c)
	}
}

func BenchmarkParseChat(b *testing.B) {
	body := []byte(`{"model":"tiny","messages":[{"role":"user","content":"` + strings.Repeat("word ", 1000) + `"}],"stream":true,"temperature":0.5}`)
	b.ReportAllocs()
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if _, err := ParseChat(body); err != nil {
			b.Fatal(err)
		}
	}
}
