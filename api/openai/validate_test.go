package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const hi = `"model":"tiny","messages":[{"role":"user","content":"hi"}]`

func TestParseChatAccepts(t *testing.T) {
	for name, body := range map[string]string{
		"plain":             `{` + hi + `}`,
		"empty content":     `{"model":"tiny","messages":[{"role":"user","content":""}],"max_tokens":8}`,
		"two system turns":  `{"model":"tiny","messages":[{"role":"system","content":"A"},{"role":"system","content":"B"},{"role":"user","content":"hi"}]}`,
		"developer":         `{"model":"tiny","messages":[{"role":"developer","content":"A"},{"role":"user","content":"hi"}]}`,
		"empty stop":        `{` + hi + `,"stop":[]}`,
		"all null":          `{` + hi + `,"stop":null,"n":null,"tools":null,"logit_bias":null,"seed":null,"temperature":null,"stream_options":null,"response_format":null,"max_tokens":null,"logprobs":null,"top_logprobs":null,"user":null,"metadata":null,"chat_template_kwargs":null,"tool_choice":null,"suffix":null}`,
		"all neutral":       `{` + hi + `,"n":1,"best_of":1,"logit_bias":{},"presence_penalty":0,"frequency_penalty":-0.0,"repetition_penalty":1.0,"min_p":0,"min_tokens":0,"ignore_eos":false,"echo":false,"tools":[],"tool_choice":"auto","function_call":"none","response_format":{"type":"text"},"stop_token_ids":[],"suffix":"","skip_special_tokens":true,"modalities":["text"],"top_logprobs":0,"chat_template_kwargs":{}}`,
		"silent":            `{` + hi + `,"user":"u","metadata":{"a":"b"},"store":true,"service_tier":"auto","parallel_tool_calls":false}`,
		"null name":         `{"model":"tiny","messages":[{"role":"user","content":"hi","name":null}]}`,
		"both limits equal": `{` + hi + `,"max_tokens":5,"max_completion_tokens":5}`,
		"one stop":          `{` + hi + `,"stop":"x"}`,
		"B03 stops":         `{` + hi + `,"stop":["###END###"]}`,
		"n":                 `{` + hi + `,"n":8,"best_of":8}`,
		"min_tokens":        `{` + hi + `,"min_tokens":5,"max_tokens":5}`,
		"min_tokens alone":  `{` + hi + `,"min_tokens":5}`,
		"bench fields":      `{` + hi + `,"ignore_eos":true,"repetition_penalty":1.0,"logprobs":null,"stop":null}`,
		"top_k -1":          `{` + hi + `,"top_k":-1}`,
		"escaped pair":      `{"model":"tiny","messages":[{"role":"user","content":"\ud83e\udd84"}]}`,
		"white space":       " \n{" + hi + "}\r\n\t",
		"deep enough":       `{` + hi + `,"x":` + strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1) + `}`,
	} {
		if _, err := ParseChat([]byte(body)); err != nil {
			t.Errorf("%s: %v (param %q)", name, err, err.Param)
		}
	}
}

