package gateway

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/api/generate"
	"github.com/tokenrouter/tokenrouter/api/openai"
	"github.com/tokenrouter/tokenrouter/gateway/session/sessiontest"
)

// readCalls reads pieces of an answer as a client sees them: text, and name(arguments).
func readCalls(one bool, pieces ...string) (content, calls string) {
	r := &callReader{id: "call_", tools: []string{"w", "t"}, one: one}
	add := func(text string, found []openai.ToolCall) {
		content += text
		for _, c := range found {
			calls += c.Name + "(" + c.Arguments + ")"
		}
	}
	for _, p := range pieces {
		add(r.push(p))
	}
	add(r.end())
	return content, calls
}

// inPieces cuts a text into pieces of n bytes.
func inPieces(text string, n int) []string {
	var out []string
	for ; len(text) > n; text = text[n:] {
		out = append(out, text[:n])
	}
	return append(out, text)
}

func TestCallReader(t *testing.T) {
	const oslo = `<tool_call>
{"name": "w", "arguments": {"city": "Oslo"}}
</tool_call>`
	for _, tc := range []struct{ name, text, content, calls string }{
		{"nothing", "", "", ""},
		{"text", "It is 5 < 6, and <tool_ is no call. ", "It is 5 < 6, and <tool_ is no call. ", ""},
		{"space", " \n", " \n", ""},
		{"one", oslo, "", `w({"city": "Oslo"})`},
		{"two", "\n" + oslo + "\n" + oslo + "\n", "", `w({"city": "Oslo"})w({"city": "Oslo"})`},
		{"text around", "Let me see.\n\n" + oslo + "\nDone. ", "Let me see.\nDone.", `w({"city": "Oslo"})`},
		{"thoughts", "<think>\nI could <tool_call>x</tool_call>\n</think>\n\n" + oslo, "<think>\nI could <tool_call>x</tool_call>\n</think>", `w({"city": "Oslo"})`},
		{"thoughts alone", "<think>\n" + oslo, "<think>\n" + oslo, ""},
		{"thoughts and text", "<think>a</think>\n\nb <", "<think>a</think>\n\nb <", ""},
		{"no arguments", `<tool_call>{"name":"t"}</tool_call>`, "", `t({})`},
		{"quoted arguments", `<tool_call>{"name":"t","arguments":"{\"a\":1}"}</tool_call>`, "", `t({"a":1})`},
		{"not closed", `<tool_call>{"name":"t","arguments":{}}`, "", `t({})`},
		{"cut off", `a <tool_call>{"name":"t","argu`, `a <tool_call>{"name":"t","argu`, ""},
		{"no JSON", "<tool_call>w(Oslo)</tool_call> b", "<tool_call>w(Oslo)</tool_call> b", ""},
		{"no object", `<tool_call>{"name":"t","arguments":[1]}</tool_call>`, `<tool_call>{"name":"t","arguments":[1]}</tool_call>`, ""},
		{"null", `<tool_call>null</tool_call>`, `<tool_call>null</tool_call>`, ""},
		{"two objects", `<tool_call>{"name":"t"}{"name":"t"}</tool_call>`, `<tool_call>{"name":"t"}{"name":"t"}</tool_call>`, ""},
		{"Llama", ` {"name": "w", "parameters": {"city": "Oslo"}}`, "", `w({"city": "Oslo"})`},
		{"Llama two", `{"name":"w","parameters":{}}; {"type":"function","name":"t","parameters":{"a":"}"}}`, "", `w({})t({"a":"}"})`},
		{"Llama, no such tool", `{"name": "x", "parameters": {}}`, `{"name": "x", "parameters": {}}`, ""},
		{"Llama and text", `{"name": "w", "parameters": {}} is the call`, `{"name": "w", "parameters": {}} is the call`, ""},
		{"Llama cut off", `{"name": "w", "para`, `{"name": "w", "para`, ""},
		{"another object", `{"answer": 5} <tool_call>`, `{"answer": 5} <tool_call>`, ""},
		{"characters", "é🦄<tool_call>{\"name\":\"t\",\"arguments\":{\"a\":\"漢\"}}</tool_call>", "é🦄", `t({"a":"漢"})`},
	} {
		for _, n := range []int{1, 2, 3, 7, 1 << 10} {
			if content, calls := readCalls(false, inPieces(tc.text, n)...); content != tc.content || calls != tc.calls {
				t.Errorf("%s in pieces of %d: %q and %q, want %q and %q", tc.name, n, content, calls, tc.content, tc.calls)
			}
		}
	}
	if content, calls := readCalls(true, oslo, "x", oslo); content != "x" || calls != `w({"city": "Oslo"})` {
		t.Errorf("one call alone: %q %q", content, calls)
	}
	long := `<tool_call>{"name":"` + strings.Repeat("x", maxCall)
	r := &callReader{}
	_, _ = r.push(long)
	if len(r.held) > len(callOpen) || r.mode != inText {
		t.Errorf("%d bytes are held", len(r.held))
	}
}

