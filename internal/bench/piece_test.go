package bench

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// slowPiece is readPiece by encoding/json into trees. It reports false for what
// is not the JSON that was expected.
func slowPiece(text []byte) (piece, bool) {
	var p piece
	var top any
	if json.Unmarshal(text, &top) != nil || deepest(top) > maxDepth {
		return p, false
	}
	object, ok := top.(map[string]any)
	if !ok {
		return p, false
	}
	if !p.slowChoices(object["choices"]) || !p.slowUsage(object["usage"]) {
		return p, false
	}
	if _, ok := object["trctl"]; ok {
		p.slowRouting(object["trctl"])
	}
	if object["error"] != nil {
		p.failure = []byte("x")
	}
	return p, true
}

func (p *piece) slowChoices(v any) bool {
	if v == nil {
		return true
	}
	list, ok := v.([]any)
	for _, e := range list {
		choice, isObject := e.(map[string]any)
		if !isObject {
			return false
		}
		p.choices++
		p.text = p.text || slowFilled(choice["text"])
		switch finish := choice["finish_reason"].(type) {
		case nil:
		case string:
			p.finish = []byte(finish)
		default:
			return false
		}
		if x, ok := choice["trctl"]; ok {
			p.slowRouting(x)
		}
		for _, name := range []string{"delta", "message"} {
			delta, isObject := choice[name].(map[string]any)
			if choice[name] != nil && !isObject {
				return false
			}
			for _, field := range []string{"content", "reasoning_content", "reasoning", "refusal", "tool_calls", "function_call"} {
				p.text = p.text || slowFilled(delta[field])
			}
		}
	}
	return ok
}

func (p *piece) slowUsage(v any) bool {
	if v == nil {
		return true
	}
	u, ok := v.(map[string]any)
	_, p.counted = u["completion_tokens"]
	count := func(name string) int64 {
		n, isNumber := u[name].(float64)
		if u[name] != nil && (!isNumber || n < 0 || n > maxCount || n != float64(int64(n))) {
			ok = false
		}
		return int64(n)
	}
	p.prompt, p.completion = count("prompt_tokens"), count("completion_tokens")
	return ok
}

func (p *piece) slowRouting(v any) {
	p.writer, p.extension = false, nil
	x, _ := v.(map[string]any)
	p.writer = slowFilled(x["model"])
	if _, ok := x["tokens"].(map[string]any); ok {
		p.extension = []byte("x")
	}
}

func slowFilled(v any) bool {
	switch v := v.(type) {
	case string:
		return v != ""
	case []any:
		return len(v) > 0
	case map[string]any:
		return true
	}
	return false
}

func deepest(v any) int {
	deep := 0
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			deep = max(deep, deepest(e))
		}
	case map[string]any:
		for _, e := range v {
			deep = max(deep, deepest(e))
		}
	default:
		return 0
	}
	return deep + 1
}