func TestParseChatFields(t *testing.T) {
	r, err := ParseChat([]byte(`{"model":"tiny","messages":[
		{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
		{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]},
		{"role":"tool","tool_call_id":"c1","content":"12:00","name":"t"}],
		"tools":[ {"type":"function","function":{"name":"t","parameters":null,"strict":true}, "x":1} ],"tool_choice":"auto",
		"max_completion_tokens":7,"temperature":-0,"top_p":0.5,"top_k":3,"seed":-1,"stream":true,"n":3,"best_of":3,"min_tokens":7,
		"min_p":0.25,"presence_penalty":1,"frequency_penalty":-2,"repetition_penalty":1.5,"logit_bias":{"5":-100,"7":0.5},
		"stop":["a","é"],"stop_token_ids":[9,10],"ignore_eos":true,
		"stream_options":{"include_usage":true,"continuous_usage_stats":true},"logprobs":true,"top_logprobs":20,
		"chat_template_kwargs":{"enable_thinking":false},"Model":"x","zeta":1,"alpha":{"a":1e400}}`))
	if err != nil {
		t.Fatal(err)
	}
	zero, half, k, seed := 0.0, 0.5, int32(3), ^uint64(0)
	want := &ChatRequest{
		Options: Options{
			N: 3, MinTokens: 7, MinP: 0.25, PresencePenalty: 1, FrequencyPenalty: -2, RepetitionPenalty: 1.5,
			LogitBias: map[int32]float32{5: -100, 7: 0.5}, Stop: []string{"a", "é"}, StopIDs: []int32{9, 10}, IgnoreEOS: true,
			Model: "tiny", MaxTokens: 7, Temperature: &zero, TopP: &half, TopK: &k, Seed: &seed, Stream: true,
			IncludeUsage: true, ContinuousUsage: true, Logprobs: 20, Ignored: []string{"Model", "alpha", "zeta"},
			Tools: []string{"t"}, limitName: "max_completion_tokens",
		},
		Messages: []Message{
			{Role: "user", Content: "ab"},
			{Role: "assistant", ContentNull: true, ToolCalls: json.RawMessage(`[{"id":"c1","type":"function","function":{"name":"t","arguments":"{}"}}]`)},
			{Role: "tool", Content: "12:00", ToolCallID: "c1", Name: "t"},
		},
		ToolList:     json.RawMessage(`[ {"type":"function","function":{"name":"t","parameters":null,"strict":true}, "x":1} ]`),
		TemplateArgs: json.RawMessage(`{"enable_thinking":false}`),
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got  %+v\nwant %+v", r, want)
	}
	if 1 / *r.Temperature < 0 {
		t.Error("minus zero was kept")
	}
}

// badBody is a body with the param and the code that the error must name.
type badBody struct{ name, body, param, code string }

func badChat() []badBody {
	return slices.Concat(badSyntax(), badMessages(), badValues(), badUnsupported())
}

// with adds a field to a good chat; msg is a chat of the given messages.
func with(field string) string { return `{` + hi + `,` + field + `}` }
func msg(m string) string      { return `{"model":"tiny","messages":[` + m + `]}` }

func badSyntax() []badBody {
	return []badBody{
		{"empty", ``, "", CodeInvalidJSON},
		{"B15 colon", `{:"model":"M"}`, "", CodeInvalidJSON},
		{"B15 null", `null`, "", CodeInvalidJSON},
		{"B15 array", `[]`, "", CodeInvalidJSON},
		{"B15 string", `"x"`, "", CodeInvalidJSON},
		{"B15 messages object", `{"model":"tiny","messages":{}}`, "messages", CodeInvalidType},
		{"B15 truncated", `{"model":"tiny","messages":[{"role":"us`, "messages", CodeInvalidJSON},
		{"cut after a colon", `{"model":"tiny","messages":`, "messages", CodeInvalidJSON},
		{"cut after a comma", `{"model":"tiny",`, "", CodeInvalidJSON},
		{"comma too many", `{` + hi + `,}`, "", CodeInvalidJSON},
		{"bad number", with(`"top_p":1.,"n":1`), "top_p", CodeInvalidJSON},
		{"bad key", `{"mo` + "\xff" + `del":"tiny"}`, "", CodeInvalidJSON},
		{"long key", `{"` + strings.Repeat("k", 100) + `":tru}`, strings.Repeat("k", 64) + "…", CodeInvalidJSON},
		{"brackets in a string", with(`"user":"]}\"","seed":-`), "seed", CodeInvalidJSON},
		{"B15 trailing", `{` + hi + `}x`, "", CodeInvalidJSON},
		{"two bodies", `{` + hi + `}{` + hi + `}`, "", CodeInvalidJSON},
		{"B13 raw bytes", "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}", "messages", CodeInvalidJSON},
		{"B14 GBK", "{\"model\":\"tiny\",\"messages\":[{\"role\":\"user\",\"content\":\"\xc4\xe3\xba\xc3\"}]}", "messages", CodeInvalidJSON},
		{"BOM", "\xef\xbb\xbf{" + hi + "}", "", CodeInvalidJSON},
		{"raw NUL", "{" + hi + ",\"x\":\"\x00\"}", "x", CodeInvalidJSON},
		{"too deep", with(`"x":` + strings.Repeat("[", MaxDepth) + strings.Repeat("]", MaxDepth)), "", CodeInvalidJSON},
		{"very deep", strings.Repeat(`{"a":`, 10000) + "1" + strings.Repeat("}", 10000), "", CodeInvalidJSON},
		{"duplicate key", with(`"seed":1,"seed":2`), "seed", CodeInvalidJSON},
		{"duplicate by escape", with(`"seed":1,"s\u0065ed":2`), "seed", CodeInvalidJSON},
		{"duplicate inside", msg(`{"role":"user","role":"user","content":"x"}`), "messages", CodeInvalidJSON},
		{"duplicate among many", with(`"x":{` + manyKeys(40) + `"k3":1}`), "x", CodeInvalidJSON},
		{"lone surrogate", msg(`{"role":"user","content":"\ud800"}`), "messages", CodeInvalidJSON},
		{"lone low surrogate", msg(`{"role":"user","content":"\udc00x"}`), "messages", CodeInvalidJSON},
		{"NaN", with(`"temperature":NaN`), "temperature", CodeInvalidJSON},
		{"1e400", with(`"temperature":1e400`), "temperature", CodeInvalidValue},
		{"1e400 in template args", with(`"chat_template_kwargs":{"a":1e400}`), "chat_template_kwargs", CodeInvalidValue},
	}
}

