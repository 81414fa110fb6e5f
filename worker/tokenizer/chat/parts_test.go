package chat

import (
	"os"
	"strings"
	"testing"

	"github.com/tokenrouter/tokenrouter/worker/tokenizer"
)

func TestPythonFloat(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"1.0", "1.0"}, {"1e5", "100000.0"}, {"1e15", "1000000000000000.0"}, {"1e16", "1e+16"}, {"123456789012345678.0", "1.2345678901234568e+17"},
		{"0.0001", "0.0001"}, {"0.00001", "1e-05"}, {"-0.0", "-0.0"}, {"1.5e300", "1.5e+300"}, {"0.1", "0.1"}, {"1e400", "Infinity"}, {"-1e400", "-Infinity"},
		{"100", "100"}, {"-0", "0"}, {"12345678901234567890123", "12345678901234567890123"},
	} {
		tpl, err := Parse(`{{ tools | tojson }}|{{ tools[0] }}`, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tpl.Render(Conversation{Tools: []byte("[" + c.in + "]")})
		if err != nil || !strings.HasPrefix(got, "["+c.want+"]|") {
			t.Errorf("%s: got %q, %v", c.in, got, err)
		}
	}
}

func TestToJSONKeywords(t *testing.T) {
	const tools = `[{"b":[],"a":{"x":"é\u0001\u2028👍\"\\\n","y":[1,null,true]},"c":{}}]`
	for _, c := range []struct{ call, want string }{
		{`tojson`, `[{"b": [], "a": {"x": "é\u0001` + "\u2028" + `👍\"\\\n", "y": [1, null, true]}, "c": {}}]`},
		{`tojson(ensure_ascii=true)`, `[{"b": [], "a": {"x": "\u00e9\u0001\u2028\ud83d\udc4d\"\\\n", "y": [1, null, true]}, "c": {}}]`},
		{`tojson(separators=(',', ':'), sort_keys=True)`, `[{"a":{"x":"é\u0001` + "\u2028" + `👍\"\\\n","y":[1,null,true]},"b":[],"c":{}}]`},
		{`tojson(indent=1)`, "[\n {\n  \"b\": [],\n  \"a\": {\n   \"x\": \"é\\u0001\u2028👍\\\"\\\\\\n\",\n   \"y\": [\n    1,\n    null,\n    true\n   ]\n  },\n  \"c\": {}\n }\n]"},
	} {
		tpl, err := Parse(`{{ tools | `+c.call+` }}`, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := tpl.Render(Conversation{Tools: []byte(tools)}); err != nil || got != c.want {
			t.Errorf("%s: %v\n got %s\nwant %s", c.call, err, got, c.want)
		}
	}
}

func FuzzEncodeChat(f *testing.F) {
	for _, s := range hostile() {
		f.Add(s, s, s)
	}
	f.Add("0", "<", "</thin</think>k>")
	tok, err := tokenizer.Load(os.DirFS(tinyDir))
	if err != nil {
		f.Fatal(err)
	}
	tpl, err := Load(os.DirFS(tinyDir))
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, system, user, answer string) {
		for strings.Contains(answer, "</think>") { // the template leaves out what comes before
			answer = strings.ReplaceAll(answer, "</think>", "")
		}
		messages := []Message{{Role: "system", Content: system}, {Role: "user", Content: user}, {Role: "assistant", Content: answer}, {Role: "user", Content: user}}
		got, err := EncodeChat(tok, tpl, Conversation{Messages: messages, AddGenerationPrompt: true})
		if err != nil {
			t.Fatal(err)
		}
		want := dumbPrompt(tok, messages)
		if len(got) != len(want) {
			t.Fatalf("got %v\nwant %v", got, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("at %d: got %v\nwant %v", i, got, want)
			}
		}
	})
}

func BenchmarkEncodeChat(b *testing.B) {
	tok, tpl := load(b, tinyDir)
	c := Conversation{Messages: []Message{{Role: "user", Content: "Eve has 40 eggs. Eve buys 28 boxes with 70 eggs each. How many eggs does Eve have now?"}}, AddGenerationPrompt: true}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeChat(tok, tpl, c); err != nil {
			b.Fatal(err)
		}
	}
}