// FuzzCallReader: how an answer is cut does not matter, and one without calls is told as
// it is.
func FuzzCallReader(f *testing.F) {
	for _, s := range []string{"a <tool_call>{\"name\":\"t\"}</tool_call> b", "<think></think>{\"name\":\"w\",\"parameters\":{}}", "<tool_<tool_call></tool_call>", " {\"type\"", "<think", "<tool_call>\n<tool_call>{\"name\":\"w\"}"} {
		f.Add(s, uint8(1))
		f.Add(s, uint8(5))
	}
	f.Fuzz(func(t *testing.T, text string, n uint8) {
		content, calls := readCalls(false, text)
		inN, callsN := readCalls(false, inPieces(text, max(1, int(n)))...)
		if content != inN || calls != callsN {
			t.Fatalf("%q in pieces of %d: %q %q, whole: %q %q", text, n, inN, callsN, content, calls)
		}
		if calls == "" && content != text {
			t.Fatalf("%q became %q", text, content)
		}
	})
}

// B04, and what clients of the API expect of calls: in a body and in a stream.
func TestToolCalls(t *testing.T) {
	script := &sessiontest.Script{Finish: generate.FinishStop}
	for i, text := range inPieces("I look.\n<tool_call>\n{\"name\": \"w\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>{\"name\":\"w\"}</tool_call>", 6) {
		script.Tokens = append(script.Tokens, generate.TokenEvent{ID: int32(i + 10), Text: text, Bytes: []byte(text)})
	}
	f := start(t, nil, &sessiontest.Entry{ID: "e1", Script: script})
	const tools = hi + `,"tools":[{"type":"function","function":{"name":"w","parameters":{"type":"object"}}}]`
	for _, tc := range []struct{ name, fields, message, finish string }{
		{"calls", ``, `{"role":"assistant","content":"I look.","refusal":null,"tool_calls":[` +
			`{"id":"call_ID_0_0","type":"function","function":{"name":"w","arguments":"{\"city\": \"Oslo\"}"}},` +
			`{"id":"call_ID_0_1","type":"function","function":{"name":"w","arguments":"{}"}}]}`, "tool_calls"},
		{"one", `,"parallel_tool_calls":false`, `{"role":"assistant","content":"I look.","refusal":null,"tool_calls":[` +
			`{"id":"call_ID_0_0","type":"function","function":{"name":"w","arguments":"{\"city\": \"Oslo\"}"}}]}`, "tool_calls"},
		{"length", `,"max_tokens":5`, `{"role":"assistant","content":"I look.\n<tool_call>\n{\"name\": \"","refusal":null}`, "length"},
		{"B04 stop", `,"stop":"\"city\""`, `{"role":"assistant","content":"I look.\n<tool_call>\n{\"name\": \"w\", \"arguments\": {","refusal":null}`, "stop"},
		{"none", `,"tool_choice":"none"`, `{"role":"assistant","content":"I look.\n<tool_call>\n{\"name\": \"w\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>\n<tool_call>{\"name\":\"w\"}</tool_call>","refusal":null}`, "stop"},
	} {
		resp, body := f.post(chatPath, `{`+tools+tc.fields+`}`)
		if got := stableCalls(body); resp.StatusCode != http.StatusOK || !strings.Contains(got, `"message":`+tc.message+`,`) || !strings.Contains(got, `"finish_reason":"`+tc.finish+`"`) {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
	_, body := f.post(chatPath, `{`+tools+`,"stream":true,"logprobs":true}`)
	got := stableCalls(body)
	for _, want := range []string{
		`"delta":{"role":"assistant","content":"I look"}`,
		`"delta":{"tool_calls":[{"index":0,"id":"call_ID_0_0","type":"function","function":{"name":"w","arguments":"{\"city\": \"Oslo\"}"}}]}`,
		`"delta":{"tool_calls":[{"index":1,"id":"call_ID_0_1","type":"function","function":{"name":"w","arguments":"{}"}}]}`,
		`"delta":{},"logprobs":null,"finish_reason":"tool_calls"`,
	} {
		if strings.Count(got, want) != 1 {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if n := strings.Count(body, `"logprobs":{`); n != len(script.Tokens) { // B51
		t.Errorf("log-probabilities of %d of %d tokens", n, len(script.Tokens))
	}
	if chunks := events(t, body); joined(chunks, 0) != "I look." {
		t.Errorf("text %q", joined(chunks, 0))
	}
	// A call is all that there is.
	f = start(t, nil, &sessiontest.Entry{ID: "e1", Script: &sessiontest.Script{
		Finish: generate.FinishStop, Tokens: []generate.TokenEvent{{ID: 5, Text: `{"name":"w",`}, {ID: 6, Text: `"parameters":{}}`}, {ID: 2}},
	}})
	_, body = f.post(chatPath, `{`+tools+`}`)
	if got := stableCalls(body); !strings.Contains(got, `"content":null,"refusal":null,"tool_calls":[{"id":"call_ID_0_0",`) {
		t.Errorf("a call alone: %s", got)
	}
	_, body = f.post(chatPath, `{`+tools+`,"stream":true}`)
	if got := stableCalls(body); !strings.Contains(got, `"delta":{"role":"assistant","tool_calls":[{"index":0,"id":"call_ID_0_0",`) || strings.Count(got, `"role"`) != 1 {
		t.Errorf("a call alone, streamed: %s", got)
	}
}

// stableCalls is stable for the ids of calls too.
func stableCalls(s string) string {
	return stable(regexp.MustCompile(`call_[0-9a-f]{16}_`).ReplaceAllString(s, "call_ID_"))
}