func badMessages() []badBody {
	return []badBody{
		{"no model", `{"messages":[{"role":"user","content":"hi"}]}`, "model", CodeMissing},
		{"empty model", `{"model":"","messages":[{"role":"user","content":"hi"}]}`, "model", CodeMissing},
		{"no messages", `{"model":"tiny"}`, "messages", CodeMissing},
		{"empty messages", msg(``), "messages", CodeInvalidValue},
		{"too many messages", msg(strings.TrimSuffix(strings.Repeat(`{"role":"user","content":""},`, MaxMessages+1), ",")), "messages", CodeInvalidValue},
		{"message number", msg(`1`), "messages[0]", CodeInvalidType},
		{"no role", msg(`{"content":"x"}`), "messages[0].role", CodeMissing},
		{"bad role", msg(`{"role":"boss","content":"x"}`), "messages[0].role", CodeInvalidValue},
		{"null user content", msg(`{"role":"user","content":null}`), "messages[0].content", CodeMissing},
		{"null assistant content", msg(`{"role":"assistant","content":null,"tool_calls":[]}`), "messages[0].content", CodeMissing},
		{"content number", msg(`{"role":"user","content":1}`), "messages[0].content", CodeInvalidType},
		{"no parts", msg(`{"role":"user","content":[]}`), "messages[0].content", CodeInvalidValue},
		{"image", msg(`{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}`), "messages[0].content[0].type", CodeUnsupportedContent},
		{"part without text", msg(`{"role":"user","content":[{"type":"text"}]}`), "messages[0].content[0].text", CodeMissing},
		{"tool without id", msg(`{"role":"tool","content":"x"}`), "messages[0].tool_call_id", CodeMissing},
		{"user with calls", msg(`{"role":"user","content":"x","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`), "messages[0].tool_calls", CodeInvalidValue},
		{"call without function", msg(`{"role":"assistant","tool_calls":[{"id":"a"}]}`), "messages[0].tool_calls[0].function", CodeMissing},
		{"call arguments object", msg(`{"role":"assistant","tool_calls":[{"id":"a","function":{"name":"f","arguments":{}}}]}`), "messages[0].tool_calls[0].function.arguments", CodeInvalidType},
	}
}