// repeated says that an object of text, at any depth, may have a key twice, or
// that a number is not written plainly: there the two ways differ by design.
func repeated(text []byte) bool {
	type open struct {
		keys   map[string]bool
		object bool
		key    bool
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var stack []open
	for {
		t, err := d.Token()
		if err != nil {
			return false
		}
		switch v := t.(type) {
		case json.Delim:
			if v == '}' || v == ']' {
				stack = stack[:len(stack)-1]
			}
			if n := len(stack); n > 0 && (v == '{' || v == '[') {
				stack[n-1].key = true
			}
			if v == '{' || v == '[' {
				stack = append(stack, open{map[string]bool{}, v == '{', true})
			}
			continue
		case json.Number:
			if strings.ContainsAny(string(v), ".eE-") {
				return true
			}
		}
		n := len(stack)
		if n == 0 || !stack[n-1].object {
			continue
		}
		top := &stack[n-1]
		if name, isKey := t.(string); isKey && top.key {
			if top.keys[name] {
				return true
			}
			top.keys[name] = true
			top.key = false
			continue
		}
		top.key = true
	}
}

var pieceSeeds = []string{
	`{"id":"x","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[{"index":0,"delta":{"content":" the"},"logprobs":null,"finish_reason":null}],"trctl":{"model":"tiny-s"}}`,
	`{"choices":[{"delta":{"role":"assistant","content":""}}]}`,
	`{"choices":[{"delta":{"reasoning_content":"x"}},{"text":"y","finish_reason":"length"}]}`,
	`{"choices":[{"message":{"content":null,"tool_calls":[{"id":"1"}]},"finish_reason":"tool_calls"}]}`,
	`{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":34,"prompt_tokens_details":{"cached_tokens":0}}}`,
	`{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null,"trctl":{"policy":"p","models":["a","b"],"tokens":{"a":1,"b":2},"provenance":[["a",1],["b",2]]}}`,
	`{"error":{"message":"m","code":null}}`, `{"error":null,"choices":null}`, `{"error":"x"}`,
	`{"\u0063hoices":[{"t\u0065xt":"\ud83d\ude00\"}{"}]}`,
	`{"choices":[{"text":"]}{[\\\""}]}`, ` { "choices" : [ { "text" : "a" } , { } ] } `,
	`{"usage":{"completion_tokens":-1}}`, `{"usage":{"completion_tokens":1099511627777}}`, `{"usage":{"completion_tokens":007}}`, `{"usage":[]}`,
	`{"choices":{}}`, `{"choices":[1]}`, `{"choices":[{"delta":1}]}`, `{"choices":[{"finish_reason":1}]}`, `{"trctl":7}`, `{"trctl":{"tokens":7,"model":""}}`,
	`{"choices":[{"trctl":{"tokens":{}}}]}`,
	``, `null`, `[]`, `{`, `{}x`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":[1,]}`, `{"a":tru}`, `{"a":+1}`, `{"a":01}`, `{"a":1.}`, `{"a":1e}`, `{"a":-}`, `{"a":-0.5e+10}`,
	"{\"a\":\"\x01\"}", "{\"a\":\"\xff\"}", `{"a":"\x"}`, `{"a":"\u12g4"}`, `{"a":"`, `{"a":"\`, `{"a":"\u1`, "{\"\xff\":1}",
	`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
}

func checkPiece(t *testing.T, text []byte) {
	t.Helper()
	got, err := readPiece(text)
	if err == nil && !json.Valid(text) {
		t.Fatalf("readPiece(%q) takes what is not JSON", text)
	}
	if repeated(text) {
		return
	}
	want, ok := slowPiece(text)
	if (err == nil) != ok {
		t.Fatalf("readPiece(%q): %v, the reference takes it: %v", text, err, ok)
	}
	if err != nil {
		return
	}
	// The finish reason stays escaped, the other two are views.
	var finish string
	if got.finish != nil && json.Unmarshal([]byte(`"`+string(got.finish)+`"`), &finish) == nil {
		got.finish = []byte(finish)
	}
	if got.extension != nil {
		if !json.Valid(got.extension) {
			t.Fatalf("extension of %q is %q", text, got.extension)
		}
		got.extension = []byte("x")
	}
	if got.failure != nil {
		if !json.Valid(got.failure) {
			t.Fatalf("error of %q is %q", text, got.failure)
		}
		got.failure = []byte("x")
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("readPiece(%q) = %+v\nwant %+v", text, got, want)
	}
}

func FuzzReadPiece(f *testing.F) {
	for _, s := range pieceSeeds {
		f.Add([]byte(s))
	}
	f.Fuzz(checkPiece)
}

func TestReadPieceTakesTheLastOfTwo(t *testing.T) {
	p, err := readPiece([]byte(`{"choices":[{"text":"a","finish_reason":"stop"}],"choices":[],"usage":{"completion_tokens":3},"usage":null,"error":1,"error":null}`))
	if err != nil || p.choices != 0 || p.text || p.finish != nil || p.counted || p.failure != nil {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestReadPieceAllocatesNothing(t *testing.T) {
	text := []byte(pieceSeeds[0])
	if n := testing.AllocsPerRun(100, func() {
		if p, err := readPiece(text); err != nil || !p.token() {
			t.Fatal("not a token")
		}
	}); n != 0 {
		t.Errorf("%v allocations a piece", n)
	}
}

func BenchmarkReadPiece(b *testing.B) {
	text := []byte(pieceSeeds[0])
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readPiece(text); err != nil {
			b.Fatal(err)
		}
	}
}