func badValues() []badBody {
	return []badBody{
		{"n 0", with(`"n":0`), "n", CodeInvalidValue},
		{"n -1", with(`"n":-1`), "n", CodeInvalidValue},
		{"B21 n", with(`"n":1000000,"max_tokens":2147483647`), "n", CodeInvalidValue},
		{"max_tokens 0", with(`"max_tokens":0`), "max_tokens", CodeInvalidValue},
		{"max_tokens -1", with(`"max_tokens":-1`), "max_tokens", CodeInvalidValue},
		{"max_tokens 2^63", with(`"max_tokens":9223372036854775808`), "max_tokens", CodeInvalidValue},
		{"max_tokens 1.5", with(`"max_tokens":1.5`), "max_tokens", CodeInvalidType},
		{"max_tokens 1e300", with(`"max_tokens":1e300`), "max_tokens", CodeInvalidValue},
		{"max_tokens 1e-1", with(`"max_tokens":1e-1`), "max_tokens", CodeInvalidType},
		{"max_tokens text", with(`"max_tokens":"5"`), "max_tokens", CodeInvalidType},
		{"limits differ", with(`"max_tokens":5,"max_completion_tokens":6`), "max_tokens", CodeInvalidValue},
		{"temperature 2.1", with(`"temperature":2.1`), "temperature", CodeInvalidValue},
		{"temperature -1", with(`"temperature":-1`), "temperature", CodeInvalidValue},
		{"temperature text", with(`"temperature":"1"`), "temperature", CodeInvalidType},
		{"top_p -0.1", with(`"top_p":-0.1`), "top_p", CodeInvalidValue},
		{"top_p 1.1", with(`"top_p":1.1`), "top_p", CodeInvalidValue},
		{"top_k -2", with(`"top_k":-2`), "top_k", CodeInvalidValue},
		{"seed 2^64", with(`"seed":18446744073709551616`), "seed", CodeInvalidValue},
		{"seed 1.5", with(`"seed":1.5`), "seed", CodeInvalidType},
		{"stream text", with(`"stream":"true"`), "stream", CodeInvalidType},
		{"B58 stream_options", with(`"stream":false,"stream_options":{"include_usage":true}`), "stream_options", CodeInvalidValue},
		{"stream_options list", with(`"stream":true,"stream_options":[]`), "stream_options", CodeInvalidType},
		{"include_usage", with(`"stream":true,"stream_options":{"include_usage":1}`), "stream_options.include_usage", CodeInvalidType},
		{"B53 top_logprobs alone", with(`"top_logprobs":3`), "top_logprobs", CodeInvalidValue},
		{"B53 top_logprobs 21", with(`"logprobs":true,"top_logprobs":21`), "top_logprobs", CodeInvalidValue},
		{"B53 top_logprobs text", with(`"logprobs":true,"top_logprobs":"3"`), "top_logprobs", CodeInvalidType},
		{"logprobs number", with(`"logprobs":1`), "logprobs", CodeInvalidType},
		{"template args", with(`"chat_template_kwargs":[]`), "chat_template_kwargs", CodeInvalidType},
		{"user", with(`"user":1`), "user", CodeInvalidType},
		{"metadata", with(`"metadata":"x"`), "metadata", CodeInvalidType},
		{"store", with(`"store":"x"`), "store", CodeInvalidType},
	}
}

func badUnsupported() []badBody {
	return []badBody{
		{"B08 empty stop", with(`"stop":[""]`), "stop", CodeInvalidValue},
		{"B08 empty among stops", with(`"stop":["","x"]`), "stop", CodeInvalidValue},
		{"empty stop text", with(`"stop":""`), "stop", CodeInvalidValue},
		{"10k stops", with(`"stop":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 10000), ",") + `]`), "stop", CodeInvalidValue},
		{"long stop", with(`"stop":"` + strings.Repeat("x", 257) + `"`), "stop", CodeInvalidValue},
		{"stop number", with(`"stop":5`), "stop", CodeInvalidType},
		{"stop numbers", with(`"stop":[5]`), "stop", CodeInvalidType},
		{"stop id text", with(`"stop_token_ids":["5"]`), "stop_token_ids", CodeInvalidValue},
		{"stop id negative", with(`"stop_token_ids":[-1]`), "stop_token_ids", CodeInvalidValue},
		{"stop ids object", with(`"stop_token_ids":{}`), "stop_token_ids", CodeInvalidType},
		{"33 stop ids", with(`"stop_token_ids":[` + strings.Repeat("1,", 32) + `1]`), "stop_token_ids", CodeInvalidValue},
		{"B23 min_tokens", with(`"min_tokens":10,"max_tokens":5`), "min_tokens", CodeInvalidValue},
		{"B23 min_tokens, newer name", with(`"min_tokens":10,"max_completion_tokens":5`), "min_tokens", CodeInvalidValue},
		{"min_tokens -1", with(`"min_tokens":-1`), "min_tokens", CodeInvalidValue},
		{"B42 huge id", with(`"logit_bias":{"99999999999":-100}`), "logit_bias", CodeInvalidValue},
		{"one id twice", with(`"logit_bias":{"5":1,"05":2}`), "logit_bias", CodeInvalidValue},
		{"B42 bad id", with(`"logit_bias":{"abc":1}`), "logit_bias", CodeInvalidValue},
		{"B42 range", with(`"logit_bias":{"5":1e9}`), "logit_bias", CodeInvalidValue},
		{"B42 null", with(`"logit_bias":{"5":null}`), "logit_bias", CodeInvalidValue},
		{"B42 list", with(`"logit_bias":[1]`), "logit_bias", CodeInvalidType},
		{"bias of many", with(`"logit_bias":{` + strings.TrimSuffix(manyKeys(1025), ",") + `}`), "logit_bias", CodeInvalidValue},
		{"B45 schema", with(`"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":{"type":"strin"}}}`), "response_format", CodeUnsupported},
		{"format json", with(`"response_format":{"type":"json_object"}`), "response_format", CodeUnsupported},
		{"format unknown", with(`"response_format":{"type":"yaml"}`), "response_format", CodeInvalidValue},
		{"format without type", with(`"response_format":{}`), "response_format.type", CodeMissing},
		{"format text", with(`"response_format":"json"`), "response_format", CodeInvalidType},
		{"tools: empty object", with(`"tools":[{}]`), "tools[0].type", CodeMissing},
		{"tools: a string", with(`"tools":["w"]`), "tools[0]", CodeInvalidType},
		{"tools: other type", with(`"tools":[{"type":"custom","custom":{}}]`), "tools[0].type", CodeUnsupported},
		{"tools: no function", with(`"tools":[{"type":"function"}]`), "tools[0].function", CodeMissing},
		{"tools: function is a list", with(`"tools":[{"type":"function","function":[]}]`), "tools[0].function", CodeInvalidType},
		{"tools: no name", with(`"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{}}]`), "tools[1].function.name", CodeMissing},
		{"tools: empty name", with(`"tools":[{"type":"function","function":{"name":""}}]`), "tools[0].function.name", CodeInvalidValue},
		{"tools: description", with(`"tools":[{"type":"function","function":{"name":"a","description":1}}]`), "tools[0].function.description", CodeInvalidType},
		{"tools: parameters", with(`"tools":[{"type":"function","function":{"name":"a","parameters":[]}}]`), "tools[0].function.parameters", CodeInvalidType},
		{"tools: too many", with(`"tools":[` + strings.Repeat(`{"type":"function","function":{"name":"w"}},`, 128) + `{"type":"function","function":{"name":"w"}}]`), "tools", CodeInvalidValue},
		{"tool_choice of a name", with(`"tool_choice":{"type":"function","function":{"name":"w"}}`), "tool_choice", CodeUnsupported},
		{"tool_choice unknown", with(`"tool_choice":"any"`), "tool_choice", CodeInvalidValue},
		{"tools object", with(`"tools":{}`), "tools", CodeInvalidType},
		{"tool_choice required", with(`"tool_choice":"required"`), "tool_choice", CodeUnsupported},
		{"tool_choice number", with(`"tool_choice":1`), "tool_choice", CodeInvalidType},
		{"repetition_penalty 0", with(`"repetition_penalty":0`), "repetition_penalty", CodeInvalidValue},
		{"frequency_penalty -3", with(`"frequency_penalty":-3`), "frequency_penalty", CodeInvalidValue},
		{"min_p 2", with(`"min_p":2`), "min_p", CodeInvalidValue},
		{"presence_penalty 3", with(`"presence_penalty":3`), "presence_penalty", CodeInvalidValue},
		{"echo", with(`"echo":true`), "echo", CodeUnsupported},
		{"best_of", with(`"best_of":2`), "best_of", CodeInvalidValue},
		{"best_of below n", with(`"n":3,"best_of":2`), "best_of", CodeInvalidValue},
		{"suffix", with(`"suffix":"x"`), "suffix", CodeUnsupported},
		{"skip_special_tokens", with(`"skip_special_tokens":false`), "skip_special_tokens", CodeUnsupported},
		{"modalities", with(`"modalities":["audio"]`), "modalities", CodeUnsupported},
		{"guided_json", with(`"guided_json":{}`), "guided_json", CodeUnsupported},
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":1,`, i)
	}
	return b.String()
}

func TestParseChatRefuses(t *testing.T) {
	for _, tc := range badChat() {
		_, err := ParseChat([]byte(tc.body))
		if err == nil {
			t.Errorf("%s: accepted", tc.name)
			continue
		}
		if err.Param != tc.param || err.Code != tc.code || err.Status != http.StatusBadRequest {
			t.Errorf("%s: %d %s param %q (%s); want %s param %q", tc.name, err.Status, err.Code, err.Param, err.Message, tc.code, tc.param)
		}
		checkErrorBody(t, tc.name, err)
	}
}

// checkErrorBody checks that an error is one valid, bounded JSON object in OpenAI's shape.
func checkErrorBody(t *testing.T, name string, e *Error) {
	t.Helper()
	body := e.AppendJSON(nil)
	var shape struct {
		Error struct {
			Message, Type string
			Param, Code   *string
		}
	}
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&shape); err != nil || !utf8.Valid(body) || len(body) > 1024 {
		t.Errorf("%s: body %.200q: %v", name, body, err)
	}
	if shape.Error.Message == "" || shape.Error.Type == "" || shape.Error.Code == nil || *shape.Error.Code == "" {
		t.Errorf("%s: body %s", name, body)
	}
}

// TestWrongTypesEverywhere gives every known field values of every JSON type.
// Nothing may panic, and what is refused must name the field.
func TestWrongTypesEverywhere(t *testing.T) {
	fields := []string{"model", "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed",
		"stream", "stream_options", "logprobs", "top_logprobs", "user", "metadata", "store", "chat_template_kwargs", "n", "stop",
		"stop_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "tools", "tool_choice",
		"functions", "function_call", "response_format", "min_p", "ignore_eos", "echo", "best_of", "suffix", "min_tokens", "modalities"}
	values := []string{`null`, `true`, `5`, `-5`, `1.5`, `1e400`, `"x"`, `""`, `[]`, `[1]`, `["x"]`, `[[]]`, `{}`, `{"a":1}`, `[null]`, `{"type":null}`}
	for _, field := range fields {
		refused := 0
		for _, v := range values {
			rest := hi
			switch field {
			case "model":
				rest = `"messages":[{"role":"user","content":"hi"}]`
			case "messages":
				rest = `"model":"tiny"`
			}
			_, err := ParseChat([]byte(`{` + rest + `,"` + field + `":` + v + `}`))
			if err == nil {
				continue
			}
			refused++
			if !strings.HasPrefix(err.Param, field) {
				t.Errorf("%s=%s: param %q, %v", field, v, err.Param, err)
			}
		}
		if refused < 6 {
			t.Errorf("%s: only %d of %d values refused", field, refused, len(values))
		}
	}
}

func TestParseCompletion(t *testing.T) {
	for body, want := range map[string][]Prompt{
		`"A B"`:         {{Text: "A B"}},
		`" "`:           {{Text: " "}},
		`["a","b"]`:     {{Text: "a"}, {Text: "b"}},
		`[1,2,3]`:       {{IDs: []int32{1, 2, 3}}},
		`[[1],[2,3]]`:   {{IDs: []int32{1}}, {IDs: []int32{2, 3}}},
		` [ [ 1 , 2 ]]`: {{IDs: []int32{1, 2}}},
	} {
		r, err := ParseCompletion([]byte(`{"model":"M","prompt":` + body + `,"logprobs":0}`))
		if err != nil || !reflect.DeepEqual(r.Prompts, want) || r.Logprobs != 0 {
			t.Errorf("%s: %+v, %v", body, r, err)
		}
	}
	r, err := ParseCompletion([]byte(`{"model":"M","prompt":"Answer: Yes","max_tokens":0,"echo":true,"logprobs":1,"stop":["K L M N O"]}`))
	if err != nil || !r.Echo || !r.NoTokens || r.MaxTokens != 0 || r.Logprobs != 1 || len(r.Stop) != 1 {
		t.Errorf("B17 echo: %+v, %v", r, err)
	}
	for _, tc := range []struct{ name, fields, param, code string }{
		{"none", `"max_tokens":4`, "prompt", CodeMissing},
		{"B41 null", `"prompt":null`, "prompt", CodeMissing},
		{"B27 empty", `"prompt":""`, "prompt", CodeInvalidValue},
		{"B27 list", `"prompt":[]`, "prompt", CodeInvalidValue},
		{"B27 nested", `"prompt":[[]]`, "prompt", CodeInvalidValue},
		{"B27 empty text", `"prompt":[""]`, "prompt", CodeInvalidValue},
		{"B40 huge id", `"prompt":[5279552648203111001],"max_tokens":1`, "prompt", CodeInvalidValue},
		{"B40 negative", `"prompt":[-1]`, "prompt", CodeInvalidValue},
		{"B40 fraction", `"prompt":[1.5]`, "prompt", CodeInvalidValue},
		{"mixed", `"prompt":["a",1]`, "prompt", CodeInvalidValue},
		{"mixed ids", `"prompt":[1,"a"]`, "prompt", CodeInvalidValue},
		{"object", `"prompt":{}`, "prompt", CodeInvalidType},
		{"too many", `"prompt":[` + strings.TrimSuffix(strings.Repeat(`"x",`, MaxPrompts+1), ",") + `]`, "prompt", CodeInvalidValue},
		{"B17 max_tokens 0", `"prompt":"x","max_tokens":0`, "max_tokens", CodeInvalidValue},
		{"echo text", `"prompt":"x","echo":"true"`, "echo", CodeInvalidType},
		{"B17 max_completion_tokens 0", `"prompt":"x","max_completion_tokens":0`, "max_completion_tokens", CodeInvalidValue},
		{"logprobs 21", `"prompt":"x","logprobs":21`, "logprobs", CodeInvalidValue},
		{"logprobs bool", `"prompt":"x","logprobs":true`, "logprobs", CodeInvalidType},
		{"min over none", `"prompt":"x","max_tokens":0,"echo":true,"min_tokens":1`, "min_tokens", CodeInvalidValue},
	} {
		_, err := ParseCompletion([]byte(`{"model":"M",` + tc.fields + `}`))
		if err == nil || err.Param != tc.param || err.Code != tc.code {
			t.Errorf("%s: %+v", tc.name, err)
			continue
		}
		checkErrorBody(t, tc.name, err)
	}
}

// Clients that know one kind of number write whole ones with a point.
func TestWholeNumbers(t *testing.T) {
	r, err := ParseCompletion([]byte(`{"model":"M","prompt":[1.0,2e1],"max_tokens":600.0,"n":1.0,"seed":-7.0,"top_k":4e1,"stop_token_ids":[3.0]}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.MaxTokens != 600 || r.N != 1 || int64(*r.Seed) != -7 || *r.TopK != 40 || !slices.Equal(r.StopIDs, []int32{3}) || !slices.Equal(r.Prompts[0].IDs, []int32{1, 20}) {
		t.Errorf("%+v", r)
	}
}

func TestLimits(t *testing.T) {
	l := Limits{MaxContext: 100, Vocab: 50}
	for fields, want := range map[string]string{
		`"prompt":"x","max_tokens":100`:                 "",
		`"prompt":"x","max_tokens":101`:                 "max_tokens",
		`"prompt":"x","max_completion_tokens":101`:      "max_completion_tokens",
		`"prompt":"x","logit_bias":{"191222999":-100}`:  "logit_bias",
		`"prompt":"x","logit_bias":{"49":-100}`:         "",
		`"prompt":"x","stop_token_ids":[1,50]`:          "stop_token_ids",
		`"prompt":"x","min_tokens":101`:                 "min_tokens",
		`"prompt":[49]`:                                 "",
		`"prompt":[0,50]`:                               "prompt",
		`"prompt":[` + strings.Repeat("1,", 100) + `1]`: "prompt",
	} {
		r, err := ParseCompletion([]byte(`{"model":"M",` + fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err := r.Check(l); err != nil {
			got = err.Param
			if long := strings.Contains(fields, "101") && !strings.Contains(fields, "min_tokens"); long && err.Code != codeContextLength {
				t.Errorf("%s: code %s", fields, err.Code)
			}
		}
		if got != want {
			t.Errorf("%.40s: %q, want %q", fields, got, want)
		}
	}
	r, err := ParseCompletion([]byte(`{"model":"M","prompt":[[1],[1,50]]}`))
	if err != nil {
		t.Fatal(err)
	}
	if e := r.Check(l); e == nil || !strings.Contains(e.Message, "prompt[1][1]") {
		t.Errorf("position is missing: %v", e)
	}
}

func TestErrorsEchoLittle(t *testing.T) {
	long := strings.Repeat("é", 5000)
	_, err := ParseChat([]byte(`{"model":"m","messages":[{"role":"` + long + `","content":"x"}]}`))
	if err == nil || len(err.Message) > 256 || !utf8.ValidString(err.Message) {
		t.Errorf("message of %d bytes", len(err.Message))
	}
}

func FuzzParse(f *testing.F) {
	for _, tc := range badChat() {
		if len(tc.body) < 2000 {
			f.Add([]byte(tc.body))
		}
	}
	f.Add([]byte(`{"model":"M","prompt":[[1],[2,3]],"logprobs":2}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := ParseChat(body)
		if (r == nil) == (err == nil) {
			t.Fatal("neither or both of request and error")
		}
		if err != nil {
			checkErrorBody(t, "fuzz", err)
		} else if len(r.Messages) == 0 || r.Model == "" || !json.Valid(body) || !utf8.Valid(body) {
			t.Fatalf("accepted %q as %+v", body, r)
		}
		if _, err := ParseCompletion(body); err != nil {
			checkErrorBody(t, "fuzz", err)
		}
	})
}

func TestOneCall(t *testing.T) {
	for body, want := range map[string]bool{``: false, `,"parallel_tool_calls":true`: false, `,"parallel_tool_calls":false`: true, `,"parallel_tool_calls":null`: false} {
		if r, err := ParseChat([]byte(`{` + hi + body + `}`)); err != nil || r.OneCall != want {
			t.Errorf("%s: %v, %v", body, r, err)
		}
	}
}

func TestToolsHidden(t *testing.T) {
	const tools = `,"tools":[{"type":"function","function":{"name":"w"}}]`
	for body, want := range map[string]bool{
		tools: true, tools + `,"tool_choice":"auto"`: true, tools + `,"tool_choice":null`: true,
		tools + `,"tool_choice":"none"`: false, `,"tools":[]`: false, `,"tools":[],"tool_choice":"none"`: false,
	} {
		r, err := ParseChat([]byte(`{` + hi + body + `}`))
		if err != nil || (r.ToolList != nil) != want || slices.Equal(r.Tools, []string{"w"}) != want || r.OneCall {
			t.Errorf("%s: %v, %v", body, r, err)
		}
	}
}

// What is out of range is told with the bound that it missed.
func TestBoundsThatAreMissed(t *testing.T) {
	for field, want := range map[string]string{
		`"seed":18446744073709551616`:  "'seed' must be at most 9223372036854775807",
		`"seed":-18446744073709551616`: "'seed' must be at least -9223372036854775808",
		`"max_tokens":1e400`:           "'max_tokens' must be at most 9223372036854775807",
		`"max_tokens":-1e400`:          "'max_tokens' must be at least 0",
		`"n":1e400`:                    "'n' must be between 1 and 8",
	} {
		_, err := ParseCompletion([]byte(`{"model":"M","prompt":"a",` + field + `}`))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", field, err, want)
		}
	}
}
